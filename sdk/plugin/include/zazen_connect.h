/* zazen_connect.h: connections of generated clients to daemons: the runtime libzazen_stub.so.
 *
 * A client needs none of this to call plug-ins of this machine's daemon: calls that name no
 * connection take one to $ZAZEN_SOCKET, or to where daemons listen if nobody says otherwise,
 * made at the first call.
 *
 * Threads: a connection may be used by any number of threads at once; their calls don't wait for
 * each other. Close it when no call runs. After a fork the child goes on with the same pointers:
 * its calls make connections of their own, as another client, which has none of its parent's
 * handles.
 *
 * A daemon or a plug-in's process that goes away costs the calls in progress
 * (ZAZEN_CALL_DISCONNECTED, ZAZEN_CALL_CRASHED, ZAZEN_CALL_TIMED_OUT); the next call connects
 * again, as a new client.
 */
#ifndef ZAZEN_CONNECT_H
#define ZAZEN_CONNECT_H

#include "zazen_stub.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What carries the calls. */
enum zazen_carrier {
    ZAZEN_CARRIER_AUTO = 0, /* shared memory as soon as that pays; TCP to other nodes */
    ZAZEN_CARRIER_UNIX = 1, /* a unix socket alone */
    ZAZEN_CARRIER_SHM = 2   /* shared memory from the first call on */
};

/* Zero in a field means the default. */
struct zazen_connect_options {
    uint32_t struct_size;
    uint32_t carrier;     /* enum zazen_carrier */
    int32_t rank;         /* with `ranks`: this process's MPI rank; else what the launcher's variables say */
    int32_t ranks;        /* how many there are; 0: ask the launcher's variables */
    uint32_t connect_ms;  /* patience for connecting; default 10000 */
    uint32_t call_ms;     /* patience for an answer (ZAZEN_CALL_TIMED_OUT); default none */
    const char *key_file; /* the cluster key, for other nodes; default $ZAZEN_KEY */
};

/* Connects to a daemon: `address` is a socket's path, HOST:PORT, or NULL for this machine's
 * daemon. NULL for default options. On failure *connection is NULL, and zazen_connect_error()
 * has the words. To be closed by zazen_disconnect(). */
int32_t zazen_connect(const char *address, const struct zazen_connect_options *options,
                      struct zazen_stub_connection **connection);

/* Says goodbye to the plug-ins and closes. No call may be running or come; buffers of
 * zazen_alloc() stay until they are freed. NULL is allowed. */
void zazen_disconnect(struct zazen_stub_connection *connection);

/* Why this thread's last call or zazen_connect() failed, for people; good until the thread's
 * next one. */
const char *zazen_connect_error(void);

/* Memory for zerocopy arguments of calls to plug-in number `plugin` over `connection` (NULL: the
 * default one), in memory shared with the plug-in's host where there is some; page-aligned,
 * contents unspecified. NULL when there is no memory. Freed by zazen_free(), also after
 * zazen_disconnect(). */
void *zazen_alloc(struct zazen_stub_connection *connection, uint32_t plugin, uint64_t bytes);
void zazen_free(void *buffer);

/* Asks that the call which thread `thread` (gettid(); 0: any) of this process waits for ends
 * early: the function's system call ends with EINTR, and zazen_host.cancelled() says 1. The call
 * still ends with the function's own answer. Async-signal-safe. 0, or -1 if that thread waits
 * for no call of a function marked `blocking`. */
int zazen_interrupt(int thread);

#ifdef __cplusplus
}
#endif
#endif
