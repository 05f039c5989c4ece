/* zazen_loopback.c: zazen_stub.h implemented over a plug-in in the same process.
 *
 * Invariants: no lock is held while a plug-in's code runs; a registered userbuf is completed
 * exactly once, whatever becomes of the call; all that a call allocated is freed when it ends. */
#define _GNU_SOURCE
#include "zazen_loopback.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HANDLES_MAX 65536
#define REPLY_FDS_MAX 64

struct zazen_loopback {
    const struct zazen_plugin *plugin;
    void *object; /* dlopen's */
    struct zazen_host host;
    struct zazen_loopback_options options;
    uint64_t clients;
};

struct handle {
    char kind[32];
    int64_t value;
    int used;
};

struct zazen_stub_connection {
    struct zazen_loopback *loopback;
    struct zazen_caller caller;
    pthread_mutex_t lock; /* of the handles; never held over a plug-in's code */
    struct handle *handles;
    uint64_t handle_room;
    uint64_t handle_count;
};

/* Memory of a call: a list, freed as one. The payload keeps malloc's 16-byte alignment. */
struct block {
    struct block *next;
    uint64_t bytes;
};

/* One call in progress. */
struct running {
    struct zazen_call call;
    struct running *outer; /* a plug-in may itself be a client of another */
    struct zazen_stub_connection *connection;
    struct zazen_loopback *loopback;
    struct zazen_stub_call *stub; /* NULL for a raw call */
    struct block *blocks;
    void *reply;
    uint64_t reply_bytes;
    int reply_fds[REPLY_FDS_MAX];
    uint32_t reply_fd_count;
    uint32_t userbuf_taken;
    zazen_completion *completion;
    void *completion_argument;
    uint64_t *sent; /* per output segment */
};

static __thread struct running *current;
static __thread int32_t last_status;
static struct zazen_stub_connection *default_connection;
static const char *const levels[] = {"", "error", "warning", "info", "debug"};

static void *keep(struct running *running, uint64_t bytes) {
    struct block *block;
    if (bytes > PTRDIFF_MAX - sizeof *block)
        return NULL;
    block = calloc(1, sizeof *block + (size_t)bytes);
    if (block == NULL)
        return NULL;
    block->next = running->blocks;
    block->bytes = bytes;
    running->blocks = block;
    return block + 1;
}

/* What a plug-in asks of its host at any time. */

static int host_caller(struct zazen_caller *caller) {
    uint32_t bytes = caller->struct_size < sizeof *caller ? caller->struct_size : (uint32_t)sizeof *caller;
    if (current == NULL || current->connection == NULL)
        return -1;
    memcpy(caller, &current->connection->caller, bytes);
    caller->struct_size = bytes;
    return 0;
}

static uint32_t log_level = ZAZEN_LOG_WARNING;

static void host_log(int level, const char *text) {
    if (level >= 1 && level <= 4 && (uint32_t)level <= __atomic_load_n(&log_level, __ATOMIC_RELAXED))
        fprintf(stderr, "plug-in: %s: %s\n", levels[level], text);
}

static void *host_allocate(uint64_t bytes) {
    return bytes > PTRDIFF_MAX ? NULL : calloc(1, bytes == 0 ? 1 : (size_t)bytes);
}

static void host_release(void *buffer) { free(buffer); }

static int host_register_userbuf(const void *buffer, zazen_completion *completion, void *argument) {
    if (current == NULL || current->userbuf_taken)
        return -1;
    current->userbuf_taken = 1;
    current->call.userbuf = buffer;
    current->completion = completion;
    current->completion_argument = argument;
    return 0;
}

static int host_groups(uint32_t *groups, uint32_t room) {
    gid_t own[NGROUPS_MAX];
    int count = getgroups(NGROUPS_MAX, own);
    if (current == NULL || count < 0)
        return -1;
    for (int i = 0; i < count && (uint32_t)i < room; i++)
        groups[i] = (uint32_t)own[i];
    return count;
}

static int host_cancelled(void) { return 0; }

/* What a dispatcher asks during a call. */

static void *op_allocate(struct zazen_call *call, uint64_t bytes) { return keep(call->host_data, bytes); }

static int32_t op_receive(struct zazen_call *call, uint32_t index, void **pointer) {
    struct running *running = call->host_data;
    void *from = running->stub == NULL ? NULL : running->stub->in[index].pointer;
    uint64_t bytes = call->in_bytes[index];
    int bounce = running->stub == NULL || (running->loopback->options.flags & ZAZEN_LOOPBACK_BOUNCE) != 0;
    if (*pointer == NULL && !bounce) {
        *pointer = from;
        return ZAZEN_CALL_OK;
    }
    if (*pointer == NULL)
        *pointer = keep(running, bytes + 1);
    if (*pointer == NULL)
        return ZAZEN_CALL_NO_MEMORY;
    if (from == NULL)
        memset(*pointer, 0, (size_t)bytes);
    else if (*pointer != from)
        zazen_copy(*pointer, from, bytes);
    return ZAZEN_CALL_OK;
}

static int32_t op_prepare(struct zazen_call *call, uint32_t index, void **pointer) {
    struct running *running = call->host_data;
    if (running->stub != NULL && (running->loopback->options.flags & ZAZEN_LOOPBACK_BOUNCE) == 0) {
        *pointer = running->stub->out[index].pointer;
        return ZAZEN_CALL_OK;
    }
    *pointer = keep(running, call->out_bytes[index] + 1);
    return *pointer == NULL ? ZAZEN_CALL_NO_MEMORY : ZAZEN_CALL_OK;
}

static int32_t op_send(struct zazen_call *call, uint32_t index, const void *pointer, uint64_t bytes) {
    struct running *running = call->host_data;
    if (index >= call->out_count || bytes > call->out_bytes[index])
        return ZAZEN_CALL_BAD_REPLY;
    running->sent[index] = bytes;
    if (running->stub != NULL && running->stub->out[index].pointer != pointer)
        zazen_copy(running->stub->out[index].pointer, pointer, bytes);
    return ZAZEN_CALL_OK;
}

static int32_t op_reply(struct zazen_call *call, uint64_t bytes, void **message) {
    struct running *running = call->host_data;
    if (bytes > call->reply_bytes_max || running->reply != NULL)
        return ZAZEN_CALL_BAD_REPLY;
    running->reply = malloc(bytes == 0 ? 1 : (size_t)bytes);
    running->reply_bytes = bytes;
    *message = running->reply;
    return running->reply == NULL ? ZAZEN_CALL_NO_MEMORY : ZAZEN_CALL_OK;
}

static int32_t op_send_fd(struct zazen_call *call, int fd, int64_t *index) {
    struct running *running = call->host_data;
    if (running->reply_fd_count == REPLY_FDS_MAX) {
        close(fd);
        return ZAZEN_CALL_TOO_LARGE;
    }
    *index = running->reply_fd_count;
    running->reply_fds[running->reply_fd_count++] = fd;
    return ZAZEN_CALL_OK;
}

/* Handles: a number is the index into the client's table, plus 1. */

static struct handle *find(struct zazen_stub_connection *connection, const char *kind, int64_t number) {
    struct handle *handle;
    if (number < 1 || (uint64_t)number > connection->handle_room)
        return NULL;
    handle = &connection->handles[number - 1];
    return handle->used && strcmp(handle->kind, kind) == 0 ? handle : NULL;
}

int32_t zazen_loopback_handle_enter(struct zazen_stub_connection *connection, const char *kind, int64_t value,
                                    int64_t *handle) {
    int32_t status = ZAZEN_CALL_TOO_LARGE;
    uint64_t at = 0;
    pthread_mutex_lock(&connection->lock);
    while (at < connection->handle_room && connection->handles[at].used)
        at++;
    if (at == connection->handle_room && at < HANDLES_MAX) {
        uint64_t room = at == 0 ? 16 : at * 2;
        struct handle *more = realloc(connection->handles, (size_t)room * sizeof *more);
        if (more != NULL) {
            memset(more + at, 0, (size_t)(room - at) * sizeof *more);
            connection->handles = more;
            connection->handle_room = room;
        }
    }
    if (at < connection->handle_room && strlen(kind) < sizeof connection->handles->kind) {
        strcpy(connection->handles[at].kind, kind);
        connection->handles[at].value = value;
        connection->handles[at].used = 1;
        connection->handle_count++;
        *handle = (int64_t)at + 1;
        status = ZAZEN_CALL_OK;
    }
    pthread_mutex_unlock(&connection->lock);
    return status;
}

static int32_t look(struct zazen_stub_connection *connection, const char *kind, int64_t number,
                    int64_t *value, int remove) {
    struct handle *handle;
    pthread_mutex_lock(&connection->lock);
    handle = find(connection, kind, number);
    if (handle != NULL) {
        *value = handle->value;
        handle->used = !remove;
        connection->handle_count -= (uint64_t)remove;
    }
    pthread_mutex_unlock(&connection->lock);
    return handle == NULL ? ZAZEN_CALL_BAD_HANDLE : ZAZEN_CALL_OK;
}

int32_t zazen_loopback_handle_value(struct zazen_stub_connection *connection, const char *kind,
                                    int64_t handle, int64_t *value) {
    return look(connection, kind, handle, value, 0);
}

uint64_t zazen_loopback_handle_count(struct zazen_stub_connection *connection) {
    uint64_t count;
    pthread_mutex_lock(&connection->lock);
    count = connection->handle_count;
    pthread_mutex_unlock(&connection->lock);
    return count;
}

static int32_t op_handle_enter(struct zazen_call *call, const char *kind, int64_t value, int64_t *handle) {
    struct running *running = call->host_data;
    *handle = value;
    return running->connection == NULL
               ? ZAZEN_CALL_OK
               : zazen_loopback_handle_enter(running->connection, kind, value, handle);
}

static int32_t op_handle_get(struct zazen_call *call, const char *kind, int64_t handle, int64_t *value) {
    struct running *running = call->host_data;
    *value = handle;
    return running->connection == NULL ? ZAZEN_CALL_OK : look(running->connection, kind, handle, value, 0);
}

static int32_t op_handle_remove(struct zazen_call *call, const char *kind, int64_t handle, int64_t *value) {
    struct running *running = call->host_data;
    *value = handle;
    return running->connection == NULL ? ZAZEN_CALL_OK : look(running->connection, kind, handle, value, 1);
}

static const struct zazen_call_ops ops = {
    .struct_size = sizeof(struct zazen_call_ops),
    .allocate = op_allocate,
    .receive = op_receive,
    .prepare = op_prepare,
    .send = op_send,
    .reply = op_reply,
    .send_fd = op_send_fd,
    .handle_enter = op_handle_enter,
    .handle_get = op_handle_get,
    .handle_remove = op_handle_remove,
};

/* Runs a call that is set up; its reply is left in `running`. */
static int32_t run(struct running *running, uint32_t function) {
    const struct zazen_plugin *plugin = running->loopback->plugin;
    const struct zazen_function *entry;
    int32_t status;
    if (function >= plugin->function_count)
        return ZAZEN_CALL_NO_FUNCTION;
    entry = (const struct zazen_function *)(const void *)((const char *)plugin->functions +
                                                          function * plugin->function_bytes);
    running->sent = keep(running, (uint64_t)running->call.out_count * sizeof *running->sent + 1);
    if (running->sent == NULL)
        return ZAZEN_CALL_NO_MEMORY;
    running->call.struct_size = sizeof running->call;
    running->call.ops = &ops;
    running->call.host_data = running;
    running->outer = current;
    current = running;
    status = entry->dispatch(&running->call);
    current = running->outer;
    if (running->completion != NULL)
        running->completion(status, running->completion_argument);
    return status;
}

/* Frees what a call holds; with `all`, its reply and the descriptors that nobody took, too. */
static void clean(struct running *running, int all) {
    while (running->blocks != NULL) {
        struct block *block = running->blocks;
        running->blocks = block->next;
        free(block);
    }
    if (!all)
        return;
    free(running->reply);
    for (uint32_t i = 0; i < running->reply_fd_count; i++) {
        if (running->reply_fds[i] >= 0)
            close(running->reply_fds[i]);
    }
}

/* The request as it would be on a wire. */
static int32_t gather(struct running *running, const struct zazen_stub_call *stub) {
    unsigned char *message = keep(running, stub->request_bytes);
    uint64_t at = stub->fixed_bytes;
    if (message == NULL)
        return ZAZEN_CALL_NO_MEMORY;
    memcpy(message, stub->fixed, (size_t)stub->fixed_bytes);
    for (uint32_t i = 0; i < stub->tail_count; i++) {
        zazen_copy(message + at, stub->tail[i].pointer, stub->tail[i].bytes);
        at += (stub->tail[i].bytes + 7) & ~UINT64_C(7);
    }
    running->call.message = message;
    running->call.message_bytes = stub->request_bytes;
    return ZAZEN_CALL_OK;
}

/* Segment sizes, kept apart from the caller's memory, and within the limit. */
static int32_t sizes(struct running *running, const struct zazen_segment *segments, uint32_t count,
                     const uint64_t **bytes) {
    uint64_t *kept = keep(running, (uint64_t)count * sizeof *kept + 1);
    uint64_t total = 0;
    if (kept == NULL)
        return ZAZEN_CALL_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        kept[i] = segments[i].bytes;
        if (__builtin_add_overflow(total, kept[i], &total))
            return ZAZEN_CALL_TOO_LARGE;
    }
    *bytes = kept;
    return total > running->loopback->options.segment_bytes_max ? ZAZEN_CALL_TOO_LARGE : ZAZEN_CALL_OK;
}

static struct zazen_stub_connection *chosen(struct zazen_stub_connection *connection) {
    return connection != NULL ? connection : __atomic_load_n(&default_connection, __ATOMIC_ACQUIRE);
}

int32_t zazen_stub_bind(struct zazen_stub_connection *connection, const struct zazen_stub_service *service) {
    const struct zazen_plugin *plugin;
    connection = chosen(connection);
    if (connection == NULL)
        return ZAZEN_CALL_NO_SERVICE;
    plugin = connection->loopback->plugin;
    if (plugin->id != service->id || strcmp(plugin->name, service->name) != 0)
        return ZAZEN_CALL_NO_SERVICE;
    if (plugin->schema_hash != service->schema_hash || plugin->layout_hash != service->layout_hash)
        return ZAZEN_CALL_SCHEMA;
    return ZAZEN_CALL_OK;
}

int32_t zazen_stub_call(struct zazen_stub_connection *connection, const struct zazen_stub_service *service,
                        struct zazen_stub_call *stub) {
    const struct zazen_loopback_options *options;
    struct running *running;
    int32_t status = zazen_stub_bind(connection, service);
    if (status != ZAZEN_CALL_OK)
        return status;
    connection = chosen(connection);
    options = &connection->loopback->options;
    if (stub->request_bytes > options->message_bytes_max)
        return ZAZEN_CALL_TOO_LARGE;
    running = calloc(1, sizeof *running);
    if (running == NULL)
        return ZAZEN_CALL_NO_MEMORY;
    stub->runtime = running;
    running->connection = connection;
    running->loopback = connection->loopback;
    running->stub = stub;
    ZAZEN_TRY(gather(running, stub));
    ZAZEN_TRY(sizes(running, stub->in, stub->in_count, &running->call.in_bytes));
    ZAZEN_TRY(sizes(running, stub->out, stub->out_count, &running->call.out_bytes));
    running->call.in_count = stub->in_count;
    running->call.out_count = stub->out_count;
    running->call.fds = stub->fds;
    running->call.fd_count = stub->fd_count;
    running->call.reply_bytes_max = stub->reply_bytes_max < options->message_bytes_max
                                        ? stub->reply_bytes_max
                                        : options->message_bytes_max;
    if ((options->flags & ZAZEN_LOOPBACK_SHARED) != 0)
        running->call.flags |= ZAZEN_CALL_SHARED;
    if (options->capture != NULL)
        options->capture(stub, running->call.message, running->call.message_bytes, options->capture_argument);
    ZAZEN_TRY(run(running, stub->function));
    if (options->tamper != NULL && running->reply != NULL)
        options->tamper(running->reply, &running->reply_bytes, options->tamper_argument);
    stub->reply = running->reply;
    stub->reply_bytes = running->reply_bytes;
    stub->reply_fds = running->reply_fds;
    stub->reply_fd_count = running->reply_fd_count;
    for (uint32_t i = 0; i < stub->out_count; i++)
        stub->out[i].bytes = running->sent[i];
done:
    clean(running, 0);
    return status;
}

void zazen_stub_end(struct zazen_stub_call *stub, int32_t status) {
    last_status = status;
    if (stub->runtime != NULL) {
        clean(stub->runtime, 1);
        free(stub->runtime);
        stub->runtime = NULL;
    }
}

void zazen_stub_set_default(struct zazen_stub_connection *connection) {
    __atomic_store_n(&default_connection, connection, __ATOMIC_RELEASE);
}

int32_t zazen_stub_error(void) { return last_status; }

int32_t zazen_loopback_raw(struct zazen_loopback *loopback, uint32_t function, const void *message,
                           uint64_t bytes, const uint64_t *in_bytes, uint32_t in_count,
                           const uint64_t *out_bytes, uint32_t out_count, uint64_t reply_bytes_max) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct running *running = calloc(1, sizeof *running);
    int32_t status = ZAZEN_CALL_NO_MEMORY;
    if (running != NULL) {
        running->loopback = loopback;
        /* Exactly as long as the message, so that a sanitizer sees a step beyond it. */
        running->call.message = malloc(bytes == 0 ? 1 : (size_t)bytes);
        if (running->call.message != NULL) {
            void *kept = running->call.message;
            zazen_copy(kept, message, bytes);
            running->call.message_bytes = bytes;
            running->call.in_bytes = in_bytes;
            running->call.in_count = in_count;
            running->call.out_bytes = out_bytes;
            running->call.out_count = out_count;
            running->call.fds = &null;
            running->call.fd_count = null >= 0;
            running->call.reply_bytes_max = reply_bytes_max;
            status = run(running, function);
            free(kept);
        }
        clean(running, 1);
        free(running);
    }
    if (null >= 0)
        close(null);
    return status;
}

/* Starting and stopping. */

static struct zazen_loopback *refuse(struct zazen_loopback *loopback, const char **why, const char *reason) {
    if (why != NULL)
        *why = reason;
    free(loopback);
    return NULL;
}

struct zazen_loopback *zazen_loopback_start(const struct zazen_plugin *plugin,
                                            const struct zazen_loopback_options *options, const char **why) {
    struct zazen_loopback *loopback = calloc(1, sizeof *loopback);
    if (loopback == NULL)
        return refuse(loopback, why, "no memory");
    if (plugin->abi != ZAZEN_PLUGIN_ABI)
        return refuse(loopback, why, "the plug-in was made for another version of the plug-in interface");
    if (options != NULL)
        memcpy(&loopback->options, options,
               options->struct_size < sizeof *options ? options->struct_size : sizeof *options);
    if (loopback->options.process_count == 0)
        loopback->options.process_count = 1;
    if (loopback->options.message_bytes_max == 0)
        loopback->options.message_bytes_max = UINT64_C(256) << 20;
    if (loopback->options.segment_bytes_max == 0)
        loopback->options.segment_bytes_max = UINT64_C(16) << 30;
    if (loopback->options.log_level != 0)
        __atomic_store_n(&log_level, loopback->options.log_level, __ATOMIC_RELAXED);
    loopback->plugin = plugin;
    loopback->host = (struct zazen_host){
        .struct_size = sizeof(struct zazen_host),
        .abi = ZAZEN_PLUGIN_ABI,
        .process_count = loopback->options.process_count,
        .caller = host_caller,
        .log = host_log,
        .allocate = host_allocate,
        .release = host_release,
        .register_userbuf = host_register_userbuf,
        .groups = host_groups,
        .cancelled = host_cancelled,
    };
    if (plugin->init != NULL && plugin->init(&loopback->host) != 0)
        return refuse(loopback, why, "the plug-in's init refused");
    return loopback;
}

struct zazen_loopback *zazen_loopback_load(const char *path, const struct zazen_loopback_options *options,
                                           const char **why) {
    struct zazen_loopback *loopback;
    const struct zazen_plugin *plugin;
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL)
        return refuse(NULL, why, dlerror());
    plugin = dlsym(object, "zazen_plugin_v1");
    if (plugin == NULL) {
        dlclose(object);
        return refuse(NULL, why,
                      "this shared object exports no zazen_plugin_v1: link the generated _dispatch.c");
    }
    loopback = zazen_loopback_start(plugin, options, why);
    if (loopback == NULL)
        dlclose(object);
    else
        loopback->object = object;
    return loopback;
}

void zazen_loopback_stop(struct zazen_loopback *loopback) {
    if (loopback == NULL)
        return;
    if (loopback->plugin->fini != NULL)
        loopback->plugin->fini();
    if (loopback->object != NULL)
        dlclose(loopback->object);
    free(loopback);
}

struct zazen_stub_connection *zazen_loopback_connect(struct zazen_loopback *loopback) {
    struct zazen_stub_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return NULL;
    connection->loopback = loopback;
    connection->caller = (struct zazen_caller){
        .struct_size = sizeof(struct zazen_caller),
        .pid = (uint32_t)getpid(),
        .client = __atomic_add_fetch(&loopback->clients, 1, __ATOMIC_RELAXED),
        .generation = 1,
        .uid = (uint32_t)geteuid(),
        .gid = (uint32_t)getegid(),
        .rank = -1,
        .ranks = -1,
    };
    gethostname(connection->caller.host, sizeof connection->caller.host - 1);
    pthread_mutex_init(&connection->lock, NULL);
    if (loopback->plugin->client_attach != NULL)
        loopback->plugin->client_attach(&connection->caller);
    return connection;
}

void zazen_loopback_disconnect(struct zazen_stub_connection *connection, int32_t reason) {
    struct zazen_stub_connection *old = connection;
    if (connection == NULL)
        return;
    __atomic_compare_exchange_n(&default_connection, &old, NULL, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    if (connection->loopback->plugin->client_detach != NULL)
        connection->loopback->plugin->client_detach(&connection->caller, reason);
    pthread_mutex_destroy(&connection->lock);
    free(connection->handles);
    free(connection);
}
