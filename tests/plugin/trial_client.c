/* Calls of a trial, by name, each with one line about what came of it: the same lines wherever
 * the plug-in is.
 *
 * trial_client same            everything that must be the same everywhere
 * trial_client WORD ARGUMENT…  see main()
 *
 * With -DTRIAL_LOOPBACK it hosts trial.so itself; else it takes the daemon at $TRIAL_ADDRESS by
 * carrier $TRIAL_CARRIER. */
#define _GNU_SOURCE
#include "trial.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef TRIAL_LOOPBACK
#include "zazen_loopback.h"
static const char *zazen_connect_error(void) { return ""; }
static void *zazen_alloc(void *connection, uint32_t plugin, uint64_t bytes) {
    (void)connection, (void)plugin;
    return malloc(bytes);
}
static void zazen_free(void *buffer) { free(buffer); }
static int zazen_interrupt(int thread) { return thread; }
#else
#include "zazen_connect.h"
#endif

int32_t trial_bind(struct zazen_stub_connection *connection);

static struct zazen_stub_connection *connection;

static void told(const char *what, long long result) {
    int32_t status = zazen_stub_error();
    printf("%s %lld%s%s\n", what, result, status == 0 ? "" : " ",
           status == 0 ? "" : zazen_call_strerror(status));
    fflush(stdout);
}

static uint64_t digest(const void *memory, size_t bytes) {
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ ((const unsigned char *)memory)[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static void fill(unsigned char *memory, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)((i * 2654435761u + seed) >> 13);
}

static void copies(void) {
    static const size_t sizes[] = {0, 1, 7, 8, 4095, 4096, 4097, 65536, 70001, 1 << 20, (4 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes = sizes[i];
        unsigned char *from = malloc(bytes + 1), *to = calloc(1, bytes + 1);
        unsigned char *pool_from = zazen_alloc(connection, 78, bytes),
                      *pool_to = zazen_alloc(connection, 78, bytes);
        fill(from, bytes, (unsigned)i);
        memcpy(pool_from, from, bytes);
        told("copy", trial_copy(from, to, bytes));
        printf("  %d\n", memcmp(from, to, bytes));
        memset(to, 0, bytes);
        told("echo", trial_echo(from, to, bytes));
        printf("  %d\n", memcmp(from, to, bytes));
        told("echo from the pool", trial_echo(pool_from, pool_to, bytes));
        printf("  %d\n", memcmp(from, pool_to, bytes));
        memset(to, 0, bytes);
        told("echo from within the pool",
             trial_echo(pool_from + (bytes > 3) * 3, to, bytes > 3 ? bytes - 3 : 0));
        printf("  %d\n", bytes > 3 ? memcmp(from + 3, to, bytes - 3) : 0);
        zazen_free(pool_from);
        zazen_free(pool_to);
        free(from);
        free(to);
    }
}

static void lines(void) {
    enum { LINES = 5 };
    unsigned char from[LINES][3000], to[LINES][3000];
    const void *in[LINES];
    void *out[LINES];
    uint64_t bytes[LINES] = {3000, 0, 1, 2048, 17}, room[LINES] = {3000, 5, 3000, 3000, 3};
    for (int i = 0; i < LINES; i++) {
        fill(from[i], sizeof from[i], (unsigned)i + 100);
        in[i] = from[i];
        out[i] = to[i];
    }
    told("lines", trial_lines(in, bytes, out, room, LINES));
    for (int i = 0; i < LINES; i++)
        printf("  %llu %016llx\n", (unsigned long long)room[i],
               (unsigned long long)digest(to[i], (size_t)room[i]));
    told("no lines", trial_lines(in, bytes, out, room, 0));
}

static void userbufs(void) {
    unsigned char bytes[1000];
    uint64_t count = 1000;
    fill(bytes, sizeof bytes, 5);
    told("sum", (long long)trial_sum(bytes, 1000));
    told("sum of nothing", (long long)trial_sum(bytes, 0));
    told("sum refused", (long long)trial_sum(bytes, 13));
    told("pattern", trial_pattern(bytes, &count));
    printf("  %llu %016llx\n", (unsigned long long)count, (unsigned long long)digest(bytes, (size_t)count));
    count = 100;
    told("stream lie 1", trial_lie_stream(1, bytes, &count));
    told("stream lie 4", trial_lie_stream(4, bytes, &count));
}

static void handles(void) {
    int first = trial_box(41), second = trial_box(42);
    printf("boxes %d %d\n", first, second);
    told("unbox", trial_unbox(first));
    told("drop", trial_drop(first));
    told("unbox again", trial_unbox(first));
    told("drop again", trial_drop(first));
    told("box", trial_box(43));
    told("a failure is no handle", trial_box(-7));
    told("unbox nonsense", trial_unbox(12345));
    trial_drop(second);
}

static void lies(void) {
    char text[8];
    uint32_t values[4] = {9, 9, 9, 9};
    for (int how = 0; how <= 3; how++) {
        int count = 4;
        told("lie", trial_lie(how, text, values, &count));
        printf("  %d %u\n", count, values[1]);
    }
    values[0] = 0;
    int count = -1;
    told("negative", trial_lie(0, text, values, &count));
    told("NULL", trial_lie(0, text, NULL, &count));
}

static void descriptors(void) {
    char text[32] = "";
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), end;
    told("file", trial_file_bytes(file) > 0);
    close(file);
    told("no file", trial_file_bytes(-1));
    end = trial_pipe("through a pipe");
    told("pipe", end >= 0);
    if (end >= 0 && read(end, text, sizeof text - 1) >= 0)
        printf("  %s\n", text);
    close(end);
}

static void same(void) {
    char upper[64], host[256];
    uint32_t pid, uid;
    int32_t rank, ranks, counted[8];
    uint64_t generation, client;
    struct trial_point point = {1, 2};

    told("add", trial_add(2, 3));
    errno = 0;
    told("fail", trial_fail(EXDEV));
    printf("  %s\n", strerror(errno));
    told("upper", trial_upper("some text", upper));
    printf("  %s\n", upper);
    point = trial_swap(point);
    printf("swap %d %d\n", point.x, point.y);
    copies();
    lines();
    userbufs();
    handles();
    lies();
    if (getenv("TRIAL_FAR") == NULL)
        descriptors();
    trial_note(5);
    told("note", 0);
    client = trial_who(&pid, &uid, &rank, &ranks, &generation, host);
    printf("who %d %d %d %d %d %llu %d\n", client > 0, pid == (uint32_t)getpid(), uid == (uint32_t)geteuid(),
           rank, ranks, (unsigned long long)generation, host[0] != 0);
    trial_counts(counted, 8);
    printf("counts: inits %d, attached %d, detached %d, completions %d, last %d, notes %d\n", counted[0],
           counted[1], counted[2], counted[4], counted[5], counted[6]);
}

static void who(void) {
    char host[256];
    uint32_t pid = 0, uid;
    int32_t rank, ranks, counted[8] = {0};
    uint64_t generation = 0, client = trial_who(&pid, &uid, &rank, &ranks, &generation, host);
    int32_t status = zazen_stub_error();
    trial_counts(counted, 8);
    printf("%d %llu %llu %d %u %d %d\n", status, (unsigned long long)client, (unsigned long long)generation,
           counted[7], pid, rank, ranks);
    if (status != 0)
        fprintf(stderr, "%s\n", zazen_connect_error());
    fflush(stdout);
}

static void *hammer(void *argument) {
    intptr_t bad = 0;
    for (int i = 0; i < 300; i++) {
        int value = (int)(intptr_t)argument * 1000 + i, box = trial_box(value);
        bad += trial_unbox(box) != value || trial_drop(box) != value || trial_add(value, i) != value + i;
    }
    return (void *)bad;
}

static void threads(void) {
    pthread_t all[8];
    intptr_t bad = 0;
    for (intptr_t i = 0; i < 8; i++)
        pthread_create(&all[i], NULL, hammer, (void *)i);
    for (int i = 0; i < 8; i++) {
        void *its;
        pthread_join(all[i], &its);
        bad += (intptr_t)its;
    }
    printf("threads %d\n", (int)bad);
}

static int blocked_thread;

static void *block(void *argument) {
    (void)argument;
    __atomic_store_n(&blocked_thread, (int)gettid(), __ATOMIC_RELEASE);
    int result = trial_block();
    int number = errno;
    printf("block %d %s %d\n", result, strerror(number), zazen_stub_error());
    return NULL;
}

/* One thread waits in a call, others go on; then it is told to end. */
static void interrupt(void) {
    pthread_t thread;
    struct timespec rest = {0, 20000000};
    pthread_create(&thread, NULL, block, NULL);
    for (int i = 0; i < 20; i++)
        told("meanwhile", trial_add(i, 1));
    while (__atomic_load_n(&blocked_thread, __ATOMIC_ACQUIRE) == 0 || zazen_interrupt(blocked_thread) != 0)
        nanosleep(&rest, NULL);
    /* The first may have come before the call left. */
    while (pthread_tryjoin_np(thread, NULL) != 0) {
        zazen_interrupt(0);
        nanosleep(&rest, NULL);
    }
}

static void forks(void) {
    int box = trial_box(7);
    who();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        who();
        told("its parent's box", trial_unbox(box));
        threads();
        _exit(0);
    }
    waitpid(child, NULL, 0);
    told("its own box", trial_unbox(box));
    who();
}

/* Random calls for ever: to be killed at any step. */
static void restless(unsigned seed) {
    static unsigned char from[1 << 19], to[1 << 19];
    uint64_t count;
    printf("begun\n");
    fflush(stdout);
    for (;;) {
        seed = seed * 1664525 + 1013904223;
        size_t bytes = (seed >> 8) % sizeof from;
        switch ((seed >> 4) % 6) {
        case 0:
            trial_box(3);
            break;
        case 1:
            trial_echo(from, to, bytes);
            break;
        case 2:
            trial_sum(from, bytes);
            break;
        case 3:
            count = bytes;
            trial_pattern(to, &count);
            break;
        case 4:
            close(trial_pipe("x"));
            break;
        default:
            trial_copy(from, to, bytes % 5000);
        }
        if (zazen_stub_error() != 0) {
            fprintf(stderr, "%s: %s\n", zazen_call_strerror(zazen_stub_error()), zazen_connect_error());
            exit(1);
        }
    }
}

static int run(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "same";
    if (strcmp(word, "same") == 0)
        same();
    else if (strcmp(word, "who") == 0)
        who();
    else if (strcmp(word, "threads") == 0)
        threads();
    else if (strcmp(word, "interrupt") == 0)
        interrupt();
    else if (strcmp(word, "forks") == 0)
        forks();
    else if (strcmp(word, "block") == 0)
        block(NULL);
    else if (strcmp(word, "restless") == 0)
        restless((unsigned)atoi(argv[2]));
    else if (strcmp(word, "leak") == 0)
        told("leak", trial_leak(argv[2], strtoull(argv[3], NULL, 0)));
    else if (strcmp(word, "die") == 0) {
        /* What it came to, then whether the plug-in is there again. */
        who();
        told("die", trial_die(argv[2]));
        who();
    } else if (strcmp(word, "lines") == 0) {
        /* A call for each line that comes in: the test says when. */
        char line[100];
        while (fgets(line, sizeof line, stdin) != NULL)
            who();
    } else
        return 2;
    return 0;
}

int main(int argc, char **argv) {
    int outcome;
    setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef TRIAL_LOOPBACK
    const char *why = "";
    struct zazen_loopback_options options = {.struct_size = sizeof options, .flags = ZAZEN_LOOPBACK_BOUNCE};
    struct zazen_loopback *loopback = zazen_loopback_load(getenv("TRIAL_OBJECT"), &options, &why);
    if (loopback == NULL)
        return fprintf(stderr, "%s\n", why), 1;
    connection = zazen_loopback_connect(loopback);
    zazen_stub_set_default(connection);
    outcome = run(argc, argv);
    zazen_loopback_disconnect(connection, ZAZEN_DETACH_CLOSED);
    zazen_loopback_stop(loopback);
#else
    const char *carrier = getenv("TRIAL_CARRIER");
    struct zazen_connect_options options = {.struct_size = sizeof options};
    int32_t status;
    options.carrier = carrier == NULL ? 0 : (uint32_t)atoi(carrier);
    status = zazen_connect(getenv("TRIAL_ADDRESS"), &options, &connection);
    if (status != 0)
        return fprintf(stderr, "%d %s\n", status, zazen_connect_error()), 1;
    zazen_stub_set_default(connection);
    outcome = run(argc, argv);
    zazen_disconnect(connection);
#endif
    return outcome;
}
