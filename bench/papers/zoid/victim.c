/* victim.c: a client that calls in all ways it can, at random, until it is killed.
 *
 *   victim SOCKET FILE SEED */
#define _GNU_SOURCE
#include "clock.h"
#include "rates.h"
#include "zazen_connect.h"

#define PLUGIN 120
#define BYTES_MAX (3u << 20)
#define HELD 8

static uint64_t state;

static uint64_t below(uint64_t bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 20) % bound;
}

/* Small, medium and large ones alike. */
static uint64_t some_bytes(void) {
    return below((uint64_t)64 << below(16)) + 1;
}

int main(int argc, char **argv) {
    struct zazen_connect_options options = {.struct_size = sizeof options};
    struct zazen_stub_connection *connection;
    char *own = calloc(1, BYTES_MAX), *held[HELD] = {NULL};
    uint64_t room[HELD] = {0};
    if (argc != 4 || own == NULL)
        return 2;
    state = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    options.carrier = (uint32_t)below(3);
    if (zazen_connect(argv[1], &options, &connection) != ZAZEN_CALL_OK)
        return fprintf(stderr, "victim: %s\n", zazen_connect_error()), 1;
    zazen_stub_set_default(connection);
    puts("ready");
    fflush(stdout);
    for (;;) {
        uint64_t nth = below(HELD), bytes = some_bytes();
        char *data = held[nth] != NULL && below(2) == 0 ? held[nth] : own;
        if (data != own && bytes > room[nth])
            bytes = room[nth];
        switch (below(7)) {
        case 0:
            rates_put(data, bytes);
            break;
        case 1:
            rates_get(data, &bytes);
            break;
        case 2:
            /* Left open, as often as not. */
            rates_close(rates_open(argv[2]) - (int)below(2));
            break;
        case 3: {
            int file = rates_open(argv[2]);
            rates_pwrite(file, data, bytes, (int64_t)below(1 << 20));
            rates_pread(file, data, &bytes, (int64_t)below(1 << 20));
            rates_close(file);
            break;
        }
        case 4:
            zazen_free(held[nth]);
            room[nth] = bytes;
            held[nth] = zazen_alloc(connection, PLUGIN, bytes);
            break;
        default:
            rates_nothing();
        }
    }
}
