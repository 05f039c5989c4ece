// The FusionFS job on a star, for SimGrid: each node opens a file at a node that is drawn for it (a
// message there and back, and 25 us of service there), and writes 1 GB to its own disk.
//
//   star NODES
//
// bench/sim/others.py compiles and runs it, and runs the same job by `zazen sim`.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <simgrid/s4u.hpp>

namespace sg = simgrid::s4u;

namespace {

constexpr double kServiceSeconds = 25e-6;
constexpr double kMessageBytes = 512;
constexpr double kFileBytes = 1e9;

struct Ask {
    int from;
};

std::string mailbox(const char* kind, int node) {
    return kind + std::to_string(node);
}

void serve(int node) {
    auto* inbox = sg::Mailbox::by_name(mailbox("daemon", node));
    inbox->set_receiver(sg::Actor::self());
    while (true) {
        auto ask = inbox->get_unique<Ask>();
        sg::this_actor::sleep_for(kServiceSeconds);
        sg::Mailbox::by_name(mailbox("rank", ask->from))->put_init(new int(0), kMessageBytes)->detach();
    }
}

void work(int node, int server) {
    auto* inbox = sg::Mailbox::by_name(mailbox("rank", node));
    sg::Mailbox::by_name(mailbox("daemon", server))->put(new Ask{node}, kMessageBytes);
    auto answer = inbox->get_unique<int>();
    sg::this_actor::get_host()->get_disks().front()->write(static_cast<sg_size_t>(kFileBytes));
}

uint64_t mix(uint64_t word) {
    word += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    return word ^ (word >> 31);
}

}  // namespace

int main(int argc, char** argv) {
    sg::Engine engine(&argc, argv);
    const int nodes = argc > 1 ? std::atoi(argv[1]) : 1000;
    auto* zone = sg::create_star_zone("star");
    std::vector<sg::Host*> hosts;
    for (int node = 0; node < nodes; node++) {
        const std::string name = std::to_string(node);
        auto* host = zone->create_host("host" + name, 1e9);
        host->create_disk("disk" + name, 161e6, 161e6);
        auto* link = zone->create_link("link" + name, 1.25e9)->set_latency(10e-6);
        zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {sg::LinkInRoute(link)}, true);
        hosts.push_back(host);
    }
    zone->seal();
    for (int node = 0; node < nodes; node++) {
        sg::Actor::create("daemon", hosts[node], serve, node)->daemonize();
        sg::Actor::create("rank", hosts[node], work, node, static_cast<int>(mix(node) % nodes));
    }
    engine.run();
    std::printf("%.6f\n", sg::Engine::get_clock());
    return 0;
}
