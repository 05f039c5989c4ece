/* zazen_segment.h: what both ends of a forwarded call share: statuses, pieces of memory, checked
 * arithmetic.
 *
 * Included by zazen_stub.h (the caller's side) and zazen_plugin.h (the plug-in's side); nothing
 * to link with.
 *
 * A call's message is a fixed part (a struct of the generated NAME_wire.h) followed by a tail:
 * each string or array of the call in a fixed order, each beginning at a multiple of 8 bytes,
 * the gaps zero. The fixed part describes each piece of the tail by a span. There is exactly one
 * valid encoding: a span that does not begin where the one before it ended is malformed, so
 * spans can't overlap. Arguments marked zerocopy are not in the message: they are segments,
 * which a transport moves as it likes (a pointer into a shared pool, a socket, chunks).
 *
 * All sizes are 64 bits; fields are only ever added at the end of a struct, and struct_size says
 * how much is there.
 */
#ifndef ZAZEN_SEGMENT_H
#define ZAZEN_SEGMENT_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
/* Generated clients are C11, and may be compiled as C++11 too: these words of C have other names
 * there. */
#define _Static_assert static_assert
#define _Alignof alignof
#define __builtin_types_compatible_p(one, other) __is_same(one, other)
extern "C" {
#endif

/* What a call came to as far as its transport goes; what the function itself says (its result,
 * its errno) is apart. Numbers are ABI: never changed, only added to. */
enum zazen_call_status {
    ZAZEN_CALL_OK = 0,
    ZAZEN_CALL_MALFORMED = 1,    /* a message breaks the encoding: refused before the function ran */
    ZAZEN_CALL_TOO_LARGE = 2,    /* beyond max=, the transport's limits, or 64 bits; or a negative count */
    ZAZEN_CALL_NO_MEMORY = 3,    /* also: the plug-in's allocate callback gave NULL */
    ZAZEN_CALL_NULL_POINTER = 4, /* NULL for an argument that isn't nullok */
    ZAZEN_CALL_BAD_HANDLE = 5,   /* the caller has no such handle */
    ZAZEN_CALL_BAD_REPLY =
        6, /* the plug-in broke its header's promise (length beyond capacity, no NUL ...) */
    ZAZEN_CALL_NO_FUNCTION = 7,   /* the plug-in has no such function */
    ZAZEN_CALL_NO_SERVICE = 8,    /* no such plug-in there, or no connection at all */
    ZAZEN_CALL_SCHEMA = 9,        /* the two ends were made from different headers */
    ZAZEN_CALL_DISCONNECTED = 10, /* the other end went away; whether the function ran is not known */
    ZAZEN_CALL_TIMED_OUT = 11,    /* likewise */
    ZAZEN_CALL_UNSUPPORTED = 12,  /* this transport can't carry it (descriptors between nodes) */
    ZAZEN_CALL_CRASHED = 13       /* the plug-in's process ended during the call */
};

/* The errno nearest to a status: E2BIG, ENOMEM and ENOSYS as ZOID had them. */
static inline int zazen_call_errno(int32_t status) {
    switch (status) {
    case ZAZEN_CALL_OK:
        return 0;
    case ZAZEN_CALL_MALFORMED:
        return EPROTO;
    case ZAZEN_CALL_TOO_LARGE:
        return E2BIG;
    case ZAZEN_CALL_NO_MEMORY:
        return ENOMEM;
    case ZAZEN_CALL_NULL_POINTER:
        return EFAULT;
    case ZAZEN_CALL_BAD_HANDLE:
        return EBADF;
    case ZAZEN_CALL_NO_FUNCTION:
        return ENOSYS;
    case ZAZEN_CALL_NO_SERVICE:
        return ECONNREFUSED;
    case ZAZEN_CALL_SCHEMA:
        return EPROTONOSUPPORT;
    case ZAZEN_CALL_DISCONNECTED:
        return ECONNRESET;
    case ZAZEN_CALL_TIMED_OUT:
        return ETIMEDOUT;
    case ZAZEN_CALL_UNSUPPORTED:
        return EOPNOTSUPP;
    default:
        return EIO;
    }
}

/* The words for a status; static storage. */
static inline const char *zazen_call_strerror(int32_t status) {
    switch (status) {
    case ZAZEN_CALL_OK:
        return "done";
    case ZAZEN_CALL_MALFORMED:
        return "malformed message";
    case ZAZEN_CALL_TOO_LARGE:
        return "argument too large";
    case ZAZEN_CALL_NO_MEMORY:
        return "no memory at the far end";
    case ZAZEN_CALL_NULL_POINTER:
        return "NULL for an argument that must not be NULL";
    case ZAZEN_CALL_BAD_HANDLE:
        return "no such handle";
    case ZAZEN_CALL_BAD_REPLY:
        return "the plug-in broke the promise of its header";
    case ZAZEN_CALL_NO_FUNCTION:
        return "no such function";
    case ZAZEN_CALL_NO_SERVICE:
        return "no such plug-in, or no connection";
    case ZAZEN_CALL_SCHEMA:
        return "the two ends were generated from different headers";
    case ZAZEN_CALL_DISCONNECTED:
        return "the other end went away";
    case ZAZEN_CALL_TIMED_OUT:
        return "no answer in time";
    case ZAZEN_CALL_UNSUPPORTED:
        return "this transport cannot carry the call";
    case ZAZEN_CALL_CRASHED:
        return "the plug-in crashed during the call";
    default:
        return "unknown status";
    }
}

/* What a function of a plug-in promises about itself (schema, entry table, stubs). */
#define ZAZEN_FUNCTION_BLOCKING UINT32_C(1)   /* may block for long: not on a shared worker */
#define ZAZEN_FUNCTION_ONEWAY UINT32_C(2)     /* nobody waits for an answer */
#define ZAZEN_FUNCTION_IDEMPOTENT UINT32_C(4) /* running it twice is running it once: may be sent again */
#define ZAZEN_FUNCTION_ERRNO UINT32_C(8)      /* its errno travels */

/* Bytes of a fixed part, which both ends keep on their stacks, at most. */
#define ZAZEN_FIXED_BYTES_MAX 65536
/* Segments of one direction of a call, at most. */
#define ZAZEN_SEGMENTS_MAX 4096
/* Lines of an arr2d that are not segments, at most. */
#define ZAZEN_LINES_MAX 1048576

/* A piece of the tail: `offset` counts from the beginning of the message. */
struct zazen_span {
    uint64_t offset;
    uint64_t bytes;
};

/* A piece of memory. */
struct zazen_segment {
    void *pointer;
    uint64_t bytes;
};

/* Leaves for `done` unless `expression` is ZAZEN_CALL_OK. */
#define ZAZEN_TRY(expression)                                                                                \
    do {                                                                                                     \
        status = (expression);                                                                               \
        if (status != ZAZEN_CALL_OK)                                                                         \
            goto done;                                                                                       \
    } while (0)

/* Refuses with `why` unless `condition` holds. */
#define ZAZEN_NEED(condition, why) ZAZEN_TRY((condition) ? ZAZEN_CALL_OK : (why))

/* *at + bytes, up to the next multiple of 8. */
static inline int32_t zazen_advance(uint64_t *at, uint64_t bytes) {
    uint64_t end;
    if (bytes > UINT64_MAX - 7 || __builtin_add_overflow(*at, (bytes + 7) & ~UINT64_C(7), &end))
        return ZAZEN_CALL_TOO_LARGE;
    *at = end;
    return ZAZEN_CALL_OK;
}

/* The bytes of `count` elements, which must be at most `count_max` and addressable. */
static inline int32_t zazen_bytes(uint64_t count, uint64_t count_max, uint64_t element_bytes,
                                  uint64_t *bytes) {
    if (count > count_max || __builtin_mul_overflow(count, element_bytes, bytes) || *bytes > PTRDIFF_MAX)
        return ZAZEN_CALL_TOO_LARGE;
    return ZAZEN_CALL_OK;
}

/* A count out of a signed integer. */
static inline int32_t zazen_count_signed(int64_t value, uint64_t *count) {
    if (value < 0)
        return ZAZEN_CALL_TOO_LARGE;
    *count = (uint64_t)value;
    return ZAZEN_CALL_OK;
}

/* A count out of an unsigned integer. */
static inline int32_t zazen_count_unsigned(uint64_t value, uint64_t *count) {
    *count = value;
    return ZAZEN_CALL_OK;
}

/* The next span of a message under construction; `at` moves past it. */
static inline int32_t zazen_span_put(struct zazen_span *span, uint64_t *at, uint64_t bytes) {
    span->offset = *at;
    span->bytes = bytes;
    return zazen_advance(at, bytes);
}

/* Whether `span` is the one that a message of `end` bytes must have at `at`; `at` moves past it. */
static inline int32_t zazen_span_check(const struct zazen_span *span, uint64_t *at, uint64_t end) {
    if (span->offset != *at || *at > end || span->bytes > end - *at)
        return ZAZEN_CALL_MALFORMED;
    if (zazen_advance(at, span->bytes) != ZAZEN_CALL_OK || *at > end)
        return ZAZEN_CALL_MALFORMED;
    return ZAZEN_CALL_OK;
}

/* Whether these bytes are a string with its NUL at the very end and nowhere else. */
static inline int32_t zazen_string_check(const void *text, uint64_t bytes) {
    const char *nul = bytes == 0 ? NULL : (const char *)memchr(text, 0, (size_t)bytes);
    return nul != NULL && nul == (const char *)text + (bytes - 1) ? ZAZEN_CALL_OK : ZAZEN_CALL_MALFORMED;
}

/* memcpy that takes NULL for no bytes. */
static inline void zazen_copy(void *to, const void *from, uint64_t bytes) {
    if (bytes != 0)
        memcpy(to, from, (size_t)bytes);
}

#ifdef __cplusplus
}
#endif
#endif
