/* floor.c: the machine's own cost of what a call does: two processes; 64 bytes and BYTES more
 * there, 64 bytes back.
 *
 *   floor socketpair|tcp|tcpspin|futex|spin|memcpy BYTES ROUNDS [CPU CPU]
 *   floor pwrite|pread BYTES ROUNDS CPU CPU FILE
 *
 * spin and futex: the bytes are already in shared memory, and the other end reads each cache line
 * of them. tcpspin: both ends ask their sockets again and again. memcpy has no other end. pwrite
 * and pread: the other end spins too, and does the call on FILE; this end copies the bytes between
 * its own memory and the shared memory. No forwarder can do less. Prints one line of JSON. */
#define _GNU_SOURCE
#include "clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define HEAD 64
#define CACHE_LINE 64
/* The part of FILE that is written or read, one piece after another, as ops.c does. */
#define SPAN (64 << 20)

static size_t bytes;
static char *data, *copy, head[HEAD];
static struct line {
    _Alignas(CACHE_LINE) _Atomic uint32_t value;
} * there, *back;
static int is_futex, is_spinning, is_pwrite, is_pread, file = -1;

static void fail(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void on_cpu(const char *number) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(number), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fail("sched_setaffinity");
}

static int receive(int socket, char *into, size_t count) {
    while (count > 0) {
        ssize_t got = recv(socket, into, count, is_spinning ? MSG_DONTWAIT : 0);
        if (got < 0 && errno == EAGAIN)
            continue;
        if (got <= 0)
            return -1;
        into += got;
        count -= (size_t)got;
    }
    return 0;
}

static void give(int socket, char *first, size_t first_bytes, char *second, size_t second_bytes) {
    struct iovec parts[2] = {{first, first_bytes}, {second, second_bytes}}, *at = parts;
    int left = second_bytes > 0 ? 2 : 1;
    while (left > 0) {
        ssize_t sent = writev(socket, at, left);
        if (sent < 0)
            fail("writev");
        while (left > 0 && (size_t)sent >= at->iov_len) {
            sent -= (ssize_t)at->iov_len;
            at++;
            left--;
        }
        if (left > 0) {
            at->iov_base = (char *)at->iov_base + sent;
            at->iov_len -= (size_t)sent;
        }
    }
}

static uint64_t look(const volatile char *at) {
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i += CACHE_LINE)
        sum += (uint64_t)at[i];
    return sum;
}

static void await(struct line *line, uint32_t wanted) {
    uint32_t seen;
    while ((seen = atomic_load_explicit(&line->value, memory_order_acquire)) != wanted) {
        if (is_futex)
            syscall(SYS_futex, &line->value, FUTEX_WAIT, seen, NULL, NULL, 0);
        else
            __builtin_ia32_pause();
    }
}

static void post(struct line *line, uint32_t value) {
    atomic_store_explicit(&line->value, value, memory_order_release);
    if (is_futex)
        syscall(SYS_futex, &line->value, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void serve_socket(int socket) {
    while (receive(socket, head, HEAD) == 0 && receive(socket, data, bytes) == 0) {
        look(data);
        give(socket, head, HEAD, NULL, 0);
    }
    _exit(0);
}

/* The next piece of the file. */
static void call_file(uint32_t nth) {
    off_t at = (off_t)(nth % (SPAN / bytes) * bytes);
    ssize_t done = is_pwrite ? pwrite(file, data, bytes, at) : pread(file, data, bytes, at);
    if (done != (ssize_t)bytes)
        fail("the file");
}

static void serve_memory(void) {
    for (uint32_t nth = 1;; nth++) {
        await(there, nth);
        if (file >= 0)
            call_file(nth);
        else
            look(data);
        post(back, nth);
    }
}

static void tcp_pair(int pair[2]) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof place;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&place, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&place, &length) != 0 ||
        connect(pair[0], (struct sockaddr *)&place, length) != 0 ||
        (pair[1] = accept(listener, NULL, NULL)) < 0)
        fail("a TCP connection");
    for (int end = 0; end < 2; end++)
        setsockopt(pair[end], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    close(listener);
}

int main(int argc, char **argv) {
    uint64_t rounds, before, began;
    int pair[2] = {-1, -1}, is_tcp, is_socket, is_copy;
    struct samples samples;
    double cpu;
    if (argc < 4)
        return fprintf(stderr, "floor socketpair|tcp|tcpspin|futex|spin|memcpy BYTES ROUNDS\n"), 2;
    is_spinning = strcmp(argv[1], "tcpspin") == 0;
    is_tcp = is_spinning || strcmp(argv[1], "tcp") == 0;
    is_socket = is_tcp || strcmp(argv[1], "socketpair") == 0;
    is_copy = strcmp(argv[1], "memcpy") == 0;
    is_futex = strcmp(argv[1], "futex") == 0;
    is_pwrite = strcmp(argv[1], "pwrite") == 0;
    is_pread = strcmp(argv[1], "pread") == 0;
    bytes = strtoull(argv[2], NULL, 10);
    rounds = strtoull(argv[3], NULL, 10);
    if (is_pwrite || is_pread) {
        if (argc < 7 || bytes == 0 || bytes > SPAN)
            return fprintf(stderr, "floor pwrite|pread BYTES ROUNDS CPU CPU FILE\n"), 2;
        file = open(argv[6], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0 || ftruncate(file, SPAN) != 0)
            fail(argv[6]);
    }
    data = mmap(NULL, bytes + 2 * sizeof *there + 4096, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    copy = malloc(bytes + 1);
    if (data == MAP_FAILED || copy == NULL)
        fail("memory");
    there = (struct line *)(data + (bytes + 4095) / 4096 * 4096);
    back = there + 1;
    memset(data, 7, bytes);
    memset(copy, 7, bytes);
    if (strcmp(argv[1], "socketpair") == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        fail("socketpair");
    if (is_tcp)
        tcp_pair(pair);
    samples_init(&samples, rounds);
    if (!is_copy) {
        pid_t me = getpid(), child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != me)
                _exit(1);
            if (argc > 5)
                on_cpu(argv[5]);
            if (is_socket) {
                close(pair[0]);
                serve_socket(pair[1]);
            }
            serve_memory();
        }
        if (is_socket)
            close(pair[1]);
    }
    if (argc > 4)
        on_cpu(argv[4]);
    cpu = cpu_seconds();
    began = before = now_ns();
    for (uint64_t nth = 1; nth <= rounds + rounds / 10; nth++) {
        uint64_t after;
        if (is_copy) {
            memcpy(copy, data, bytes);
            __asm__ volatile("" : : "r"(copy) : "memory");
        } else if (is_socket) {
            give(pair[0], head, HEAD, copy, bytes);
            if (receive(pair[0], head, HEAD) != 0)
                fail("the other end");
        } else {
            if (is_pwrite)
                memcpy(data, copy, bytes);
            post(there, (uint32_t)nth);
            await(back, (uint32_t)nth);
            if (is_pread)
                memcpy(copy, data, bytes);
        }
        after = now_ns();
        if (nth > rounds / 10)
            samples_add(&samples, after - before);
        else
            began = after;
        before = after;
    }
    report(&samples, rounds, rounds * bytes, (double)(before - began) * 1e-9, cpu_seconds() - cpu);
    return 0;
}
