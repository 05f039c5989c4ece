// Reads a dataset, each frame on exactly one rank, and prints how many frames and bytes and a
// checksum over all of them.
//
//   cc    -I INCLUDE assign_and_read.c LIBRARY -o assign_and_read
//   mpicc -DWITH_MPI (the same), then: mpiexec -n 4 ./assign_and_read DATASET [BEGIN END STRIDE]
//
// INCLUDE and LIBRARY are what zazen.get_include() and zazen.get_library() say in Python.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "zazen.h"
#ifdef WITH_MPI
#include "zazen_mpi.h"
#endif

static void stop(const char *what, int32_t status) {
    fprintf(stderr, "%s: %s: %s\n", what, zazen_strerror(status), zazen_last_error());
#ifdef WITH_MPI
    MPI_Abort(MPI_COMM_WORLD, 1);
#endif
    exit(1);
}

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        int32_t status_ = (call);                                                                            \
        if (status_ != ZAZEN_OK)                                                                             \
            stop(#call, status_);                                                                            \
    } while (0)

// FNV-1a over the bytes, then mixed with the frame's number: a sum of these does not depend on the
// order.
static uint64_t frame_hash(const zazen_frame_t *frame) {
    const unsigned char *bytes = zazen_frame_data(frame);
    uint64_t hash = UINT64_C(14695981039346656037);
    for (uint64_t at = 0; at < zazen_frame_bytes(frame); at++)
        hash = (hash ^ bytes[at]) * UINT64_C(1099511628211);
    return hash ^ (zazen_frame_number(frame) * UINT64_C(0x9e3779b97f4a7c15));
}

int main(int argc, char **argv) {
    const zazen_collectives_t *everyone = NULL;
    uint64_t totals[4] = {0, 0, 0, 0}; // frames, bytes, hash, frames from the backing store
    int is_root = 1;
#ifdef WITH_MPI
    MPI_Init(&argc, &argv);
    zazen_collectives_t collectives;
    if (zazen_collectives_from_mpi(MPI_COMM_WORLD, &collectives) != ZAZEN_OK)
        return 1;
    everyone = &collectives;
    is_root = collectives.rank == 0;
#endif
    if (argc != 2 && argc != 5) {
        if (is_root)
            fprintf(stderr, "usage: %s DATASET [BEGIN END STRIDE]\n", argv[0]);
        return 2;
    }
    zazen_range_t range = {0, 0, 0};
    if (argc == 5) {
        range.begin = strtoull(argv[2], NULL, 10);
        range.end = strtoull(argv[3], NULL, 10);
        range.stride = strtoull(argv[4], NULL, 10);
    }

    zazen_dataset_t *dataset;
    zazen_runset_t *mine;
    zazen_frames_t *frames;
    zazen_frame_t *frame;
    zazen_assignment_t assignment = {.struct_size = sizeof assignment};
    zazen_read_stats_t stats = {.struct_size = sizeof stats};
    CHECK(zazen_open(argv[1], NULL, &dataset));
    CHECK(zazen_assign(dataset, argc == 5 ? &range : NULL, NULL, everyone, &assignment, &mine));
    CHECK(zazen_frames(dataset, mine, NULL, &frames));
    for (;;) {
        CHECK(zazen_next(frames, &frame));
        if (frame == NULL)
            break;
        totals[0] += 1;
        totals[1] += zazen_frame_bytes(frame);
        totals[2] += frame_hash(frame);
        zazen_frame_free(frame);
    }
    CHECK(zazen_frames_stats(frames, &stats));
    totals[3] = stats.backing_reads;
    zazen_frames_close(frames);
    zazen_runset_free(mine);
    zazen_close(dataset);

#ifdef WITH_MPI
    MPI_Allreduce(MPI_IN_PLACE, totals, 4, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    zazen_collectives_free_mpi(&collectives);
    MPI_Finalize();
#endif
    if (is_root) {
        printf("frames %" PRIu64 " bytes %" PRIu64 " hash %016" PRIx64 " backing %" PRIu64 " native %" PRIu64
               " alien %" PRIu64 " residue %" PRIu64 "\n",
               totals[0], totals[1], totals[2], totals[3], assignment.total_native, assignment.total_alien,
               assignment.total_residue);
    }
    return 0;
}
