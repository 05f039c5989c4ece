/* calls.c: a client of the rates plug-in: the same call again and again, and how long each took.
 *
 *   calls SOCKET|HOST:PORT|direct FUNCTION BYTES [OPTION…]
 *     FUNCTION            nothing, drop, put, get, pwrite, pread
 *     --carrier NAME      auto, unix, shm (default auto)
 *     --pool              the bytes are in memory shared with the plug-in's host
 *     --rounds N          so many calls, after a tenth as many that are not counted (default 1000)
 *     --seconds S         or as many as fit
 *     --together          says "ready", and begins when told (clock.h)
 *     --pause NS          between calls
 *     --cpu N             on this CPU
 *     --file PATH         what pwrite and pread are about; `direct` does them itself
 *
 * Prints one line of JSON. */
#define _GNU_SOURCE
#include "clock.h"
#include "rates.h"
#include "zazen_connect.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#define PLUGIN 120
#define SAMPLES_MAX 2000000u
/* Calls of so many bytes that are not counted, before a time is filled. */
#define WARM(bytes) ((bytes) > 65536 ? 3 : 100)
/* A file's part that is written again and again. */
#define FILE_BYTES (64u << 20)

enum what { NOTHING, DROP, PUT, GET, PWRITE, PREAD, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"nothing", "drop", "put", "get", "pwrite", "pread"};

struct work {
    enum what what;
    int direct, file;
    uint64_t bytes, offset;
    char *data;
};

static void fail(const char *what) {
    const char *why = zazen_stub_error() != ZAZEN_CALL_OK ? zazen_connect_error() : strerror(errno);
    fprintf(stderr, "calls: %s: %s\n", what, why);
    exit(1);
}

static int64_t once(struct work *work) {
    uint64_t count = work->bytes;
    int64_t at = (int64_t)work->offset;
    if (work->what >= PWRITE) {
        work->offset += work->bytes;
        if (work->offset + work->bytes > FILE_BYTES)
            work->offset = 0;
    }
    switch (work->what) {
    case NOTHING:
        rates_nothing();
        return zazen_stub_error() == ZAZEN_CALL_OK ? 0 : -1;
    case DROP:
        return rates_drop(work->data, count);
    case PUT:
        return rates_put(work->data, count);
    case GET:
        return rates_get(work->data, &count);
    case PWRITE:
        return work->direct ? pwrite(work->file, work->data, count, at)
                            : rates_pwrite(work->file, work->data, count, at);
    default:
        return work->direct ? pread(work->file, work->data, count, at)
                            : rates_pread(work->file, work->data, &count, at);
    }
}

static void must(struct work *work) {
    if (once(work) < 0)
        fail(names[work->what]);
}

/* A file whose pages are there. */
static void fill(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char *page = calloc(1, 1 << 20);
    if (file < 0 || page == NULL)
        fail(path);
    for (uint64_t at = 0; at < FILE_BYTES; at += 1 << 20)
        if (pwrite(file, page, 1 << 20, (off_t)at) != 1 << 20)
            fail(path);
    free(page);
    close(file);
}

int main(int argc, char **argv) {
    struct zazen_connect_options options = {.struct_size = sizeof options};
    struct zazen_stub_connection *connection = NULL;
    struct work work = {.file = -1};
    uint64_t rounds = 1000, pause = 0, until = UINT64_MAX, calls = 0, before, began;
    const char *path = NULL;
    int pool = 0, together = 0;
    double seconds = 0, cpu;
    struct samples samples;
    if (argc < 4)
        return fprintf(stderr, "calls SOCKET FUNCTION BYTES [OPTION…]\n"), 2;
    while (work.what < FUNCTIONS && strcmp(argv[2], names[work.what]) != 0)
        work.what++;
    if (work.what == FUNCTIONS)
        return fprintf(stderr, "calls: no function %s\n", argv[2]), 2;
    work.bytes = strtoull(argv[3], NULL, 10);
    for (int at = 4; at < argc; at++) {
        const char *name = argv[at], *value = at + 1 < argc ? argv[at + 1] : "";
        if (strcmp(name, "--pool") == 0) {
            pool = 1;
            continue;
        }
        if (strcmp(name, "--together") == 0) {
            together = 1;
            continue;
        }
        at++;
        if (strcmp(name, "--carrier") == 0)
            options.carrier = strcmp(value, "unix") == 0  ? ZAZEN_CARRIER_UNIX
                              : strcmp(value, "shm") == 0 ? ZAZEN_CARRIER_SHM
                                                          : ZAZEN_CARRIER_AUTO;
        else if (strcmp(name, "--rounds") == 0)
            rounds = strtoull(value, NULL, 10);
        else if (strcmp(name, "--seconds") == 0)
            seconds = strtod(value, NULL);
        else if (strcmp(name, "--pause") == 0)
            pause = strtoull(value, NULL, 10);
        else if (strcmp(name, "--file") == 0)
            path = value;
        else if (strcmp(name, "--cpu") == 0) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(atoi(value), &set);
            if (sched_setaffinity(0, sizeof set, &set) != 0)
                fail("--cpu");
        } else
            return fprintf(stderr, "calls: no option %s\n", name), 2;
    }
    work.direct = strcmp(argv[1], "direct") == 0;
    if (!work.direct) {
        if (zazen_connect(argv[1], &options, &connection) != ZAZEN_CALL_OK)
            fail(argv[1]);
        zazen_stub_set_default(connection);
        /* Bound, and past the first calls, before memory is asked for. */
        for (int i = 0; i < 16; i++)
            rates_nothing();
    }
    work.data = pool ? zazen_alloc(connection, PLUGIN, work.bytes) : malloc(work.bytes + 1);
    if (work.data == NULL)
        fail("memory");
    memset(work.data, 7, work.bytes);
    if (work.what >= PWRITE) {
        fill(path);
        work.file = work.direct ? open(path, O_RDWR | O_CLOEXEC) : rates_open(path);
        if (work.file < 0)
            fail(path);
    }
    samples_init(&samples, seconds > 0 ? SAMPLES_MAX : rounds);
    for (uint64_t i = 0; i < (seconds > 0 ? WARM(work.bytes) : rounds / 10 + 1) && pause == 0; i++)
        must(&work);
    before = together ? begin_together() : now_ns();
    if (seconds > 0)
        until = before + (uint64_t)(seconds * 1e9);
    cpu = cpu_seconds();
    began = before = now_ns();
    while (seconds > 0 ? before < until : calls < rounds) {
        uint64_t after;
        if (pause > 0) {
            pause_ns(pause);
            before = now_ns();
        }
        must(&work);
        after = now_ns();
        samples_add(&samples, after - before);
        before = after;
        calls++;
    }
    report(&samples, calls, calls * work.bytes, (double)(before - began) * 1e-9, cpu_seconds() - cpu);
    zazen_disconnect(connection);
    return 0;
}
