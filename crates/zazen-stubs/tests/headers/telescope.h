/* A telescope's streams: the plug-in's own buffers in both directions. */
#ifndef TELESCOPE_H
#define TELESCOPE_H

#include <stddef.h>
#include <stdint.h>

struct telescope_stamp {
    uint64_t seconds;
    uint32_t samples;
};

typedef struct {
    float real, imaginary;
} telescope_sample;

/* START-ZAZEN-SCANNER ID=40 INIT=NULL FINI=NULL */

int telescope_scatter(unsigned core /* in:obj */,
                      telescope_sample *samples /* out:arr:size=+1:zerocopy:userbuf:max=1000000 */,
                      size_t *count /* inout:ptr */,
                      struct telescope_stamp *stamp /* out:ptr */);

int telescope_gather(struct telescope_stamp stamp /* in:obj */,
                     size_t count /* in:obj */,
                     const telescope_sample *visibilities /* in:arr:size=-1:zerocopy:userbuf */);

/* Both ways at once, beside an ordinary array. */
int telescope_exchange(const uint16_t *flags /* in:arr:size=+1 */, int flag_count /* in:obj */,
                       const void *request /* in:arr:size=+1:zerocopy:userbuf */, int64_t request_bytes /* in:obj */,
                       void *answer /* out:arr:size=+1:zerocopy:userbuf */, int64_t *answer_bytes /* inout:ptr */);

/* oneway */
void telescope_note(const char *text /* in:str:max=200 */, double when /* in:obj */);

/* END-ZAZEN-SCANNER */

#if defined(TELESCOPE_EXTRAS)
int telescope_not_scanned(int x);
#endif
#endif
