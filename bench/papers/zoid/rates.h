/* rates.h: the plug-in that the figures on calls measure. It moves bytes, and does little else. */
#ifndef RATES_H
#define RATES_H

#include <stdint.h>

struct zazen_caller;
/* Closes what a client has left open. */
void rates_detach(const struct zazen_caller *caller, int32_t reason);

/* START-ZAZEN-SCANNER ID=120 INIT=NULL FINI=NULL DETACH=rates_detach */

/* Nothing but the way there and back. */
void rates_nothing(void);
/* A sink, as writing to /dev/zero: nobody looks at the bytes. The count. */
int64_t rates_drop(const void *data /* in:arr:size=+1:zerocopy */, uint64_t bytes /* in:obj */);
/* Looks at each cache line, as who works on the bytes does. A sum. */
int64_t rates_put(const void *data /* in:arr:size=+1:zerocopy */, uint64_t bytes /* in:obj */);
/* Zeros, as reading from /dev/zero. */
int64_t rates_get(void *data /* out:arr:size=+1:zerocopy */, uint64_t *bytes /* inout:ptr */);

/* A file at the far side. */
/* errno handle */
int rates_open(const char *path /* in:str:max=4096 */);
/* errno */
int rates_close(int file /* in:obj:handle:close */);
/* errno */
int64_t rates_pwrite(int file /* in:obj:handle */, const void *data /* in:arr:size=+1:zerocopy */,
                     uint64_t bytes /* in:obj */, int64_t offset /* in:obj */);
/* errno */
int64_t rates_pread(int file /* in:obj:handle */, void *data /* out:arr:size=+1:zerocopy */,
                    uint64_t *bytes /* inout:ptr */, int64_t offset /* in:obj */);

#endif
