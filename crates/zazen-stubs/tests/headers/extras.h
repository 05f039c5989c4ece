/* What ZOID did not have: descriptors, handles through pointers, fixed arrays, sizes through pointers. */
#ifndef EXTRAS_H
#define EXTRAS_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct zazen_host;
int extras_init(const struct zazen_host *host);

/* START-ZAZEN-SCANNER ID=65535 INIT=extras_init FINI=NULL */

/* fd, errno */
int extras_open_direct(const char *path /* in:str */);
/* handle=object */
int64_t extras_make(const float matrix[16] /* in:arr */, float inverse[16] /* out:arr */);
int extras_pair(int first /* in:obj:fd */, int second /* in:obj:fd */, int *third /* out:ptr:fd */,
                int64_t *made /* out:ptr:handle=object */, int64_t used /* in:obj:handle=object */,
                int gone /* in:obj:handle=other:close */);
uint64_t extras_sum(const uint32_t *values /* in:arr:size=*+1:max=3000 */, const unsigned *count /* in:ptr */,
                    int16_t *same /* inout:arr:size=-1:zerocopy */);
void extras_numbers(signed char a /* in:obj */, unsigned char b /* in:obj */, short c /* in:obj */,
                    unsigned short d /* in:obj */, long long e /* in:obj */, unsigned long long f /* in:obj */,
                    float g /* in:obj */, double h /* in:obj */, _Bool i /* in:obj */, char j /* in:obj */,
                    uid_t *k /* inout:ptr */, _Bool *l /* inout:ptr:nullok */, double *m /* out:ptr */);
/* idempotent, blocking */
float extras_nothing(void);
void extras_bounds(const int32_t *a /* in:arr:size=+1:nullok */, int a_count /* in:obj */,
                   int32_t *b /* inout:arr:size=+1:max=100:nullok */, int b_count /* in:obj */);
void extras_lines(int16_t **from /* in:arr2d:size=+1:max=40 */, const int *from_lengths /* in:arr:size=+1 */,
                  int from_count /* in:obj */, double **both /* inout:arr2d:size=+1:max=30 */,
                  const int *both_lengths /* in:arr:size=+1 */, int both_count /* in:obj */);
/* oneway */
void extras_post(const int32_t *values /* in:arr:size=+1:zerocopy */, int count /* in:obj */);

#endif
