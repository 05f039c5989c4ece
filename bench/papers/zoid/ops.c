/* ops.c: repeats one operation of POSIX I/O. It knows nothing of forwarding.
 *
 *   ops OPERATION PATH|HOST:PORT BYTES [OPTION…]
 *     read, write         at the file's offset, beginning again at the end of --span
 *     pread, pwrite       likewise, at an offset of its own
 *     stream-read, stream-write   without offsets: devices
 *     send, recv          over a TCP connection to `ops serve`
 *     open, stat, access, lseek, fstat, missing   without bytes; open: open and close; missing:
 *                         open a path that does not exist
 *     --rounds N          N operations, after a tenth as many that are not counted (default 1000)
 *     --seconds S         or as many as fit
 *     --together          say "ready", and begin when told (clock.h)
 *     --batch N           a sample is the mean of N (default 1)
 *     --span BYTES        of the file (default 64 MiB)
 *     --cpu N             run on this CPU
 *   ops serve             the other end of sockets; prints {"port": N}
 *
 * Prints one line of JSON. */
#define _GNU_SOURCE
#include "clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLES_MAX 2000000u
#define SERVE_BYTES (4u << 20)

enum what { READ, WRITE, PREAD, PWRITE, STREAM_READ, STREAM_WRITE,
            SEND, RECV, OPEN, STAT, ACCESS, LSEEK, FSTAT, MISSING, KINDS };
static const char *const names[KINDS] = {
    "read", "write", "pread", "pwrite", "stream-read", "stream-write", "send",
    "recv", "open", "stat", "access", "lseek", "fstat", "missing",
};

struct work {
    enum what what;
    int file;
    const char *path;
    size_t bytes;
    off_t at, span;
    char *data;
};

static void fail(const char *what) {
    fprintf(stderr, "ops: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int connection(const char *address) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *port = strrchr(address, ':');
    int made = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    place.sin_port = htons((uint16_t)atoi(port != NULL ? port + 1 : address));
    if (made < 0 || connect(made, (struct sockaddr *)&place, sizeof place) != 0)
        fail(address);
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return made;
}

/* All of it: sockets take and give pieces. */
static int whole(struct work *work, int is_write) {
    for (size_t done = 0; done < work->bytes;) {
        ssize_t count = is_write ? write(work->file, work->data + done, work->bytes - done)
                                 : read(work->file, work->data + done, work->bytes - done);
        if (count <= 0)
            return -1;
        done += (size_t)count;
    }
    return 0;
}

static off_t next(struct work *work) {
    off_t at = work->at;
    work->at += (off_t)work->bytes;
    if (work->at + (off_t)work->bytes > work->span)
        work->at = 0;
    return at;
}

static int once(struct work *work) {
    struct stat about;
    ssize_t count;
    switch (work->what) {
    case READ:
    case WRITE:
        if (next(work) == 0 && lseek(work->file, 0, SEEK_SET) != 0)
            return -1;
        count = work->what == READ ? read(work->file, work->data, work->bytes)
                                   : write(work->file, work->data, work->bytes);
        return count == (ssize_t)work->bytes ? 0 : -1;
    case PREAD:
        return pread(work->file, work->data, work->bytes, next(work)) == (ssize_t)work->bytes ? 0 : -1;
    case PWRITE:
        return pwrite(work->file, work->data, work->bytes, next(work)) == (ssize_t)work->bytes ? 0 : -1;
    case STREAM_READ:
    case RECV:
        return whole(work, 0);
    case STREAM_WRITE:
    case SEND:
        return whole(work, 1);
    case OPEN: {
        int file = open(work->path, O_RDONLY | O_CLOEXEC);
        return file < 0 ? -1 : close(file);
    }
    case STAT:
        return stat(work->path, &about);
    case ACCESS:
        return access(work->path, R_OK);
    case LSEEK:
        return lseek(work->file, 0, SEEK_CUR) < 0 ? -1 : 0;
    case FSTAT:
        return fstat(work->file, &about);
    default:
        return open("/no/such/file", O_RDONLY | O_CLOEXEC) < 0 ? 0 : -1;
    }
}

static _Noreturn void serve_one(int peer) {
    struct work work = {.file = peer, .bytes = 1, .data = malloc(SERVE_BYTES)};
    char asked;
    if (work.data == NULL || read(peer, &asked, 1) != 1)
        _exit(1);
    memset(work.data, 1, SERVE_BYTES);
    if (asked == 'r') {
        work.bytes = SERVE_BYTES;
        while (whole(&work, 1) == 0)
            ;
    } else
        while (read(peer, work.data, SERVE_BYTES) > 0)
            ;
    _exit(0);
}

static _Noreturn void serve(void) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof place;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    if (bind(listener, (struct sockaddr *)&place, length) != 0 || listen(listener, 128) != 0 ||
        getsockname(listener, (struct sockaddr *)&place, &length) != 0)
        fail("listen");
    printf("{\"port\": %d}\n", ntohs(place.sin_port));
    fflush(stdout);
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        if (peer >= 0 && fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            serve_one(peer);
        }
        close(peer);
    }
}

static void prepare(struct work *work) {
    if (work->what == SEND || work->what == RECV) {
        work->file = connection(work->path);
        if (write(work->file, work->what == RECV ? "r" : "s", 1) != 1)
            fail("ask");
        return;
    }
    if (work->what == MISSING)
        return;
    work->file = open(work->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (work->file < 0)
        fail(work->path);
    if (work->what > PWRITE)
        return;
    /* What is read is there, and what is written needs no room. */
    char *fill = calloc(1, 1 << 20);
    struct stat about;
    if (fill == NULL || fstat(work->file, &about) != 0)
        fail(work->path);
    for (off_t at = about.st_size; at < work->span; at += 1 << 20)
        if (pwrite(work->file, fill, 1 << 20, at) != 1 << 20)
            fail(work->path);
    free(fill);
}

static void must(struct work *work, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (once(work) != 0)
            fail(names[work->what]);
}

int main(int argc, char **argv) {
    struct work work = {.file = -1, .span = 64 << 20};
    uint64_t rounds = 1000, batch = 1, until = UINT64_MAX, calls = 0, before, began;
    double seconds = 0, cpu;
    int together = 0;
    struct samples samples;
    if (argc == 2 && strcmp(argv[1], "serve") == 0)
        serve();
    if (argc < 4)
        return fprintf(stderr, "ops OPERATION PATH BYTES [OPTION…]\n"), 2;
    while (work.what < KINDS && strcmp(argv[1], names[work.what]) != 0)
        work.what++;
    if (work.what == KINDS)
        return fprintf(stderr, "ops: no operation %s\n", argv[1]), 2;
    work.path = argv[2];
    work.bytes = strtoull(argv[3], NULL, 10);
    for (int at = 4; at < argc; at++) {
        const char *name = argv[at], *value = at + 1 < argc ? argv[at + 1] : "";
        if (strcmp(name, "--together") == 0) {
            together = 1;
            continue;
        }
        at++;
        if (strcmp(name, "--rounds") == 0)
            rounds = strtoull(value, NULL, 10);
        else if (strcmp(name, "--seconds") == 0)
            seconds = strtod(value, NULL);
        else if (strcmp(name, "--batch") == 0)
            batch = strtoull(value, NULL, 10);
        else if (strcmp(name, "--span") == 0)
            work.span = (off_t)strtoull(value, NULL, 10);
        else if (strcmp(name, "--cpu") == 0) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(atoi(value), &set);
            if (sched_setaffinity(0, sizeof set, &set) != 0)
                fail("--cpu");
        } else
            return fprintf(stderr, "ops: no option %s\n", name), 2;
    }
    if ((off_t)work.bytes > work.span)
        work.span = (off_t)work.bytes;
    work.data = malloc(work.bytes + 1);
    if (work.data == NULL)
        fail("memory");
    memset(work.data, 7, work.bytes);
    prepare(&work);
    samples_init(&samples, seconds > 0 ? SAMPLES_MAX : rounds / batch + 1);
    must(&work, seconds > 0 ? 10 : rounds / 10 + 1);
    before = together ? begin_together() : now_ns();
    if (seconds > 0)
        until = before + (uint64_t)(seconds * 1e9);
    cpu = cpu_seconds();
    began = before = now_ns();
    while (seconds > 0 ? before < until : calls < rounds) {
        must(&work, batch);
        uint64_t after = now_ns();
        samples_add(&samples, (after - before) / batch);
        before = after;
        calls += batch;
    }
    report(&samples, calls, calls * work.bytes, (double)(before - began) * 1e-9, cpu_seconds() - cpu);
    return 0;
}
