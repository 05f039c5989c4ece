/* sample.h: what clients can call. Annotations: `zazen plugin --help`, docs/plugins.md. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stddef.h>
#include <stdint.h>

/* START-ZAZEN-SCANNER ID=4711 INIT=NULL FINI=NULL */

/* The mean of `count` numbers; EDOM of none. */
/* errno */
int sample_mean(const double *values /* in:arr:size=+1:zerocopy */, size_t count /* in:obj */,
                double *mean /* out:ptr */);

/* Sorts in place. */
int sample_sort(double *values /* inout:arr:size=+1 */, size_t count /* in:obj */);

/* Where it runs, and who asks. */
int sample_where(char *text /* out:str:max=200 */, uint32_t *caller /* out:ptr */);

#endif
