/* zazen_fuzz.h: the engine of the generated fuzz tests: valid requests, captured from the client
 * stubs, are mutated and handed to the dispatchers; whatever comes out, no sanitizer may
 * complain and no buffer may stay behind. */
#ifndef ZAZEN_FUZZ_H
#define ZAZEN_FUZZ_H

#include "zazen_loopback.h"
#include "zazen_selftest.h"

#define ZAZEN_FUZZ_SEGMENTS 64
#define ZAZEN_FUZZ_SEGMENT_BYTES 65536

struct zazen_fuzz_target {
    const struct zazen_plugin *plugin;
    int32_t (*bind)(struct zazen_stub_connection *connection);
    void (*const *rounds)(uint64_t *seed); /* one valid call of each function */
    struct zazen_stub_connection **connection;
};

/* A request on its own. */
struct zazen_fuzz_message {
    uint32_t function;
    uint32_t in_count;
    uint32_t out_count;
    uint64_t in_bytes[ZAZEN_FUZZ_SEGMENTS];
    uint64_t out_bytes[ZAZEN_FUZZ_SEGMENTS];
    uint64_t bytes;
    unsigned char *message;
};

static inline int32_t zazen_fuzz_run(struct zazen_loopback *loopback,
                                     const struct zazen_fuzz_message *message) {
    return zazen_loopback_raw(loopback, message->function, message->message, message->bytes,
                              message->in_bytes, message->in_count, message->out_bytes, message->out_count,
                              UINT64_C(1) << 20);
}

/* libFuzzer's bytes: function, counts, segment sizes (16 bits each), message. */
static inline int zazen_fuzz_one(const struct zazen_fuzz_target *target, const uint8_t *data, size_t size) {
    static struct zazen_loopback *loopback;
    struct zazen_fuzz_message message = {0};
    size_t at = 3;
    if (loopback == NULL)
        loopback = zazen_loopback_start(target->plugin, NULL, NULL);
    if (loopback == NULL || size < at)
        return -1;
    message.function = data[0];
    message.in_count = data[1] % ZAZEN_FUZZ_SEGMENTS;
    message.out_count = data[2] % ZAZEN_FUZZ_SEGMENTS;
    if (size < at + 2 * (size_t)(message.in_count + message.out_count))
        return -1;
    for (uint32_t i = 0; i < message.in_count; i++, at += 2)
        message.in_bytes[i] = data[at] | (uint64_t)data[at + 1] << 8;
    for (uint32_t i = 0; i < message.out_count; i++, at += 2)
        message.out_bytes[i] = data[at] | (uint64_t)data[at + 1] << 8;
    message.bytes = size - at;
    message.message = (unsigned char *)(uintptr_t)(data + at);
    zazen_fuzz_run(loopback, &message);
    return 0;
}

static inline void zazen_fuzz_capture(const struct zazen_stub_call *call, const void *bytes, uint64_t count,
                                      void *argument) {
    struct zazen_fuzz_message *message = (struct zazen_fuzz_message *)argument;
    free(message->message);
    message->function = call->function;
    message->in_count = call->in_count < ZAZEN_FUZZ_SEGMENTS ? call->in_count : ZAZEN_FUZZ_SEGMENTS;
    message->out_count = call->out_count < ZAZEN_FUZZ_SEGMENTS ? call->out_count : ZAZEN_FUZZ_SEGMENTS;
    for (uint32_t i = 0; i < message->in_count; i++)
        message->in_bytes[i] = call->in[i].bytes;
    for (uint32_t i = 0; i < message->out_count; i++)
        message->out_bytes[i] = call->out[i].bytes;
    message->bytes = count;
    message->message = (unsigned char *)malloc(count == 0 ? 1 : (size_t)count);
    zazen_copy(message->message, bytes, count);
}

static inline uint64_t zazen_fuzz_number(uint64_t *g, uint64_t old) {
    static const uint64_t edges[] = {0,     1,         7,          8,         16,         255,           4096,
                                     65536, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    switch (zazen_below(g, 4)) {
    case 0:
        return old + zazen_below(g, 17) - 8;
    case 1:
        return edges[zazen_below(g, sizeof edges / sizeof edges[0])];
    case 2:
        return old * 2;
    default:
        return zazen_random(g) >> zazen_below(g, 64);
    }
}

/* One to four small lies. */
static inline void zazen_fuzz_mutate(uint64_t *g, struct zazen_fuzz_message *message, uint32_t functions) {
    for (uint64_t lies = 1 + zazen_below(g, 4); lies > 0; lies--) {
        uint64_t at = message->bytes == 0 ? 0 : zazen_below(g, message->bytes);
        /* Most lies belong where the fixed part is. */
        if (zazen_below(g, 2) == 0)
            at %= 128;
        switch (zazen_below(g, 8)) {
        case 0:
        case 1:
            if (at < message->bytes)
                message->message[at] ^= (unsigned char)(1u << zazen_below(g, 8));
            break;
        case 2:
        case 3:
        case 4:
            at &= ~UINT64_C(7);
            if (at + 8 <= message->bytes) {
                uint64_t number;
                memcpy(&number, message->message + at, 8);
                number = zazen_fuzz_number(g, number);
                memcpy(message->message + at, &number, 8);
            }
            break;
        case 5:
            message->bytes = at;
            break;
        case 6:
            if (zazen_below(g, 4) == 0)
                message->function = (uint32_t)zazen_below(g, functions + 1);
            else if (message->in_count > 0)
                message->in_bytes[zazen_below(g, message->in_count)] =
                    zazen_below(g, ZAZEN_FUZZ_SEGMENT_BYTES);
            break;
        default:
            if (message->out_count > 0)
                message->out_bytes[zazen_below(g, message->out_count)] =
                    zazen_below(g, ZAZEN_FUZZ_SEGMENT_BYTES);
            if (zazen_below(g, 8) == 0)
                message->in_count = (uint32_t)zazen_below(g, ZAZEN_FUZZ_SEGMENTS);
        }
    }
}

/* What a daemon that lies would answer. */
static inline void zazen_fuzz_tamper(void *message, uint64_t *bytes, void *argument) {
    struct zazen_fuzz_message reply = {0};
    reply.message = (unsigned char *)message;
    reply.bytes = *bytes;
    zazen_fuzz_mutate((uint64_t *)argument, &reply, 1);
    *bytes = reply.bytes;
}

/* Hosts the plug-in anew, and makes a connection to it the target's. */
static inline struct zazen_loopback *zazen_fuzz_start(const struct zazen_fuzz_target *target,
                                                      const struct zazen_loopback_options *options) {
    struct zazen_loopback *loopback = zazen_loopback_start(target->plugin, options, NULL);
    if (loopback == NULL)
        abort();
    *target->connection = zazen_loopback_connect(loopback);
    if (target->bind(*target->connection) != ZAZEN_CALL_OK)
        abort();
    return loopback;
}

static inline void zazen_fuzz_stop(const struct zazen_fuzz_target *target, struct zazen_loopback *loopback) {
    zazen_loopback_disconnect(*target->connection, ZAZEN_DETACH_CLOSED);
    zazen_loopback_stop(loopback);
}

/* Hostile requests to the dispatchers; how many were refused as malformed. */
static inline uint64_t zazen_fuzz_requests(const struct zazen_fuzz_target *target, uint64_t count,
                                           uint64_t *g) {
    uint64_t verdicts[16] = {0};
    struct zazen_fuzz_message message = {0};
    struct zazen_loopback_options options = {.struct_size = sizeof options};
    struct zazen_loopback *loopback;
    options.capture = zazen_fuzz_capture;
    options.capture_argument = &message;
    loopback = zazen_fuzz_start(target, &options);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t seed = zazen_random(g);
        target->rounds[i % target->plugin->function_count](&seed);
        zazen_fuzz_mutate(g, &message, target->plugin->function_count);
        verdicts[zazen_fuzz_run(loopback, &message) & 15]++;
    }
    free(message.message);
    zazen_fuzz_stop(target, loopback);
    printf("%s: %llu messages:", target->plugin->name, (unsigned long long)count);
    for (int32_t status = 0; status < 16; status++) {
        if (verdicts[status] != 0)
            printf(" %llu %s;", (unsigned long long)verdicts[status], zazen_call_strerror(status));
    }
    printf("\n");
    return verdicts[ZAZEN_CALL_MALFORMED];
}

/* Hostile replies to the stubs; how many were refused. */
static inline uint64_t zazen_fuzz_replies(const struct zazen_fuzz_target *target, uint64_t count,
                                          uint64_t *g) {
    uint64_t refused = 0, lies = zazen_random(g);
    struct zazen_loopback_options options = {.struct_size = sizeof options};
    struct zazen_loopback *loopback;
    options.tamper = zazen_fuzz_tamper;
    options.tamper_argument = &lies;
    loopback = zazen_fuzz_start(target, &options);
    zazen_tolerant = 1;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t seed = zazen_random(g);
        target->rounds[i % target->plugin->function_count](&seed);
        refused += zazen_stub_error() != ZAZEN_CALL_OK;
    }
    zazen_tolerant = 0;
    zazen_fuzz_stop(target, loopback);
    printf("%s: %llu replies: %llu refused\n", target->plugin->name, (unsigned long long)count,
           (unsigned long long)refused);
    return refused;
}

static inline int zazen_fuzz_main(const struct zazen_fuzz_target *target, int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 0) : 20000;
    uint64_t g = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    /* A test that nothing fails tests nothing. */
    return zazen_fuzz_requests(target, count, &g) == 0 || zazen_fuzz_replies(target, count / 2, &g) == 0;
}

#endif
