/* zazen_loopback.h: a plug-in and its clients in one process, without a daemon: for tests of
 * plug-ins and of stubs.
 *
 * A loopback hosts one plug-in; each connection to it is a client of its own. Calls run in the
 * thread that makes them, through the same messages, dispatchers and checks as anywhere; only
 * nothing is isolated: a plug-in that crashes takes the process with it.
 *
 * Threads: connections may be used by several threads at once. Close them, then the loopback,
 * when no call runs.
 */
#ifndef ZAZEN_LOOPBACK_H
#define ZAZEN_LOOPBACK_H

#include "zazen_plugin.h"
#include "zazen_stub.h"

#ifdef __cplusplus
extern "C" {
#endif

struct zazen_loopback;

/* Zerocopy arguments are copied to memory of the host's, as a socket would; else the plug-in
 * gets the caller's own. */
#define ZAZEN_LOOPBACK_BOUNCE UINT32_C(1)
/* The plug-in gets the message as memory that the client can write (ZAZEN_CALL_SHARED). */
#define ZAZEN_LOOPBACK_SHARED UINT32_C(2)

/* Zero in a field means the default. */
struct zazen_loopback_options {
    uint32_t struct_size;
    uint32_t flags;
    int32_t process_count;      /* for INIT's nproc; default 1 */
    uint32_t log_level;         /* what of the plug-in's log goes to stderr; default ZAZEN_LOG_WARNING */
    uint64_t message_bytes_max; /* a request or reply, without zerocopy arguments; default 256 MiB */
    uint64_t segment_bytes_max; /* all zerocopy arguments of a call; default 16 GiB */
    /* Sees every request before its dispatcher does: for fuzzing. */
    void (*capture)(const struct zazen_stub_call *call, const void *message, uint64_t bytes, void *argument);
    void *capture_argument;
    /* May change every reply, and shorten it, before the client's stub sees it: for fuzzing. */
    void (*tamper)(void *message, uint64_t *bytes, void *argument);
    void *tamper_argument;
};

/* Starts hosting `plugin`, which must outlive the loopback: runs its init. NULL for default
 * options. On failure NULL, and *why (if not NULL) says why in static words. */
struct zazen_loopback *zazen_loopback_start(const struct zazen_plugin *plugin,
                                            const struct zazen_loopback_options *options, const char **why);

/* The same with the plug-in of the shared object at `path`; *why is then good until the thread's
 * next call.
 */
struct zazen_loopback *zazen_loopback_load(const char *path, const struct zazen_loopback_options *options,
                                           const char **why);

/* Runs the plug-in's fini and unloads it. Its connections must be closed. NULL is allowed. */
void zazen_loopback_stop(struct zazen_loopback *loopback);

/* A new client; NULL when there is no memory. */
struct zazen_stub_connection *zazen_loopback_connect(struct zazen_loopback *loopback);

/* The client leaves; the plug-in is told this reason (enum zazen_detach_reason). NULL is
 * allowed. */
void zazen_loopback_disconnect(struct zazen_stub_connection *connection, int32_t reason);

/* Gives this client a handle for a plug-in's value, or the value of a handle: for tests. */
int32_t zazen_loopback_handle_enter(struct zazen_stub_connection *connection, const char *kind, int64_t value,
                                    int64_t *handle);
int32_t zazen_loopback_handle_value(struct zazen_stub_connection *connection, const char *kind,
                                    int64_t handle, int64_t *value);

/* Handles a client has at present. */
uint64_t zazen_loopback_handle_count(struct zazen_stub_connection *connection);

/* Hands a dispatcher a message as it is, for fuzzing: segments are zeros of the sizes given,
 * every handle stands for itself, descriptor 0 is /dev/null. The transport status. */
int32_t zazen_loopback_raw(struct zazen_loopback *loopback, uint32_t function, const void *message,
                           uint64_t bytes, const uint64_t *in_bytes, uint32_t in_count,
                           const uint64_t *out_bytes, uint32_t out_count, uint64_t reply_bytes_max);

#ifdef __cplusplus
}
#endif
#endif
