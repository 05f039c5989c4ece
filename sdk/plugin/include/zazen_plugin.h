/* zazen_plugin.h: what a plug-in exports, and what its host gives it.
 *
 * A plug-in is a shared object that exports one `const struct zazen_plugin zazen_plugin_v1`; the
 * generated NAME_dispatch.c defines it. Its host loads the object (RTLD_NOW | RTLD_LOCAL),
 * checks abi, calls init once, then the functions' dispatchers from many threads at once, and
 * fini once after the last call has ended.
 *
 * Locks: a host holds none of its own while it runs a plug-in's code, and a plug-in must hold
 * none of its own from one callback to the next (from allocate to the function, from the
 * function to a completion): another thread may run in between, and the client may never come
 * back.
 *
 * What the client can do to a plug-in: the values of arguments are the client's word. Generated
 * dispatchers check offsets, lengths, counts and NULs; what a number or a struct's field means
 * is for the plug-in to check. Memory of zerocopy arguments may change while the function reads
 * it, when the transport shares it with the client: read such bytes once.
 */
#ifndef ZAZEN_PLUGIN_H
#define ZAZEN_PLUGIN_H

#include "zazen_segment.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZAZEN_PLUGIN_ABI UINT32_C(1)

/* Who is calling. `client` and `generation` together never come twice in a host's life. */
struct zazen_caller {
    uint32_t struct_size; /* set by the plug-in to its sizeof; the host fills no more than that */
    uint32_t pid;         /* 0 if unknown */
    uint64_t client;
    uint64_t generation;
    uint32_t uid;
    uint32_t gid;
    int32_t rank;  /* -1 if unknown */
    int32_t ranks; /* -1 if unknown */
    char host[256];
};

/* Why a client is gone. */
enum zazen_detach_reason {
    ZAZEN_DETACH_CLOSED = 0,   /* it said goodbye */
    ZAZEN_DETACH_DIED = 1,     /* its process ended, or its connection broke */
    ZAZEN_DETACH_EXPELLED = 2, /* it broke the protocol */
    ZAZEN_DETACH_SHUTDOWN = 3  /* the host is stopping */
};

/* How urgent a line of the log is. */
enum zazen_log_level { ZAZEN_LOG_ERROR = 1, ZAZEN_LOG_WARNING = 2, ZAZEN_LOG_INFO = 3, ZAZEN_LOG_DEBUG = 4 };

/* Called once when the host needs a registered buffer no more: sent (ZAZEN_CALL_OK), or never to
 * be sent, because the client is gone or the call was refused. From any thread. */
typedef void zazen_completion(int32_t status, void *argument);

enum zazen_host_flag {
    /* The kernel lets this process open, make, remove and rename names beneath the exported
     * folders only. */
    ZAZEN_HOST_CONFINED = 1
};

/* What a host offers. Valid from init to the end of fini. */
struct zazen_host {
    uint32_t struct_size;
    uint32_t abi;
    int32_t process_count; /* clients to expect, for INIT's nproc; -1 if unknown */
    uint32_t flags;        /* of enum zazen_host_flag; a host of before this field sets none */
    /* The caller of the function that this thread is running; 0, or -1 outside of one. */
    int (*caller)(struct zazen_caller *caller);
    /* One line for the host's log; no newline needed; copied. */
    void (*log)(int level, const char *text);
    /* A buffer that transports can send without a copy; NULL when the pool is exhausted.
     * Released by the plug-in. */
    void *(*allocate)(uint64_t bytes);
    void (*release)(void *buffer);
    /* Names the memory that the running function's zerocopy:userbuf output is in. The host reads
     * it until it calls `completion`, which it does exactly once. 0, or -1 outside of a function
     * or the second time within one. */
    int (*register_userbuf)(const void *buffer, zazen_completion *completion, void *argument);
    /* The supplementary groups of the caller of the function that this thread is running: how
     * many, of which the first `room` are put into `groups`; -1 outside of a function. */
    int (*groups)(uint32_t *groups, uint32_t room);
    /* 1 once the caller of the function that this thread is running is gone or wants it no more,
     * else 0. System calls that the function blocks in end with EINTR then: ask here, and
     * return. */
    int (*cancelled)(void);
    /* The folders that the operator lets callers reach by this plug-in, as absolute paths: the
     * `index`-th, NULL behind the last. Valid from init to the end of fini. A host of before
     * this field knows of none. */
    const char *(*exported)(uint32_t index);
    /* Folders that callers may reach by this plug-in besides, and that no path of this process
     * leads to: the absolute path by which callers name the `index`-th, and in `root` a descriptor
     * of it (O_PATH), which stays the host's; NULL behind the last. Valid from init to the end of
     * fini. A host of before this field knows of none. */
    const char *(*mounted)(uint32_t index, int *root);
};

struct zazen_call;

/* What a dispatcher asks of its host during a call; statuses are enum zazen_call_status. */
struct zazen_call_ops {
    uint32_t struct_size;
    uint32_t reserved;
    /* Zeroed memory, 16-byte aligned, freed by the host after the call; NULL when there is none. */
    void *(*allocate)(struct zazen_call *call, uint64_t bytes);
    /* Makes input segment `index` be here: at *pointer if that is not NULL, else where the host
     * likes, which it says. May wait for the client to send it. */
    int32_t (*receive)(struct zazen_call *call, uint32_t index, void **pointer);
    /* Memory for output segment `index`, zeroed or the client's own. */
    int32_t (*prepare)(struct zazen_call *call, uint32_t index, void **pointer);
    /* Output segment `index` is these bytes: what prepare() gave, or a registered userbuf. */
    int32_t (*send)(struct zazen_call *call, uint32_t index, const void *pointer, uint64_t bytes);
    /* Memory for the reply's message, all of which the dispatcher then writes; last of all,
     * once. */
    int32_t (*reply)(struct zazen_call *call, uint64_t bytes, void **message);
    /* Passes a descriptor, which becomes the host's; *index is its number in the reply. */
    int32_t (*send_fd)(struct zazen_call *call, int fd, int64_t *index);
    /* The caller's own table of handles of one kind: a client's number stands for a plug-in's
     * value. */
    int32_t (*handle_enter)(struct zazen_call *call, const char *kind, int64_t value, int64_t *handle);
    int32_t (*handle_get)(struct zazen_call *call, const char *kind, int64_t handle, int64_t *value);
    int32_t (*handle_remove)(struct zazen_call *call, const char *kind, int64_t handle, int64_t *value);
};

/* The message can change while it is looked at: it lies in memory that the client can write. */
#define ZAZEN_CALL_SHARED UINT32_C(1)

/* One call in progress. Made by the host, and the dispatcher's until it returns. All but the
 * message's own bytes (under ZAZEN_CALL_SHARED) is private to the host. */
struct zazen_call {
    uint32_t struct_size;
    uint32_t flags;
    void *message; /* private to this call and writable, unless ZAZEN_CALL_SHARED */
    uint64_t message_bytes;
    uint64_t reply_bytes_max;  /* what the client and the transport take */
    const uint64_t *in_bytes;  /* sizes of the segments that the client announces */
    const uint64_t *out_bytes; /* capacities likewise */
    uint32_t in_count;
    uint32_t out_count;
    const int *fds; /* open during the call; the host closes them: dup() what is to stay */
    uint32_t fd_count;
    uint32_t reserved;
    const void *userbuf; /* set by register_userbuf */
    const struct zazen_call_ops *ops;
    void *host_data;
};

/* One function of a plug-in. */
struct zazen_function {
    const char *name;
    int32_t (*dispatch)(struct zazen_call *call);
    uint32_t flags; /* ZAZEN_FUNCTION_... */
    uint32_t reserved;
    /* NULL, or what the dispatcher calls for memory before a zerocopy:userbuf input arrives. */
    void *(*allocate)(uint64_t bytes);
};

/* The plug-in does for a caller what this caller could do alone, with the identity of the
 * process that it runs in. A host runs it in a process for each user, group and set of groups,
 * which has become these for good; in its own process it serves its own user only. */
#define ZAZEN_PLUGIN_ACTS_AS_CALLER UINT32_C(1)

/* The entry table. */
struct zazen_plugin {
    uint32_t abi; /* ZAZEN_PLUGIN_ABI */
    uint32_t struct_size;
    uint32_t id;
    uint32_t function_count;
    const char *name;
    const char *schema; /* JSON, as in NAME_schema.json */
    uint64_t schema_hash;
    uint64_t layout_hash;
    const struct zazen_function *functions;
    uint64_t function_bytes; /* sizeof(struct zazen_function) where this was compiled: the table's stride */
    /* 0, or not for a refusal: the host then unloads the plug-in without fini. */
    int (*init)(const struct zazen_host *host);
    void (*fini)(void);
    void (*client_attach)(const struct zazen_caller *caller); /* NULL, or before a client's first call */
    void (*client_detach)(const struct zazen_caller *caller,
                          int32_t reason); /* NULL, or after its last one */
    uint32_t flags;                        /* ZAZEN_PLUGIN_... */
    uint32_t reserved;
};

/* The host's functions, for the plug-in's own code, from init to fini. Defined by the generated
 * dispatcher.
 */
__attribute__((visibility("hidden"))) const struct zazen_host *zazen_plugin_host(void);

/* Takes the request's fixed part exactly once; *base is then the message, which nobody else can
 * change. */
static inline int32_t zazen_call_begin(const struct zazen_call *call, void *fixed, uint64_t fixed_bytes,
                                       unsigned char **base) {
    *base = (unsigned char *)call->message;
    if (call->message_bytes < fixed_bytes)
        return ZAZEN_CALL_MALFORMED;
    if ((call->flags & ZAZEN_CALL_SHARED) != 0 || (uintptr_t)*base % 8 != 0) {
        *base =
            (unsigned char *)call->ops->allocate((struct zazen_call *)(uintptr_t)call, call->message_bytes);
        if (*base == NULL)
            return ZAZEN_CALL_NO_MEMORY;
        memcpy(*base, call->message, (size_t)call->message_bytes);
    }
    memcpy(fixed, *base, (size_t)fixed_bytes);
    return ZAZEN_CALL_OK;
}

/* Memory for an output of `bytes`; never NULL on success. */
static inline int32_t zazen_call_memory(struct zazen_call *call, uint64_t bytes, void **memory) {
    *memory = call->ops->allocate(call, bytes == 0 ? 1 : bytes);
    return *memory == NULL ? ZAZEN_CALL_NO_MEMORY : ZAZEN_CALL_OK;
}

/* Whether the client announced `bytes` for input segment `index`; then makes it be here, as
 * receive() does.
 */
static inline int32_t zazen_call_receive(struct zazen_call *call, uint32_t index, uint64_t bytes,
                                         uint64_t alignment, void **pointer) {
    int32_t status;
    if (index >= call->in_count || call->in_bytes[index] != bytes)
        return ZAZEN_CALL_MALFORMED;
    status = call->ops->receive(call, index, pointer);
    if (status != ZAZEN_CALL_OK)
        return status;
    if (bytes != 0 && (*pointer == NULL || (uintptr_t)*pointer % alignment != 0))
        return ZAZEN_CALL_MALFORMED;
    return ZAZEN_CALL_OK;
}

/* Whether the client announced room for `bytes` in output segment `index`; then memory for it. */
static inline int32_t zazen_call_prepare(struct zazen_call *call, uint32_t index, uint64_t bytes,
                                         uint64_t alignment, void **pointer) {
    int32_t status;
    if (index >= call->out_count || call->out_bytes[index] != bytes)
        return ZAZEN_CALL_MALFORMED;
    if (pointer == NULL)
        return ZAZEN_CALL_OK;
    *pointer = NULL;
    status = call->ops->prepare(call, index, pointer);
    if (status != ZAZEN_CALL_OK)
        return status;
    if (bytes != 0 && (*pointer == NULL || (uintptr_t)*pointer % alignment != 0))
        return ZAZEN_CALL_MALFORMED;
    return ZAZEN_CALL_OK;
}

/* Copies one piece into the reply's message and zeroes the gap after it. */
static inline void zazen_reply_put(void *message, const struct zazen_span *span, const void *from) {
    unsigned char *to = (unsigned char *)message + span->offset;
    uint64_t gap = (0 - span->bytes) & 7;
    zazen_copy(to, from, span->bytes);
    if (gap != 0)
        memset(to + span->bytes, 0, (size_t)gap);
}

#ifdef __cplusplus
}
#endif
#endif
