/* clock.h: what the programs of the figures share: time, samples, and how they are told. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* Of CLOCK_MONOTONIC, which all processes of a machine share. */
static inline uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* CPU seconds of this process. */
static inline double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static inline void pause_ns(uint64_t ns) {
    struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (nanosleep(&time, &time) != 0)
        ;
}

/* Reports that this process is ready, reads from standard input when all begin (CLOCK_MONOTONIC),
 * and waits until then. */
static inline uint64_t begin_together(void) {
    char line[32];
    uint64_t start, now;
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        exit(1);
    start = strtoull(line, NULL, 10);
    now = now_ns();
    if (start > now)
        pause_ns(start - now);
    return start;
}

/* How long things took: the first so many. */
struct samples {
    uint32_t *ns;
    uint64_t count, room;
};

static inline void samples_init(struct samples *samples, uint64_t room) {
    samples->ns = malloc(room * sizeof *samples->ns);
    samples->count = 0;
    samples->room = samples->ns != NULL ? room : 0;
    /* No page is touched for the first time while something is measured. */
    if (samples->ns != NULL)
        memset(samples->ns, 1, room * sizeof *samples->ns);
}

static inline void samples_add(struct samples *samples, uint64_t ns) {
    if (samples->count < samples->room)
        samples->ns[samples->count++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

static inline int samples_order(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* Prints one line of JSON. */
static inline void report(struct samples *samples, uint64_t calls, uint64_t bytes,
                          double seconds, double cpu_s) {
    uint64_t last = samples->count > 0 ? samples->count - 1 : 0;
    qsort(samples->ns, samples->count, sizeof *samples->ns, samples_order);
    if (samples->count == 0)
        samples->ns[0] = 0;
    printf("{\"calls\": %llu, \"bytes\": %llu, \"seconds\": %.9f, \"cpu_s\": %.6f, "
           "\"min_ns\": %u, \"p10_ns\": %u, "
           "\"median_ns\": %u, \"p99_ns\": %u}\n",
           (unsigned long long)calls, (unsigned long long)bytes, seconds, cpu_s, samples->ns[0],
           samples->ns[last / 10], samples->ns[last / 2], samples->ns[last - last / 100]);
}

#endif
