/* client.c: calls the functions as if they were its own. They go to the daemon at $ZAZEN_SOCKET. */
#include "sample.h"
#include "zazen_connect.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    double values[] = {4, 1, 7}, mean;
    char where[200];
    uint32_t caller;

    if (sample_where(where, &caller) != 0)
        return fprintf(stderr, "sample: %s\n", zazen_connect_error()), 1;
    printf("asked by me: %s\n", caller == (uint32_t)getpid() ? "yes" : "no");
    if (sample_mean(values, 3, &mean) == 0)
        printf("mean %g\n", mean);
    if (sample_sort(values, 3) == 0)
        printf("sorted: %g %g %g\n", values[0], values[1], values[2]);
    if (sample_mean(values, 0, &mean) != 0 && zazen_stub_error() == ZAZEN_CALL_OK)
        printf("of nothing: %s\n", strerror(errno));
    return 0;
}
