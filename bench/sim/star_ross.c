/* The FusionFS job on a star, for ROSS: each node opens a file at a node that is drawn for it (a
   message there and back, and 25 us of service there), and writes 1 GB to its own disk.

     star_ross --synch=1 --end=1000 --nodes=NODES

   A node is one logical process: its interface sends and receives one message after the other, its
   daemon serves one request after the other. bench/sim/others.py compiles and runs it, and runs the
   same job by `zazen sim`. It runs sequentially: nothing here can be reversed. */

#include <ross.h>

#define SERVICE_S 25e-6
#define LATENCY_S 20e-6
#define MESSAGE_S (512 / 1.25e9)
#define WRITE_S (1e9 / 161e6)

enum kind { ASK_COMES, ASKED, SERVED, ANSWER_COMES, ANSWERED, WRITTEN };

struct message {
    enum kind kind;
    tw_lpid from; /* whose file it is */
};

struct node {
    double sends_from, receives_from, serves_from; /* when each is free */
};

static unsigned int nodes = 1000;
static double last_s;

static double now(tw_lp *lp) {
    return tw_now(lp);
}

static void tell(tw_lp *lp, tw_lpid to, double at, enum kind kind, tw_lpid from) {
    tw_event *event = tw_event_new(to, at - now(lp), lp);
    struct message *message = tw_event_data(event);
    message->kind = kind;
    message->from = from;
    tw_event_send(event);
}

/* What takes a resource from now on, or as soon as it is free; when that begins. */
static double take(tw_lp *lp, double *free, double takes) {
    double begin = now(lp) > *free ? now(lp) : *free;
    *free = begin + takes;
    return begin;
}

static void send_to(struct node *node, tw_lp *lp, tw_lpid to, enum kind kind, tw_lpid from) {
    tell(lp, to, take(lp, &node->sends_from, MESSAGE_S) + LATENCY_S, kind, from);
}

static uint64_t mix(uint64_t word) {
    word += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    return word ^ (word >> 31);
}

static void begin(struct node *node, tw_lp *lp) {
    node->sends_from = node->receives_from = node->serves_from = 0;
    send_to(node, lp, mix(lp->gid) % nodes, ASK_COMES, lp->gid);
}

static void happen(struct node *node, tw_bf *bits, struct message *message, tw_lp *lp) {
    (void)bits;
    switch (message->kind) {
    case ASK_COMES:
        tell(lp, lp->gid, take(lp, &node->receives_from, MESSAGE_S) + MESSAGE_S, ASKED, message->from);
        break;
    case ASKED:
        tell(lp, lp->gid, take(lp, &node->serves_from, SERVICE_S) + SERVICE_S, SERVED, message->from);
        break;
    case SERVED:
        send_to(node, lp, message->from, ANSWER_COMES, message->from);
        break;
    case ANSWER_COMES:
        tell(lp, lp->gid, take(lp, &node->receives_from, MESSAGE_S) + MESSAGE_S, ANSWERED, message->from);
        break;
    case ANSWERED:
        tell(lp, lp->gid, now(lp) + WRITE_S, WRITTEN, message->from);
        break;
    case WRITTEN:
        if (now(lp) > last_s)
            last_s = now(lp);
    }
}

static void undo(struct node *node, tw_bf *bits, struct message *message, tw_lp *lp) {
    (void)node, (void)bits, (void)message, (void)lp;
    tw_error(TW_LOC, "this model runs with --synch=1 only");
}

static void end(struct node *node, tw_lp *lp) {
    (void)node, (void)lp;
}

static tw_peid home(tw_lpid node) {
    (void)node;
    return 0;
}

static tw_lptype types[] = {
    {(init_f)begin, NULL, (event_f)happen, (revent_f)undo, NULL, (final_f)end, (map_f)home,
     sizeof(struct node)},
    {0},
};

static const tw_optdef options[] = {
    TWOPT_GROUP("star"),
    TWOPT_UINT("nodes", nodes, "number of nodes"),
    TWOPT_END(),
};

int main(int argc, char **argv) {
    tw_opt_add(options);
    tw_init(&argc, &argv);
    g_tw_events_per_pe = 4 * nodes + 1024;
    tw_define_lps(nodes, sizeof(struct message));
    for (unsigned int node = 0; node < g_tw_nlp; node++)
        tw_lp_settype(node, &types[0]);
    tw_run();
    printf("makespan %.6f\n", last_s);
    tw_end();
    return 0;
}
