/* forward_ops.c: times one operation of an unmodified program, repeated. Only --pool knows Zazen.
 * Run it directly, or under `zazen run --forward`.
 *
 *   forward_ops PATH OPERATION BYTES COUNT [OPTION…]
 *     PATH           a file; made, of 64 MiB or 4 × BYTES, unless the operation is a local one
 *     OPERATION
 *       pwrite, pread                        of BYTES bytes, one piece of the file after another
 *       write, read                          at the file's own offset
 *       open, stat, fstat                    open and close; stat of PATH
 *       fstat-local, read-local, pread-local the same on a local file PATH
 *       getpid                               a call that is not hooked
 *     COUNT          this many are counted, after a tenth as many that are not
 *     --with FILE    keep FILE open: a forwarded descriptor, while local ones are measured
 *     --pool         the bytes are in memory shared with the daemon (zazen_forward_allocate)
 *     --cpu N        run on this CPU
 *     --batch N      time N operations as one (default 1; 256 for getpid and the local ones)
 *
 * Prints one line of JSON. Times are of one operation, in nanoseconds. */
#define _GNU_SOURCE
#include "clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

enum what {
    PWRITE,
    PREAD,
    WRITE,
    READ,
    OPEN,
    STAT,
    FSTAT,
    FSTAT_LOCAL,
    READ_LOCAL,
    PREAD_LOCAL,
    GETPID,
    OPERATIONS
};
static const char *const names[OPERATIONS] = {"pwrite",     "pread",       "write", "read",
                                              "open",       "stat",        "fstat", "fstat-local",
                                              "read-local", "pread-local", "getpid"};

struct work {
    enum what what;
    const char *path;
    int file;
    size_t bytes;
    off_t offset, file_bytes;
    char *data;
};

static void fail(const char *what) {
    fprintf(stderr, "forward_ops: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The next piece of the file. */
static off_t next_offset(struct work *work) {
    off_t at = work->offset;
    work->offset += (off_t)work->bytes;
    if (work->offset + (off_t)work->bytes > work->file_bytes)
        work->offset = 0;
    return at;
}

static ssize_t once(struct work *work) {
    struct stat stat_buffer;
    int file;
    switch (work->what) {
    case PWRITE:
        return pwrite(work->file, work->data, work->bytes, next_offset(work)) == (ssize_t)work->bytes ? 0
                                                                                                      : -1;
    case PREAD:
    case PREAD_LOCAL:
        return pread(work->file, work->data, work->bytes, next_offset(work)) == (ssize_t)work->bytes ? 0 : -1;
    case WRITE:
        return write(work->file, work->data, work->bytes) == (ssize_t)work->bytes ? 0 : -1;
    case READ:
    case READ_LOCAL:
        return read(work->file, work->data, work->bytes);
    case OPEN:
        file = open(work->path, O_RDONLY | O_CLOEXEC);
        return file < 0 ? -1 : close(file);
    case STAT:
        return stat(work->path, &stat_buffer);
    case FSTAT:
    case FSTAT_LOCAL:
        return fstat(work->file, &stat_buffer);
    default:
        return getpid() > 0 ? 0 : -1;
    }
}

/* A file whose pages are there. */
static void fill(struct work *work) {
    size_t piece = 1 << 20;
    char *page = calloc(1, piece);
    off_t wanted = (off_t)(4 * work->bytes);
    work->file_bytes = wanted > (64 << 20) ? wanted : (64 << 20);
    work->file = open(work->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (work->file < 0 || page == NULL)
        fail(work->path);
    for (off_t at = 0; at < work->file_bytes; at += (off_t)piece)
        if (pwrite(work->file, page, piece, at) != (ssize_t)piece)
            fail(work->path);
    free(page);
}

static void *memory(size_t bytes, int pool) {
    void *(*allocate)(size_t) = NULL;
    void *found;
    if (!pool)
        return aligned_alloc(4096, (bytes + 4096) / 4096 * 4096);
    found = dlsym(RTLD_DEFAULT, "zazen_forward_allocate");
    memcpy(&allocate, &found, sizeof allocate);
    if (allocate == NULL) {
        fprintf(stderr, "forward_ops: --pool: not under zazen run\n");
        exit(1);
    }
    return allocate(bytes);
}

static int order(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void print(struct work *work, double *ns, uint64_t count, uint64_t calls, double seconds, double cpu) {
    uint64_t last = count - 1;
    qsort(ns, count, sizeof *ns, order);
    printf("{\"operation\": \"%s\", \"bytes\": %zu, \"calls\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f, "
           "\"min_ns\": %.1f, \"p10_ns\": %.1f, \"p25_ns\": %.1f, \"median_ns\": %.1f, \"p75_ns\": %.1f, "
           "\"p99_ns\": %.1f}\n",
           names[work->what], work->bytes, (unsigned long long)calls, seconds, cpu, ns[0], ns[last / 10],
           ns[last / 4], ns[last / 2], ns[last - last / 4], ns[last - last / 100]);
}

int main(int argc, char **argv) {
    struct work work = {.file = -1};
    uint64_t count, batch = 0, before, began;
    const char *with = NULL;
    int pool = 0;
    double *ns, cpu;
    if (argc < 5)
        return fprintf(stderr, "forward_ops PATH OPERATION BYTES COUNT [OPTION…]\n"), 2;
    work.path = argv[1];
    while (work.what < OPERATIONS && strcmp(argv[2], names[work.what]) != 0)
        work.what++;
    if (work.what == OPERATIONS)
        return fprintf(stderr, "forward_ops: no operation %s\n", argv[2]), 2;
    work.bytes = strtoull(argv[3], NULL, 10);
    count = strtoull(argv[4], NULL, 10);
    for (int at = 5; at < argc; at++) {
        const char *name = argv[at], *value = at + 1 < argc ? argv[at + 1] : "";
        if (strcmp(name, "--pool") == 0) {
            pool = 1;
            continue;
        }
        at++;
        if (strcmp(name, "--with") == 0)
            with = value;
        else if (strcmp(name, "--batch") == 0)
            batch = strtoull(value, NULL, 10);
        else if (strcmp(name, "--cpu") == 0) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(atoi(value), &set);
            if (sched_setaffinity(0, sizeof set, &set) != 0)
                fail("--cpu");
        } else
            return fprintf(stderr, "forward_ops: no option %s\n", name), 2;
    }
    if (batch == 0)
        batch = work.what >= FSTAT_LOCAL ? 256 : 1;
    if (count < batch)
        count = batch;
    if (with != NULL && open(with, O_RDWR | O_CREAT | O_CLOEXEC, 0600) < 0)
        fail(with);
    if (work.what < FSTAT_LOCAL)
        fill(&work);
    else if (work.what != GETPID && (work.file = open(work.path, O_RDONLY | O_CLOEXEC)) < 0)
        fail(work.path);
    if (work.what == PREAD_LOCAL)
        work.file_bytes = (off_t)work.bytes;
    work.data = memory(work.bytes, pool);
    ns = calloc(count / batch, sizeof *ns);
    if (work.data == NULL || ns == NULL)
        fail("memory");
    memset(work.data, 7, work.bytes);
    memset(ns, 1, count / batch * sizeof *ns);
    /* Past the first calls; READ ends at the file's end and begins anew below. */
    for (uint64_t i = 0; i < count / 10 + 32; i++)
        if (once(&work) < 0)
            fail(names[work.what]);
    if (work.what == READ || work.what == WRITE)
        lseek(work.file, 0, SEEK_SET);
    cpu = cpu_seconds();
    began = before = now_ns();
    for (uint64_t i = 0; i < count / batch; i++) {
        uint64_t after;
        for (uint64_t nth = 0; nth < batch; nth++)
            if (once(&work) < 0)
                fail(names[work.what]);
        after = now_ns();
        ns[i] = (double)(after - before) / (double)batch;
        before = after;
    }
    print(&work, ns, count / batch, count / batch * batch, (double)(before - began) * 1e-9,
          cpu_seconds() - cpu);
    return 0;
}
