#ifndef ZAZEN_MPI_H
#define ZAZEN_MPI_H

// Fills a zazen_collectives_t from an MPI communicator. This header has no library: your own mpicc
// compiles it, so it always uses your MPI's ABI. Needs MPI 3.0 or newer, and C99 or C++11.
//
//   zazen_collectives_t collectives;
//   if (zazen_collectives_from_mpi(MPI_COMM_WORLD, &collectives)) ...
//   zazen_assign(dataset, NULL, NULL, &collectives, NULL, &set);
//   zazen_collectives_free_mpi(&collectives);

#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "zazen.h"

#ifdef __cplusplus
extern "C" {
#endif

// The most bytes of one message, a multiple of 8. Counts are int, and some libraries compute byte
// offsets in an int.
#ifndef ZAZEN_MPI_BYTES_MAX
#define ZAZEN_MPI_BYTES_MAX ((uint64_t)1 << 30)
#endif

// Up to this many ranks, all-to-alls run pairwise in order. Beyond it, only blocks that exist
// travel.
#ifndef ZAZEN_MPI_PAIRWISE_RANKS_MAX
#define ZAZEN_MPI_PAIRWISE_RANKS_MAX 64
#endif

// The most messages of a sparse exchange under way at a time.
#define ZAZEN_MPI_SENDS_MAX_ 64

typedef struct zazen_mpi_context_t {
    MPI_Comm comm;
    int rank;
    int size;
    int exchanges;
} zazen_mpi_context_t;

static inline int32_t zazen_mpi_allreduce_(void *context, uint64_t *words, uint64_t count, MPI_Op op) {
    zazen_mpi_context_t *mpi = (zazen_mpi_context_t *)context;
    uint64_t step = ZAZEN_MPI_BYTES_MAX / sizeof *words;
    for (uint64_t at = 0; at < count; at += step) {
        int now = (int)(count - at < step ? count - at : step);
        int code = MPI_Allreduce(MPI_IN_PLACE, words + at, now, MPI_UINT64_T, op, mpi->comm);
        if (code != MPI_SUCCESS)
            return (int32_t)code;
    }
    return 0;
}

static inline int32_t zazen_mpi_allreduce_sum_(void *context, uint64_t *words, uint64_t count) {
    return zazen_mpi_allreduce_(context, words, count, MPI_SUM);
}

static inline int32_t zazen_mpi_allreduce_or_(void *context, uint64_t *words, uint64_t count) {
    return zazen_mpi_allreduce_(context, words, count, MPI_BOR);
}

static inline int32_t zazen_mpi_allreduce_xor_(void *context, uint64_t *words, uint64_t count) {
    return zazen_mpi_allreduce_(context, words, count, MPI_BXOR);
}

static inline int32_t zazen_mpi_alltoall_(void *context, const uint64_t *send, uint64_t *receive) {
    zazen_mpi_context_t *mpi = (zazen_mpi_context_t *)context;
    return (int32_t)MPI_Alltoall(send, 1, MPI_UINT64_T, receive, 1, MPI_UINT64_T, mpi->comm);
}

// Pairwise in shifted order: 64-bit lengths, no incast, independent of the library's tuning tables.
static inline int32_t zazen_mpi_alltoallv_(void *context, const void *const *send, const uint64_t *send_bytes,
                                           void *const *receive, const uint64_t *receive_bytes) {
    zazen_mpi_context_t *mpi = (zazen_mpi_context_t *)context;
    for (int shift = 1; shift < mpi->size; shift++) {
        int to = (mpi->rank + shift) % mpi->size, from = (mpi->rank + mpi->size - shift) % mpi->size;
        uint64_t sent = 0, got = 0;
        while (sent < send_bytes[to] || got < receive_bytes[from]) {
            uint64_t out = send_bytes[to] - sent, into = receive_bytes[from] - got;
            if (out > ZAZEN_MPI_BYTES_MAX)
                out = ZAZEN_MPI_BYTES_MAX;
            if (into > ZAZEN_MPI_BYTES_MAX)
                into = ZAZEN_MPI_BYTES_MAX;
            int code = MPI_Sendrecv((const char *)send[to] + sent, (int)out, MPI_BYTE,
                                    out ? to : MPI_PROC_NULL, 0, (char *)receive[from] + got, (int)into,
                                    MPI_BYTE, into ? from : MPI_PROC_NULL, 0, mpi->comm, MPI_STATUS_IGNORE);
            if (code != MPI_SUCCESS)
                return (int32_t)code;
            sent += out;
            got += into;
        }
    }
    return 0;
}

// Takes a block, if one has come: its length, then its pieces from the same rank.
static inline int zazen_mpi_take_(zazen_mpi_context_t *mpi, int tag,
                                  void *(*room)(void *, uint64_t, uint64_t), void *sink) {
    int come = 0;
    MPI_Status status;
    int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, mpi->comm, &come, &status);
    if (code != MPI_SUCCESS || !come)
        return code;
    uint64_t bytes = 0;
    int from = status.MPI_SOURCE;
    code = MPI_Recv(&bytes, 1, MPI_UINT64_T, from, tag, mpi->comm, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        return code;
    char *into = (char *)room(sink, (uint64_t)from, bytes);
    if (into == NULL)
        return MPI_ERR_OTHER;
    for (uint64_t at = 0; at < bytes; at += ZAZEN_MPI_BYTES_MAX) {
        uint64_t now = bytes - at < ZAZEN_MPI_BYTES_MAX ? bytes - at : ZAZEN_MPI_BYTES_MAX;
        code = MPI_Recv(into + at, (int)now, MPI_BYTE, from, tag + 2, mpi->comm, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return code;
    }
    return MPI_SUCCESS;
}

// Synchronous sends end when their receiver takes them. A rank whose sends have ended enters a
// barrier, and takes what comes until the barrier ends (Hoefler et al., PPoPP 2010). Two tags in
// turn keep exchanges apart: no rank can be two ahead.
static inline int32_t zazen_mpi_exchange_(void *context, uint64_t count, const uint64_t *to,
                                          const void *const *send, const uint64_t *send_bytes,
                                          void *(*room)(void *sink, uint64_t from, uint64_t bytes),
                                          void *sink) {
    zazen_mpi_context_t *mpi = (zazen_mpi_context_t *)context;
    int tag = 1 + mpi->exchanges++ % 2, ended = 0, waits = 0, code = MPI_SUCCESS;
    uint64_t messages = 0, posted = 0, done = 0, next = 0, first = 0;
    for (uint64_t i = 0; i < count; i++) {
        messages += 1 + (send_bytes[i] + ZAZEN_MPI_BYTES_MAX - 1) / ZAZEN_MPI_BYTES_MAX;
        if (to[i] < (uint64_t)mpi->rank)
            first = i + 1;
    }
    MPI_Request barrier = MPI_REQUEST_NULL,
                *requests = (MPI_Request *)malloc((size_t)(messages + 1) * sizeof *requests);
    if (requests == NULL)
        return MPI_ERR_OTHER;
    while (!ended && code == MPI_SUCCESS) {
        code = zazen_mpi_take_(mpi, tag, room, sink);
        while (code == MPI_SUCCESS && done < posted) {
            int sent = 0;
            code = MPI_Test(&requests[done], &sent, MPI_STATUS_IGNORE);
            if (!sent)
                break;
            done++;
        }
        while (code == MPI_SUCCESS && next < count && posted - done < ZAZEN_MPI_SENDS_MAX_) {
            // From the next rank on, so that not all ranks send to the lowest ones first.
            uint64_t i = (first + next++) % count;
            code = MPI_Issend((void *)(uintptr_t)&send_bytes[i], 1, MPI_UINT64_T, (int)to[i], tag, mpi->comm,
                              &requests[posted++]);
            for (uint64_t at = 0; code == MPI_SUCCESS && at < send_bytes[i]; at += ZAZEN_MPI_BYTES_MAX) {
                uint64_t now =
                    send_bytes[i] - at < ZAZEN_MPI_BYTES_MAX ? send_bytes[i] - at : ZAZEN_MPI_BYTES_MAX;
                code = MPI_Issend((char *)(uintptr_t)send[i] + at, (int)now, MPI_BYTE, (int)to[i], tag + 2,
                                  mpi->comm, &requests[posted++]);
            }
        }
        if (code == MPI_SUCCESS && !waits && done == messages) {
            waits = 1;
            code = MPI_Ibarrier(mpi->comm, &barrier);
        } else if (code == MPI_SUCCESS && waits) {
            code = MPI_Test(&barrier, &ended, MPI_STATUS_IGNORE);
        }
    }
    // After a failure requests may be under way: the memory stays with MPI.
    if (code == MPI_SUCCESS)
        free(requests);
    return (int32_t)code;
}

static inline int32_t zazen_mpi_broadcast_(void *context, void *buffer, uint64_t bytes) {
    zazen_mpi_context_t *mpi = (zazen_mpi_context_t *)context;
    for (uint64_t at = 0; at < bytes; at += ZAZEN_MPI_BYTES_MAX) {
        uint64_t now = bytes - at < ZAZEN_MPI_BYTES_MAX ? bytes - at : ZAZEN_MPI_BYTES_MAX;
        int code = MPI_Bcast((char *)buffer + at, (int)now, MPI_BYTE, 0, mpi->comm);
        if (code != MPI_SUCCESS)
            return (int32_t)code;
    }
    return 0;
}

// Fills `collectives` with a duplicate of `comm`, an intracommunicator. Collective over `comm`.
// Returns ZAZEN_OK; or ZAZEN_MPI (MPI is not initialised, a call failed, or each rank is a world of
// its own, which zazen_last_error then says); or ZAZEN_INVALID_ARGUMENT (an intercommunicator or
// MPI_COMM_NULL); or ZAZEN_NO_SPACE (no memory). After an error nothing has changed. Free
// `collectives` with zazen_collectives_free_mpi before MPI_Finalize.
static inline int32_t zazen_collectives_from_mpi(MPI_Comm comm, zazen_collectives_t *collectives) {
    int up = 0, down = 0, inter = 0, world = 0;
    if (MPI_Initialized(&up) != MPI_SUCCESS || !up || MPI_Finalized(&down) != MPI_SUCCESS || down)
        return ZAZEN_MPI;
    if (comm == MPI_COMM_NULL || collectives == NULL)
        return ZAZEN_INVALID_ARGUMENT;
    if (MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS)
        return ZAZEN_MPI;
    if (inter)
        return ZAZEN_INVALID_ARGUMENT;
    if (MPI_Comm_size(MPI_COMM_WORLD, &world) != MPI_SUCCESS)
        return ZAZEN_MPI;
    if (zazen_check_launcher((uint64_t)world) != ZAZEN_OK)
        return ZAZEN_MPI;
    zazen_mpi_context_t *mpi = (zazen_mpi_context_t *)malloc(sizeof *mpi);
    if (mpi == NULL)
        return ZAZEN_NO_SPACE;
    if (MPI_Comm_dup(comm, &mpi->comm) != MPI_SUCCESS) {
        free(mpi);
        return ZAZEN_MPI;
    }
    mpi->exchanges = 0;
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->comm, &mpi->rank);
    MPI_Comm_size(mpi->comm, &mpi->size);
    memset(collectives, 0, sizeof *collectives);
    collectives->struct_size = sizeof *collectives;
    collectives->context = mpi;
    collectives->rank = (uint64_t)mpi->rank;
    collectives->size = (uint64_t)mpi->size;
    collectives->allreduce_sum = zazen_mpi_allreduce_sum_;
    collectives->allreduce_or = zazen_mpi_allreduce_or_;
    collectives->alltoall = zazen_mpi_alltoall_;
    collectives->alltoallv = zazen_mpi_alltoallv_;
    collectives->broadcast = zazen_mpi_broadcast_;
    collectives->allreduce_xor = zazen_mpi_allreduce_xor_;
    if (mpi->size > ZAZEN_MPI_PAIRWISE_RANKS_MAX)
        collectives->exchange = zazen_mpi_exchange_;
    return ZAZEN_OK;
}

// Frees what zazen_collectives_from_mpi made. Collective; call it before MPI_Finalize.
static inline void zazen_collectives_free_mpi(zazen_collectives_t *collectives) {
    zazen_mpi_context_t *mpi = (zazen_mpi_context_t *)collectives->context;
    if (mpi == NULL)
        return;
    MPI_Comm_free(&mpi->comm);
    free(mpi);
    memset(collectives, 0, sizeof *collectives);
}

#ifdef __cplusplus
}
#endif

#endif // ZAZEN_MPI_H
