/* zazen_stub.h: what generated client stubs stand on. A runtime implements these functions.
 *
 * The loopback runtime (sdk/plugin/loopback) implements them against a plug-in in the same
 * process.
 *
 * Threads: every function may be called from any thread at once, on one connection too. The
 * error of a call is kept per thread. Ownership is said with each function.
 */
#ifndef ZAZEN_STUB_H
#define ZAZEN_STUB_H

#include "zazen_segment.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A way to plug-ins: opened and closed by functions of the runtime in use. */
struct zazen_stub_connection;

/* What a generated client is a client of. Static storage. */
struct zazen_stub_service {
    uint32_t struct_size;
    uint32_t id;          /* ID= of the header */
    const char *name;     /* the header's name without .h */
    uint64_t schema_hash; /* of the prototypes and annotations */
    uint64_t layout_hash; /* schema_hash, and the sizes and alignments of the structs as compiled */
    uint32_t function_count;
};

/* One call, filled in by a stub, which keeps all that it points to alive until zazen_stub_end(). */
struct zazen_stub_call {
    uint32_t struct_size;
    uint32_t function; /* index within the service */
    uint32_t flags;    /* ZAZEN_FUNCTION_... */
    uint32_t tail_count;
    const void *fixed;                /* the request's fixed part */
    uint64_t fixed_bytes;             /* a multiple of 8 */
    const struct zazen_segment *tail; /* its tail: each piece is to be padded with zeros to a multiple of 8 */
    uint64_t request_bytes;           /* fixed part and padded tail together */
    const struct zazen_segment *in;   /* zerocopy inputs; a transport may read them until the call ends */
    struct zazen_segment *out; /* zerocopy outputs: capacities; the runtime sets `bytes` to what came */
    uint32_t in_count;
    uint32_t out_count;
    const int *fds; /* descriptors to pass; they stay the caller's */
    uint32_t fd_count;
    uint32_t reply_fd_count;  /* set by the runtime */
    uint64_t reply_bytes_max; /* a longer reply is refused */
    void *reply;              /* set by the runtime: the reply's message, 8-byte aligned, unchanging */
    uint64_t reply_bytes;     /* set by the runtime */
    int *reply_fds;           /* set by the runtime: descriptors that came; -1 where taken */
    void *runtime;            /* the runtime's own */
};

/* Whether the far end has this service, made from the same header; ZAZEN_CALL_NO_SERVICE or
 * ZAZEN_CALL_SCHEMA if not. NULL means the default connection. A runtime does it by itself
 * before a service's first call on a connection. */
int32_t zazen_stub_bind(struct zazen_stub_connection *connection, const struct zazen_stub_service *service);

/* Performs the call and returns its transport status. NULL means the default connection. The
 * reply stays valid until zazen_stub_end(), which must follow, whatever the status. */
int32_t zazen_stub_call(struct zazen_stub_connection *connection, const struct zazen_stub_service *service,
                        struct zazen_stub_call *call);

/* Ends a call, even one that was never performed: frees the reply, closes descriptors that came
 * and were not taken, and keeps `status` as this thread's zazen_stub_error(). */
void zazen_stub_end(struct zazen_stub_call *call, int32_t status);

/* The connection of calls that name none; NULL for none. It stays the caller's, and must outlive
 * its use. */
void zazen_stub_set_default(struct zazen_stub_connection *connection);

/* The transport status of this thread's last call: apart from the function's own result and
 * errno. */
int32_t zazen_stub_error(void);

/* The reply's fixed part, copied. */
static inline int32_t zazen_stub_reply(const struct zazen_stub_call *call, void *fixed,
                                       uint64_t fixed_bytes) {
    if (call->reply_bytes < fixed_bytes || call->reply_bytes > call->reply_bytes_max)
        return ZAZEN_CALL_MALFORMED;
    memcpy(fixed, call->reply, (size_t)fixed_bytes);
    return ZAZEN_CALL_OK;
}

/* A piece of the reply's tail. */
static inline const void *zazen_stub_at(const struct zazen_stub_call *call, const struct zazen_span *span) {
    return (const unsigned char *)call->reply + span->offset;
}

/* Takes descriptor `index` of the reply: it is the caller's now. Negative numbers are passed on
 * as they are.
 */
static inline int32_t zazen_stub_fd(struct zazen_stub_call *call, int64_t index, int *fd) {
    *fd = (int)index;
    if (index < 0)
        return ZAZEN_CALL_OK;
    if (index >= (int64_t)call->reply_fd_count || call->reply_fds[index] < 0)
        return ZAZEN_CALL_MALFORMED;
    *fd = call->reply_fds[index];
    call->reply_fds[index] = -1;
    return ZAZEN_CALL_OK;
}

#ifdef __cplusplus
}
#endif
#endif
