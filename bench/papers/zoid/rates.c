/* rates.c: the functions of rates.h. */
#define _GNU_SOURCE
#include "rates.h"

#include "zazen_plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define CACHE_LINE 64

void rates_nothing(void) {
}

int64_t rates_drop(const void *data, uint64_t bytes) {
    (void)data;
    return (int64_t)bytes;
}

int64_t rates_put(const void *data, uint64_t bytes) {
    const volatile unsigned char *at = data;
    int64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i += CACHE_LINE)
        sum += at[i];
    return sum;
}

int64_t rates_get(void *data, uint64_t *bytes) {
    memset(data, 0, *bytes);
    return (int64_t)*bytes;
}

/* Whose each descriptor is: a client number, 0 for nobody's. */
#define FILES_MAX 65536
static uint64_t owners[FILES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int rates_open(const char *path) {
    struct zazen_caller caller = {.struct_size = sizeof caller};
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return -1;
    if (file >= FILES_MAX || zazen_plugin_host()->caller(&caller) != 0) {
        close(file);
        errno = EMFILE;
        return -1;
    }
    pthread_mutex_lock(&lock);
    owners[file] = caller.client;
    pthread_mutex_unlock(&lock);
    return file;
}

static int give_up(int file) {
    owners[file] = 0;
    return close(file);
}

int rates_close(int file) {
    int closed;
    pthread_mutex_lock(&lock);
    closed = give_up(file);
    pthread_mutex_unlock(&lock);
    return closed;
}

void rates_detach(const struct zazen_caller *caller, int32_t reason) {
    (void)reason;
    pthread_mutex_lock(&lock);
    for (int file = 0; file < FILES_MAX; file++)
        if (owners[file] == caller->client)
            give_up(file);
    pthread_mutex_unlock(&lock);
}

int64_t rates_pwrite(int file, const void *data, uint64_t bytes, int64_t offset) {
    return pwrite(file, data, bytes, offset);
}

int64_t rates_pread(int file, void *data, uint64_t *bytes, int64_t offset) {
    ssize_t count = pread(file, data, *bytes, offset);
    *bytes = count < 0 ? 0 : (uint64_t)count;
    return count;
}
