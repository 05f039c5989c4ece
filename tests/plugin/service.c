/* The service's own side. */
#include "service_wire.h"
#include "zazen_plugin.h"

#include <stdlib.h>

/* What happened, for the test: it finds these by dlsym. */
__attribute__((visibility(
    "default"))) int service_log[8]; /* init, fini, attach, detach, reason, completed, status, released */

int service_init(const struct zazen_host *host) {
    service_log[0] += host->process_count;
    return host != zazen_plugin_host();
}

void service_fini(void) { service_log[1]++; }

void service_attach(const struct zazen_caller *caller) { service_log[2] += caller->client > 0; }

void service_detach(const struct zazen_caller *caller, int32_t reason) {
    service_log[3] += caller->client > 0;
    service_log[4] = reason;
}

int service_open(int value) { return value; }

int service_value(int item) { return item; }

int service_close(int item) { return item; }

uint64_t service_who(uint32_t *pid, uint32_t *uid) {
    struct zazen_caller caller = {.struct_size = sizeof caller};
    if (zazen_plugin_host()->caller(&caller) != 0)
        return 0;
    *pid = caller.pid;
    *uid = caller.uid;
    return caller.client;
}

int service_text(int lie, char *text) {
    memset(text, 'x', 8);
    if (!lie)
        text[7] = 0;
    return 0;
}

int service_array(int lie, uint32_t *values, int *count) {
    if (*count > 0)
        values[0] = 5;
    *count = lie == 1 ? *count + 1 : lie == 2 ? -1 : 1;
    return 0;
}

static void completed(int32_t status, void *buffer) {
    service_log[5]++;
    service_log[6] = status;
    free(buffer);
}

int service_stream(int lie, void *bytes, uint64_t *count) {
    char *buffer = malloc(16);
    (void)bytes;
    memset(buffer, 's', 16);
    if (lie == 1) {
        free(buffer);
        return 0;
    }
    zazen_plugin_host()->register_userbuf(buffer, completed, buffer);
    if (zazen_plugin_host()->register_userbuf(buffer, completed, buffer) == 0)
        abort();
    *count = lie == 2 ? *count + 1 : 4;
    return 0;
}

int service_lines(int lie, void **lines, uint64_t *lengths, int count) {
    for (int i = 0; i < count; i++) {
        lengths[i] = lie ? lengths[i] + 1 : lengths[i] / 2;
        memset(lines[i], 'l', lie ? 0 : lengths[i]);
        lines[i] = NULL; /* the table is the plug-in's to spoil */
    }
    return 0;
}

void *service_take_allocate_cb(uint64_t bytes) { return bytes == 13 ? NULL : malloc(bytes + 1); }

void service_take_release_cb(void *buffer, int32_t status) {
    service_log[7] = status;
    free(buffer);
}

int service_take(int lie, const void *bytes, uint64_t count, int item) {
    int sum = item + lie;
    for (uint64_t i = 0; i < count; i++)
        sum += ((const unsigned char *)bytes)[i];
    free((void *)(uintptr_t)bytes);
    return sum;
}
