/* walk.c: what the kernel takes to look at one name, as it is and without leaving a folder.
 *
 *   walk stat|access|open plain|beneath FOLDER NAME ROUNDS [CPU]
 *
 * plain: one call (open: and close). beneath: the calls that the posix plug-in makes for a folder
 * that is exported (openat2 with RESOLVE_BENEATH). Only openat2 can be told to stay beneath a
 * folder, so a look takes three calls: openat2 with O_PATH, the look, close.
 *
 * Prints one line of JSON. */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A sample is the mean of so many. */
#define BATCH 64

static int folder, is_beneath;
static const char *name;

static void fail(const char *what) {
    fprintf(stderr, "walk: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int opened(int flags) {
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC)};
    int file;
    if (!is_beneath)
        return openat(folder, name, flags | O_CLOEXEC);
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    file = (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
    return file;
}

static int once(char what) {
    struct statx about;
    int file, outcome;
    if (what == 'o')
        return (file = opened(O_RDONLY)) < 0 ? -1 : close(file);
    if (!is_beneath)
        return what == 's' ? statx(folder, name, 0, STATX_BASIC_STATS, &about)
                       : faccessat(folder, name, R_OK, 0);
    if ((file = opened(O_PATH)) < 0)
        return -1;
    outcome = what == 's' ? statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &about)
                          : (int)syscall(SYS_faccessat2, file, "", R_OK, AT_EMPTY_PATH | AT_EACCESS);
    return close(file) != 0 ? -1 : outcome;
}

int main(int argc, char **argv) {
    uint64_t rounds, before, began;
    struct samples samples;
    double cpu;
    if (argc < 6)
        return fprintf(stderr, "walk stat|access|open plain|beneath FOLDER NAME ROUNDS [CPU]\n"), 2;
    is_beneath = strcmp(argv[2], "beneath") == 0;
    folder = open(argv[3], O_PATH | O_DIRECTORY | O_CLOEXEC);
    name = argv[4];
    rounds = strtoull(argv[5], NULL, 10) / BATCH + 1;
    if (folder < 0)
        fail(argv[3]);
    if (argc > 6) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(atoi(argv[6]), &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0)
            fail("sched_setaffinity");
    }
    samples_init(&samples, rounds);
    cpu = cpu_seconds();
    began = before = now_ns();
    for (uint64_t nth = 0; nth < rounds; nth++) {
        uint64_t after;
        for (int i = 0; i < BATCH; i++)
            if (once(argv[1][0]) != 0)
                fail(argv[1]);
        after = now_ns();
        samples_add(&samples, (after - before) / BATCH);
        before = after;
    }
    report(&samples, rounds * BATCH, 0, (double)(before - began) * 1e-9, cpu_seconds() - cpu);
    return 0;
}
