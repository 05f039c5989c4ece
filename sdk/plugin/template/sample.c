/* sample.c: the functions. They run where the daemon runs, in many threads at once. */
#include "sample.h"
#include "zazen_plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int sample_mean(const double *values, size_t count, double *mean) {
    double sum = 0;
    if (count == 0) {
        errno = EDOM;
        return -1;
    }
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    *mean = sum / (double)count;
    return 0;
}

static int order(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int sample_sort(double *values, size_t count) {
    qsort(values, count, sizeof *values, order);
    return 0;
}

int sample_where(char *text, uint32_t *caller) {
    struct zazen_caller who = {.struct_size = sizeof who};
    if (zazen_plugin_host()->caller(&who) != 0)
        return -1;
    *caller = who.pid;
    snprintf(text, 200, "process %d", (int)getpid());
    return 0;
}
