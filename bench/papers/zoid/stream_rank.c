/* stream_rank.c: a rank of the tables that computes nothing. It takes blocks, reads them, and gives
 * results back.
 *
 *   stream_rank stream NAME RANK RESULT_BYTES    through the stream plug-in: stream_scatter()
 *   stream_rank borrow NAME RANK RESULT_BYTES    the same, with blocks in place: stream_borrow()
 *   stream_rank plain HOST PORT RANK HOST PORT RESULT_BYTES
 *                                                one socket in, one out (forwarded or not)
 *
 * Prints one line of JSON: blocks, bytes, seconds from the first block to the last, its own CPU
 * seconds. */
#define _GNU_SOURCE
#include "stream.h"
#include "zazen_connect.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double first, last;
static uint64_t blocks, gaps, missing, bytes;
static volatile uint64_t all;

static void came(uint64_t count) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    last = (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
    if (blocks++ == 0)
        first = last;
    bytes += count;
}

/* What a rank that computes does at least: it reads all that came. */
static void read_through(const void *samples, uint64_t count) {
    const uint64_t *at = samples;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count / 8; i++)
        sum += at[i];
    all += sum;
}

static void need(int fine, const char *what) {
    if (!fine) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void through_stream(int borrow, const char *name, int rank, uint64_t result_bytes) {
    int64_t stream = stream_attach(name, rank);
    struct stream_config config;
    struct stream_block block;
    uint64_t room, offset = 0;
    uint32_t mask_room;
    void *samples = NULL, *result, *memory = NULL;
    uint8_t *mask;
    need(stream >= 0, zazen_stub_error() != 0 ? zazen_connect_error() : "stream_attach");
    need(stream_describe(stream, &config) == 0, "stream_describe");
    room = (uint64_t)config.stations * config.block_packets * config.packet_samples * config.subbands *
           config.sample_bytes;
    mask_room = (config.stations * config.block_packets + 7) / 8;
    if (borrow) {
        int fd = stream_memory(stream);
        struct stat pages;
        need(fd >= 0 && fstat(fd, &pages) == 0, "stream_memory");
        memory = mmap(NULL, (size_t)pages.st_size, PROT_READ, MAP_SHARED, fd, 0);
        need(memory != MAP_FAILED, "mmap");
        close(fd);
    } else {
        samples = zazen_alloc(NULL, 17, room);
        need(samples != NULL, "memory");
    }
    result = zazen_alloc(NULL, 17, result_bytes + 8);
    mask = malloc(mask_room);
    need(result != NULL && mask != NULL, "memory");
    memset(result, 0, result_bytes);
    for (;;) {
        uint64_t size = room;
        uint32_t mask_bytes = mask_room;
        int more = borrow ? stream_borrow(stream, -1, &block, mask, &mask_bytes, &offset)
                          : stream_scatter(stream, -1, &block, mask, &mask_bytes, samples, &size);
        need(more >= 0, "no block");
        if (more == 0)
            break;
        if (block.is_dropped) {
            gaps++;
            need(stream_skip(stream, block.block, 0) >= 0, "stream_skip");
            continue;
        }
        missing += block.packets_missing;
        came(room);
        read_through(borrow ? (const char *)memory + offset : samples, room);
        if (borrow)
            need(stream_return(stream, block.block) == 0, "stream_return");
        if (result_bytes != 0)
            need(stream_gather(stream, block.block, 0, 1, result, result_bytes) >= 0, "stream_gather");
    }
    stream_close(stream);
}

static int connected(const char *host, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    need(fd >= 0 && inet_pton(AF_INET, host, &to.sin_addr) == 1, "address");
    need(connect(fd, (const struct sockaddr *)&to, sizeof to) == 0, "connect");
    return fd;
}

static int take(int fd, void *to, uint64_t count) {
    char *at = to;
    while (count > 0) {
        ssize_t done = read(fd, at, count);
        need(done >= 0, "read");
        if (done == 0)
            return 0;
        at += done;
        count -= (uint64_t)done;
    }
    return 1;
}

static void plain(char **words) {
    int in = connected(words[0], words[1]), out = connected(words[3], words[4]);
    uint32_t rank = (uint32_t)atoi(words[2]);
    uint64_t result_bytes = strtoull(words[5], NULL, 10), head[2], room = 0;
    char *block = NULL, *result = calloc(1, result_bytes + 1);
    need(write(in, &rank, 4) == 4, "write");
    while (take(in, head, sizeof head)) {
        if (head[1] > room) {
            room = head[1];
            block = realloc(block, room);
            need(block != NULL, "memory");
        }
        need(take(in, block, head[1]), "read");
        came(head[1]);
        read_through(block, head[1]);
        for (uint64_t at = 0; at < result_bytes;) {
            ssize_t done = write(out, result + at, result_bytes - at);
            need(done > 0, "write");
            at += (uint64_t)done;
        }
    }
    close(in);
    close(out);
}

int main(int count, char **words) {
    struct rusage usage;
    int borrow = count > 1 && strcmp(words[1], "borrow") == 0;
    if (count == 5 && (borrow || strcmp(words[1], "stream") == 0))
        through_stream(borrow, words[2], atoi(words[3]), strtoull(words[4], NULL, 10));
    else if (count == 8 && strcmp(words[1], "plain") == 0)
        plain(words + 2);
    else
        return fprintf(stderr, "stream_rank stream|borrow|plain ...: see the file's head\n"), 2;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"blocks\": %llu, \"gaps\": %llu, \"missing\": %llu, \"bytes\": %llu, "
           "\"seconds\": %.6f, \"cpu_s\": %.3f}\n",
           (unsigned long long)blocks, (unsigned long long)gaps, (unsigned long long)missing,
           (unsigned long long)bytes, last - first,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
    return 0;
}
