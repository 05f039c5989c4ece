/* Lists of reads and writes, and vectors of parts, whose results are printed: lists MODE FOLDER. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#define COUNT 100
#define BYTES 512
#define PLACE 0x2a5a5a0000LL
#define LARGE (9 << 20)

static struct aiocb cells[COUNT];
static struct aiocb *list[COUNT];
static char memory[COUNT][BYTES];
static volatile int told;

static void note(int signal)
{
    (void)signal;
    told++;
}

static unsigned sum(const volatile void *data, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)data;
    unsigned all = 1;
    while (bytes--)
        all = all * 31 + *at++;
    return all;
}

static void cell(int at, int fd, int what, void *data, size_t bytes, off_t offset)
{
    memset(&cells[at], 0, sizeof cells[at]);
    cells[at].aio_fildes = fd;
    cells[at].aio_lio_opcode = what;
    cells[at].aio_buf = data;
    cells[at].aio_nbytes = bytes;
    cells[at].aio_offset = offset;
    cells[at].aio_sigevent.sigev_notify = SIGEV_NONE;
    list[at] = &cells[at];
}

static void go(const char *what, int mode, int count)
{
    int outcome = lio_listio(mode, list, count, NULL);
    printf("%s: %d %s\n", what, outcome, outcome ? strerror(errno) : "");
    for (int at = 0; at < count; at++) {
        if (!list[at] || list[at]->aio_lio_opcode == LIO_NOP)
            continue;
        while (aio_error(list[at]) == EINPROGRESS) {
            const struct aiocb *one = list[at];
            aio_suspend(&one, 1, NULL);
        }
        int error = aio_error(list[at]);
        ssize_t moved = aio_return(list[at]);
        printf("%d: %s %zd", at, error ? strerror(error) : "", moved);
        if (list[at]->aio_lio_opcode == LIO_READ && moved > 0)
            printf(" %08x", sum(list[at]->aio_buf, moved));
        printf("\n");
    }
    fflush(stdout);
}

static int opened(const char *folder, const char *name, int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, flags, 0644);
    if (fd < 0)
        exit(2);
    return fd;
}

/* Each entry far behind the beginning: so its request can be told on its way. */
static void distant(int fd, int what)
{
    for (int at = 0; at < COUNT; at++)
        cell(at, fd, what, memory[at], BYTES, PLACE + at * BYTES);
}

static void all(const char *folder)
{
    int fd = opened(folder, "file", O_RDWR | O_CREAT | O_TRUNC), last;
    int readable = opened(folder, "file", O_RDONLY), directory = opened(folder, ".", O_RDONLY);
    int appends = opened(folder, "log", O_WRONLY | O_CREAT | O_APPEND);
    char *large = malloc(LARGE);

    for (int at = 0; at < COUNT; at++)
        memset(memory[at], 'a' + at % 26, BYTES);
    for (int at = 0; at < COUNT; at++)
        cell(at, fd, LIO_WRITE, memory[at], BYTES - at, at * BYTES);
    go("writes", LIO_WAIT, COUNT);
    memset(memory, 0, sizeof memory);
    for (int at = 0; at < COUNT; at++)
        cell(at, readable, LIO_READ, memory[at], BYTES, (COUNT - 1 - at) * BYTES + at);
    go("reads", LIO_WAIT, COUNT);

    /* In their order where they depend on each other; small and large, and none at all. */
    memset(large, 'x', LARGE);
    cell(0, fd, LIO_WRITE, large, LARGE, 5);
    cell(1, fd, LIO_READ, memory[1], 100, 0);
    cell(2, fd, LIO_WRITE, "later", 5, 50);
    cell(3, fd, LIO_READ, memory[3], 100, 40);
    cell(4, fd, LIO_READ, large, LARGE, 60);
    cell(5, fd, LIO_READ, memory[5], 0, 0);
    cell(6, fd, LIO_READ, memory[6], 100, LARGE - 10);
    cell(7, fd, LIO_READ, memory[7], 100, LARGE + 1000);
    cell(8, fd, LIO_NOP, NULL, 0, 0);
    list[9] = NULL;
    cell(10, fd, LIO_WRITE, "end", 3, LARGE + 20);
    go("mixed", LIO_WAIT, 11);

    /* Each has an error of its own. */
    cell(0, fd, LIO_READ, memory[0], 10, -1);
    cell(1, readable, LIO_WRITE, memory[1], 10, 0);
    cell(2, directory, LIO_READ, memory[2], 10, 0);
    cell(3, fd, LIO_READ, memory[3], 10, 3);
    cell(4, fd, LIO_READ, (void *)8, 10, 0);
    cell(5, -1, LIO_READ, memory[5], 10, 0);
    cell(6, fd, LIO_READ, memory[6], 10, 7);
    cell(7, fd, 99, memory[7], 10, 7);
    cell(8, fd, LIO_WRITE, memory[8], 10, -2);
    cell(9, fd, LIO_WRITE, "good", 4, 9);
    go("errors", LIO_WAIT, 10);

    for (last = 0; last < 40; last++) {
        snprintf(memory[last], BYTES, "line %d\n", last);
        cell(last, appends, LIO_WRITE, memory[last], strlen(memory[last]), 0);
    }
    go("appended", LIO_WAIT, last);

    struct sigaction action = {.sa_handler = note};
    sigaction(SIGUSR1, &action, NULL);
    for (int at = 0; at < 3; at++) {
        cell(at, fd, LIO_READ, memory[at], 10, at);
        cells[at].aio_sigevent.sigev_notify = SIGEV_SIGNAL;
        cells[at].aio_sigevent.sigev_signo = SIGUSR1;
    }
    go("told", LIO_NOWAIT, 3);
    for (int turn = 0; turn < 1000 && !told; turn++)
        usleep(10000);
    printf("told %d\n", told > 0);
    int outcome = lio_listio(7, list, 3, NULL);
    printf("mode %d %s\n", outcome, strerror(errno));

    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    cell(0, fd, LIO_WRITE, memory[0], 100, 850);
    cell(1, fd, LIO_WRITE, memory[1], 100, 950);
    cell(2, fd, LIO_WRITE, memory[2], 100, 1000);
    go("limited", LIO_WAIT, 3);
    lseek(fd, 0, SEEK_CUR);
    printf("at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    if (strcmp(words[1], "all") == 0) {
        all(words[2]);
        return 0;
    }
    int fd = opened(words[2], "file", O_RDWR | O_CREAT);
    if (strcmp(words[1], "reads") == 0 || strcmp(words[1], "writes") == 0) {
        int reads = words[1][0] == 'r';
        distant(fd, reads ? LIO_READ : LIO_WRITE);
        go(words[1], LIO_WAIT, COUNT);
    } else {
        struct iovec parts[COUNT];
        for (int at = 0; at < COUNT; at++) {
            memset(memory[at], at, BYTES);
            parts[at] = (struct iovec){memory[at], at * 5};
        }
        printf("%zd ", pwritev(fd, parts, COUNT, 3));
        printf("%zd ", writev(fd, parts, COUNT));
        lseek(fd, 10, SEEK_SET);
        printf("%zd ", readv(fd, parts, COUNT));
        printf("%zd %08x\n", preadv(fd, parts, COUNT, 7), sum(memory, sizeof memory));
    }
    return 0;
}
