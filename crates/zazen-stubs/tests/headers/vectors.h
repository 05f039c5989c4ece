/* List I/O: vectors in memory against vectors in a file. */
#ifndef VECTORS_H
#define VECTORS_H
#include <stddef.h>
#include <stdint.h>

/* Stateless, opaque. */
typedef struct vectors_handle {
    unsigned char data[32];
} vectors_handle_t;

/* START-ZAZEN-SCANNER ID=2 INIT=NULL FINI=NULL PROC=NULL */

int vectors_null(void);

int vectors_read(const vectors_handle_t *handle /* in:ptr */, size_t mem_count /* in:obj */,
                 void **mem_starts /* out:arr2d:size=+1:zerocopy */, const size_t mem_sizes[] /* in:arr:size=-2 */,
                 size_t file_count /* in:obj */, const uint64_t file_starts[] /* in:arr:size=-1 */,
                 uint64_t file_sizes[] /* inout:arr:size=-2 */);
int vectors_write(const vectors_handle_t *handle /* in:ptr */, size_t mem_count /* in:obj */,
                  const void *const *mem_starts /* in:arr2d:size=+1:zerocopy */,
                  const size_t *mem_sizes /* in:arr:size=-2 */, size_t file_count /* in:obj */,
                  const uint64_t *file_starts /* in:arr:size=-1 */, uint64_t *file_sizes /* inout:arr:size=-2 */);
int vectors_run(char **argv /* in:arr2d:size=+1 */, const int *lengths /* in:arr:size=+1 */, int argc /* in:obj */);
int vectors_lines(double **lines /* out:arr2d:size=+1:max=64 */, uint16_t *lengths /* inout:arr:size=+1 */,
                  uint32_t *count /* inout:ptr */, short **both /* inout:arr2d:size=-2 */);
int vectors_shuffle(float **lines /* inout:arr2d:size=+1:zerocopy */, uint8_t *lengths /* inout:arr:size=+1 */,
                    unsigned char count /* in:obj */, int **more /* out:arr2d:size=-2:zerocopy */);

#endif
