/* The trial's own side. */
#define _GNU_SOURCE
#include "trial.h"
#include "zazen_plugin.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static int32_t counts[8];

static void count(int which, int32_t by) { __atomic_add_fetch(&counts[which], by, __ATOMIC_RELAXED); }

static void say(const char *what, const struct zazen_caller *caller, int reason) {
    char line[200];
    snprintf(line, sizeof line, "%s client %llu generation %llu pid %u reason %d user %u group %u", what,
             (unsigned long long)caller->client, (unsigned long long)caller->generation, caller->pid, reason,
             caller->uid, caller->gid);
    zazen_plugin_host()->log(ZAZEN_LOG_INFO, line);
}

int trial_init(const struct zazen_host *host) {
    count(0, 1);
    counts[7] = (int32_t)getpid();
    if (getenv("TRIAL_INIT") != NULL) {
        if (strcmp(getenv("TRIAL_INIT"), "refuse") == 0)
            return 5;
        if (strcmp(getenv("TRIAL_INIT"), "crash") == 0)
            abort();
    }
    return host != zazen_plugin_host();
}

/* User buffers that were made and not freed yet. */
static int32_t held;

static void *keep(void *buffer) {
    if (buffer != NULL)
        __atomic_fetch_add(&held, 1, __ATOMIC_RELAXED);
    return buffer;
}

static void *let_go(const void *buffer) {
    __atomic_fetch_sub(&held, 1, __ATOMIC_RELAXED);
    return (void *)(uintptr_t)buffer;
}

void trial_fini(void) {
    char line[100];
    snprintf(line, sizeof line, "trial fini, %d user buffers left", __atomic_load_n(&held, __ATOMIC_RELAXED));
    zazen_plugin_host()->log(ZAZEN_LOG_INFO, line);
}

void trial_attach(const struct zazen_caller *caller) {
    count(1, 1);
    say("attach", caller, -1);
}

void trial_detach(const struct zazen_caller *caller, int32_t reason) {
    count(2, 1);
    __atomic_store_n(&counts[3], reason, __ATOMIC_RELAXED);
    say("detach", caller, reason);
}

int trial_add(int a, int b) { return a + b; }

int trial_fail(int number) {
    errno = number;
    return -1;
}

int trial_upper(const char *text, char *upper) {
    size_t i;
    for (i = 0; text[i] != 0 && i < 63; i++)
        upper[i] = (char)toupper((unsigned char)text[i]);
    upper[i] = 0;
    return (int)i;
}

struct trial_point trial_swap(struct trial_point point) {
    return (struct trial_point){.x = point.y, .y = point.x};
}

int trial_copy(const void *from, void *to, size_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}

int trial_echo(const void *from, void *to, size_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}

int trial_lines(const void **from, const uint64_t *bytes, void **to, uint64_t *room, int lines) {
    for (int line = 0; line < lines; line++) {
        uint64_t less = (uint64_t)line < bytes[line] ? bytes[line] - (uint64_t)line : 0;
        if (less > room[line])
            less = room[line];
        for (uint64_t i = 0; i < less; i++)
            ((char *)to[line])[i] = ((const char *)from[line])[bytes[line] - 1 - i];
        room[line] = less;
    }
    return lines;
}

void *trial_sum_allocate_cb(uint64_t bytes) { return bytes == 13 ? NULL : keep(malloc(bytes + 1)); }

void trial_sum_release_cb(void *buffer, int32_t status) {
    (void)status;
    free(let_go(buffer));
}

uint64_t trial_sum(const void *bytes, uint64_t size) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < size; i++)
        sum += ((const unsigned char *)bytes)[i];
    free(let_go(bytes));
    return sum;
}

static void completed(int32_t status, void *buffer) {
    count(4, 1);
    __atomic_store_n(&counts[5], status, __ATOMIC_RELAXED);
    zazen_plugin_host()->release(let_go(buffer));
}

int trial_pattern(void *bytes, uint64_t *size) {
    unsigned char *buffer = keep(zazen_plugin_host()->allocate(*size));
    (void)bytes;
    if (buffer == NULL)
        return -1;
    for (uint64_t i = 0; i < *size; i++)
        buffer[i] = (unsigned char)(i * 7);
    if (zazen_plugin_host()->register_userbuf(buffer, completed, buffer) != 0)
        abort();
    *size /= 2;
    return 0;
}

int trial_box(int value) { return value; }
int trial_unbox(int box) { return box; }
int trial_drop(int box) { return box; }

int64_t trial_file_bytes(int file) {
    struct stat status;
    return fstat(file, &status) == 0 ? (int64_t)status.st_size : -1;
}

int trial_pipe(const char *text) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    if (write(ends[1], text, strlen(text)) < 0)
        return -1;
    close(ends[1]);
    return ends[0];
}

void trial_note(int number) { count(6, number); }

uint64_t trial_who(uint32_t *pid, uint32_t *uid, int32_t *rank, int32_t *ranks, uint64_t *generation,
                   char *host) {
    struct zazen_caller caller = {.struct_size = sizeof caller};
    if (zazen_plugin_host()->caller(&caller) != 0 || zazen_plugin_host()->groups(NULL, 0) < 0)
        return 0;
    *pid = caller.pid;
    *uid = caller.uid;
    *rank = caller.rank;
    *ranks = caller.ranks;
    *generation = caller.generation;
    memcpy(host, caller.host, 256);
    return caller.client;
}

void trial_counts(int32_t *into, uint32_t room) {
    for (uint32_t i = 0; i < room; i++)
        into[i] = i < 8 ? __atomic_load_n(&counts[i], __ATOMIC_RELAXED) : -1;
}

int trial_lie(int how, char *text, uint32_t *values, int *size) {
    memset(text, 'x', 8);
    if (how != 3)
        text[7] = 0;
    if (*size > 0)
        values[0] = 5;
    *size = how == 1 ? *size + 1 : how == 2 ? -1 : 1;
    return 0;
}

int trial_lie_stream(int how, void *bytes, uint64_t *size) {
    char *buffer;
    (void)bytes;
    if (how == 4)
        return 0;
    buffer = keep(zazen_plugin_host()->allocate(*size));
    zazen_plugin_host()->register_userbuf(buffer, completed, buffer);
    *size += how == 1;
    return 0;
}

/* The socket over which this process and its daemon talk: a plug-in has no business with it. */
static int control_socket(void) {
    for (int fd = 3; fd < 1024; fd++) {
        int kind = 0;
        socklen_t size = sizeof kind;
        struct ucred peer;
        socklen_t peer_size = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) == 0 && kind == SOCK_SEQPACKET &&
            getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) == 0 && peer.pid == getppid())
            return fd;
    }
    return -1;
}

static int deeper(volatile char *above) {
    volatile char here[4096];
    here[0] = above[0];
    return deeper(here) + here[1];
}

int trial_die(const char *how) {
    volatile int forever = 1;
    if (strcmp(how, "segv") == 0)
        *(volatile int *)(uintptr_t)forever = 1;
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "exit") == 0)
        exit(0);
    if (strcmp(how, "_exit") == 0)
        _exit(7);
    if (strcmp(how, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(how, "stack") == 0)
        return deeper((volatile char *)"");
    if (strcmp(how, "nonsense") == 0 && send(control_socket(), "\0nonsense", 9, MSG_NOSIGNAL) == 9)
        sleep(3600);
    if (strcmp(how, "half") == 0 && send(control_socket(), "\1\"Al", 5, MSG_NOSIGNAL) == 5)
        sleep(3600);
    if (strcmp(how, "babble") == 0)
        while (send(control_socket(), "\0\"Alive\"", 8, MSG_NOSIGNAL) == 8) {
        }
    if (strcmp(how, "sleep") == 0)
        sleep(3600);
    while (strcmp(how, "hang") == 0 && forever) {
    }
    return 0;
}

int64_t trial_leak(const char *what, uint64_t units) {
    int64_t taken = 0;
    int file = strcmp(what, "memory") == 0 ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC);
    while ((uint64_t)taken < units) {
        if (strcmp(what, "memory") == 0) {
            char *block = malloc(1 << 20);
            if (block == NULL)
                break;
            memset(block, 1, 1 << 20);
        } else if (dup(file) < 0) {
            break;
        }
        taken++;
    }
    return taken;
}

int trial_block(void) {
    int ends[2], result;
    char byte;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    do {
        result = (int)read(ends[0], &byte, 1);
    } while (result < 0 && errno == EINTR && !zazen_plugin_host()->cancelled());
    close(ends[0]);
    close(ends[1]);
    errno = EINTR;
    return result;
}
