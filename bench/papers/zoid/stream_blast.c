/* stream_blast.c: feeds and drains the streams of the tables, fast enough not to limit the figures.
 *
 *   stream_blast udp HOST PORT ...     packets as datagrams, several in a system call
 *   stream_blast tcp HOST PORT ...     the same packets over one connection
 *   stream_blast serve HOST PORT ...   whole blocks, to --ranks connections in turn: an input
 *                                      cluster for plain programs
 *   stream_blast sink HOST PORT        takes bytes from any number of connections until all are
 *                                      closed: storage
 *
 * --stations S --packet-bytes B --packets P (of a station in a block) --blocks N
 * --rate BYTES_PER_SECOND (0: no limit) --ranks R --samples T (times of a packet)
 * --joined J (datagrams that the kernel cuts out of one piece, UDP_SEGMENT)
 *
 * Prints one line of JSON: seconds, bytes of samples sent or taken, its own CPU seconds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEADER 24
#define BATCH 64
#define CONNECTIONS 256

struct options {
    uint64_t stations, packet_bytes, packets, blocks, ranks, joined, samples;
    double rate;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void need(int fine, const char *what) {
    if (!fine)
        fail(what);
}

static void report(double seconds, uint64_t bytes) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"seconds\": %.6f, \"bytes\": %llu, \"cpu_s\": %.3f}\n", seconds, (unsigned long long)bytes,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
    fflush(stdout);
}

/* The header of plugins/stream/src/packet.rs. */
static void header(unsigned char *at, unsigned station, unsigned flags, uint64_t time, uint64_t bytes) {
    uint16_t s = (uint16_t)station, f = (uint16_t)flags;
    uint32_t b = (uint32_t)bytes, tag = 0;
    memcpy(at, "ZST1", 4);
    memcpy(at + 4, &s, 2);
    memcpy(at + 6, &f, 2);
    memcpy(at + 8, &time, 8);
    memcpy(at + 16, &b, 4);
    memcpy(at + 20, &tag, 4);
}

static void pace(double began, uint64_t sent, double rate) {
    double ahead;
    if (rate <= 0)
        return;
    ahead = (double)sent / rate - (now() - began);
    if (ahead > 0.0005) {
        struct timespec pause = {(time_t)ahead, (long)((ahead - (double)(time_t)ahead) * 1e9)};
        nanosleep(&pause, NULL);
    }
}

static struct sockaddr_in address(const char *host, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    need(inet_pton(AF_INET, host, &to.sin_addr) == 1, "address");
    return to;
}

static int connected(const struct sockaddr_in *to, int kind) {
    int fd = socket(AF_INET, kind, 0), size = 8 << 20;
    need(fd >= 0, "socket");
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    for (int i = 0; connect(fd, (const struct sockaddr *)to, sizeof *to) != 0; i++) {
        need(i < 100, "connect");
        usleep(50000);
    }
    return fd;
}

static void send_all(int fd, const void *data, uint64_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t done = send(fd, at, bytes, MSG_NOSIGNAL);
        need(done > 0, "send");
        at += done;
        bytes -= (uint64_t)done;
    }
}

/* The order of time: packet after packet, of each of them every station's. */
static void stations(const char *kind, const struct sockaddr_in *to, const struct options *o) {
    int udp = strcmp(kind, "udp") == 0, fd = connected(to, udp ? SOCK_DGRAM : SOCK_STREAM);
    uint64_t size = HEADER + o->packet_bytes, total = o->blocks * o->packets * o->stations, per = o->joined;
    unsigned char *data = calloc(BATCH * per, size);
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH];
    double began = now();
    uint64_t sent = 0;
    need(data != NULL, "memory");
    memset(data, 1, BATCH * per * size);
    if (udp && per > 1) {
        int piece = (int)size;
        need(setsockopt(fd, SOL_UDP, UDP_SEGMENT, &piece, sizeof piece) == 0, "UDP_SEGMENT");
    }
    while (sent < total) {
        uint64_t count = total - sent < BATCH * per ? total - sent : BATCH * per;
        for (uint64_t i = 0; i < count; i++)
            header(data + i * size, (unsigned)((sent + i) % o->stations), 0,
                   (sent + i) / o->stations * o->samples, o->packet_bytes);
        if (!udp) {
            send_all(fd, data, count * size);
        } else {
            unsigned pieces = (unsigned)((count + per - 1) / per);
            memset(messages, 0, sizeof messages);
            for (unsigned i = 0; i < pieces; i++) {
                uint64_t here = count - i * per < per ? count - i * per : per;
                parts[i] = (struct iovec){data + i * per * size, here * size};
                messages[i].msg_hdr.msg_iov = &parts[i];
                messages[i].msg_hdr.msg_iovlen = 1;
            }
            for (unsigned done = 0; done < pieces;) {
                int more = sendmmsg(fd, messages + done, pieces - done, 0);
                need(more > 0 || errno == ECONNREFUSED || errno == ENOBUFS, "sendmmsg");
                done += more > 0 ? (unsigned)more : 1;
            }
        }
        sent += count;
        pace(began, sent * o->packet_bytes, o->rate);
    }
    for (int again = 0; again < (udp ? 3 : 1); again++)
        for (unsigned station = 0; station < o->stations; station++) {
            header(data, station, 1, o->blocks * o->packets * o->samples, 0);
            send_all(fd, data, HEADER);
        }
    report(now() - began, total * o->packet_bytes);
    close(fd);
}

static int listening(const struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in bound;
    socklen_t size = sizeof bound;
    need(fd >= 0, "socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    need(bind(fd, (const struct sockaddr *)at, sizeof *at) == 0, "bind");
    need(listen(fd, CONNECTIONS) == 0, "listen");
    need(getsockname(fd, (struct sockaddr *)&bound, &size) == 0, "getsockname");
    printf("{\"port\": %d}\n", ntohs(bound.sin_port));
    fflush(stdout);
    return fd;
}

static void serve(const struct sockaddr_in *at, const struct options *o) {
    int listener = listening(at), to[CONNECTIONS];
    uint64_t bytes = o->stations * o->packets * o->packet_bytes;
    unsigned char *block = malloc(16 + bytes);
    double began;
    need(block != NULL && o->ranks <= CONNECTIONS, "memory");
    memset(block, 1, 16 + bytes);
    for (unsigned i = 0; i < o->ranks; i++) {
        uint32_t rank;
        int fd = accept(listener, NULL, NULL), size = 8 << 20;
        need(fd >= 0 && recv(fd, &rank, 4, MSG_WAITALL) == 4 && rank < o->ranks, "accept");
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        to[rank] = fd;
    }
    began = now();
    for (uint64_t number = 0; number < o->blocks; number++) {
        memcpy(block, &number, 8);
        memcpy(block + 8, &bytes, 8);
        send_all(to[number % o->ranks], block, 16 + bytes);
        pace(began, (number + 1) * bytes, o->rate);
    }
    for (unsigned i = 0; i < o->ranks; i++)
        close(to[i]);
    report(now() - began, o->blocks * bytes);
}

static void sink(const struct sockaddr_in *at) {
    static char data[1 << 20];
    struct pollfd ready[CONNECTIONS + 1] = {{.fd = listening(at), .events = POLLIN}};
    unsigned count = 1, seen = 0;
    uint64_t bytes = 0;
    double began = now();
    while (!(seen > 0 && count == 1)) {
        need(poll(ready, count, -1) > 0, "poll");
        for (unsigned i = count; i-- > 1;) {
            if (ready[i].revents != 0) {
                ssize_t came = recv(ready[i].fd, data, sizeof data, 0);
                bytes += came > 0 ? (uint64_t)came : 0;
                if (came <= 0) {
                    close(ready[i].fd);
                    ready[i] = ready[--count];
                }
            }
        }
        if (ready[0].revents != 0 && count <= CONNECTIONS) {
            int fd = accept(ready[0].fd, NULL, NULL);
            if (fd >= 0) {
                ready[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
                seen++;
            }
        }
    }
    report(now() - began, bytes);
}

int main(int count, char **words) {
    struct options o = {.stations = 1, .packet_bytes = 8192, .packets = 16, .blocks = 1, .ranks = 1,
                            .joined = 1,
                        .samples = 16};
    struct sockaddr_in at;
    if (count < 4)
        return fprintf(stderr,
                       "stream_blast udp|tcp|serve|sink HOST PORT [options]: see the file's head\n"), 2;
    for (int i = 4; i + 1 < count; i += 2) {
        const char *name = words[i], *value = words[i + 1];
        uint64_t number = strtoull(value, NULL, 10);
        if (strcmp(name, "--rate") == 0)
            o.rate = atof(value);
        else if (strcmp(name, "--stations") == 0)
            o.stations = number;
        else if (strcmp(name, "--packet-bytes") == 0)
            o.packet_bytes = number;
        else if (strcmp(name, "--packets") == 0)
            o.packets = number;
        else if (strcmp(name, "--blocks") == 0)
            o.blocks = number;
        else if (strcmp(name, "--ranks") == 0)
            o.ranks = number;
        else if (strcmp(name, "--joined") == 0)
            o.joined = number;
        else if (strcmp(name, "--samples") == 0)
            o.samples = number;
        else
            return fprintf(stderr, "no option %s\n", name), 2;
    }
    at = address(words[2], words[3]);
    if (strcmp(words[1], "serve") == 0)
        serve(&at, &o);
    else if (strcmp(words[1], "sink") == 0)
        sink(&at);
    else
        stations(words[1], &at, &o);
    return 0;
}
