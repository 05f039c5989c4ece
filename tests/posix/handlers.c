/* Makes forwarded calls in a signal's handler, in the middle of other forwarded calls.
 *
 * handlers MODE FOLDER: prints "ready PID" and waits for a byte, then does what the mode says. The
 * handler of SIGUSR1 prints "handled" when its calls are done. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NAMES 40
#define ROUNDS 4

static char folder[2048], path[4096], other[4096];
static const char *mode;
static volatile long seen, failed, handled, ends;
static volatile int writer = -1;
static int number;

static void say(const char *word)
{
    if (write(1, word, strlen(word)) != (ssize_t)strlen(word))
        _exit(2);
}

/* Sizes are 1000 and more, so that no answer of zeros looks right. */
static long size_of(const char *name)
{
    struct stat stat;
    return lstat(name, &stat) == 0 ? (long)stat.st_size : -errno;
}

static void at_usr1(int signal)
{
    int before = errno;
    (void)signal;
    if (strcmp(mode, "looks") == 0 || strcmp(mode, "greeting") == 0)
        seen = size_of(other);
    else if (strcmp(mode, "opens") == 0)
        seen = truncate(other, 7);
    else if (strcmp(mode, "change") == 0)
        seen = chmod(other, 0600);
    else if (strcmp(mode, "write") == 0)
        seen = write(writer, "more", 4);
    say("handled\n");
    errno = before;
}

static void alarm_within_us(int most)
{
    static unsigned random = 1;
    random = random * 1103515245 + 12345;
    struct itimerval soon = {{0, 0}, {0, 1 + (random >> 8) % most}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Often, at any moment: each call is checked. Where the machine is busy and the handler takes long,
 * the program gets on only if it has as long until the next one. */
static void at_alarm(int signal)
{
    struct stat stat;
    int before = errno;
    long began_us = now_us(), took_us;
    (void)signal;
    handled++;
    if (fstat(number, &stat) != 0 || stat.st_size != 1000 + NAMES)
        failed++;
    if (lseek(number, 7, SEEK_SET) != 7)
        failed++;
    if (lstat("../here/held-05", &stat) != 0 || stat.st_size != 1005)
        failed++;
    took_us = now_us() - began_us;
    if (!ends)
        alarm_within_us(took_us < 200 ? 200 : took_us < 100000 ? 2 * took_us : 200000);
    errno = before;
}

static void name_of(char *out, int round, int at)
{
    sprintf(out, "%s/%d/%s-%02d", folder, round, at < 2 ? "a" : "held", at);
}

/* Looks at names in their order: the third look asks for many that follow. None of these is used,
 * because the program hears something then; so the fourth look asks for four. */
static void look(int round)
{
    struct stat stats[NAMES];
    int there[NAMES];
    char byte;
    name_of(other, round, strcmp(mode, "looks") == 0 ? 4 : 5);
    for (int at = 0; at < 3; at++) {
        name_of(path, round, at);
        there[at] = lstat(path, &stats[at]) == 0;
    }
    say("half\n");
    if (read(0, &byte, 1) != 1)
        exit(2);
    if (strcmp(mode, "write") == 0) {
        writer = open(other, O_WRONLY | O_APPEND);
        /* One whose bytes come along: so something is kept already. */
        name_of(path, round, 9);
        int reader = open(path, O_RDONLY);
        if (writer < 0 || reader < 0 || read(reader, &byte, 1) != 1)
            exit(2);
    }
    for (int at = 3; at < NAMES; at++) {
        name_of(path, round, at);
        there[at] = lstat(path, &stats[at]) == 0;
    }
    printf("%ld", seen);
    for (int at = 0; at < NAMES; at++)
        printf(" %ld:%o", there[at] ? (long)stats[at].st_size : -1, stats[at].st_mode & 07777);
    printf("\n");
    fflush(stdout);
}

static int descriptors(void)
{
    int all = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        all++;
    closedir(folder);
    return all;
}

static sigjmp_buf back;

static void leave(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

int main(int count, char **words)
{
    char byte;
    struct sigaction action = {.sa_handler = at_usr1, .sa_flags = SA_RESTART};
    mode = words[1];
    if (count < 3)
        return 2;
    strcpy(folder, words[2]);
    sigaction(SIGUSR1, &action, NULL);
    printf("ready %d\n", getpid());
    fflush(stdout);
    if (read(0, &byte, 1) != 1)
        return 2;
    if (strcmp(mode, "greeting") == 0) {
        name_of(path, 0, 4);
        name_of(other, 0, 3);
        long found = size_of(path);
        printf("%ld %ld %ld\n", found, seen, size_of(path));
    } else if (strcmp(mode, "flood") == 0) {
        int wrong = 0;
        sprintf(path, "%s/here", folder);
        if (chdir(path) != 0)
            return 2;
        number = open("whole", O_RDONLY);
        action.sa_handler = at_alarm;
        sigaction(SIGALRM, &action, NULL);
        alarm_within_us(200);
        for (int turn = 0; turn < 2000; turn++) {
            char text[64];
            struct stat stat;
            int fd = open("../here/held-04", O_RDONLY);
            wrong += fd < 0 || lseek(fd, 4, SEEK_SET) != 4 || read(fd, text, 8) != 8;
            wrong += memcmp(text, "45678901", 8) != 0;
            wrong += fstat(fd, &stat) != 0 || stat.st_size != 1004;
            wrong += posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL) != 0;
            wrong += close(fd) != 0;
            wrong += lstat("../here/held-06", &stat) != 0 || stat.st_size != 1006;
        }
        ends = 1;
        printf("%d wrong, %ld of the handler's; it ran often: %d\n", wrong, failed, handled > 500);
    } else if (strcmp(mode, "jumps") == 0) {
        int had = 0;
        action.sa_handler = leave;
        sigaction(SIGALRM, &action, NULL);
        sprintf(path, "%s/fifo", folder);
        int fifo = open(path, O_RDWR);
        for (volatile int turn = 0; turn < 30; turn++) {
            if (sigsetjmp(back, 1) == 0) {
                alarm_within_us(5000);
                if (read(fifo, &byte, 1) >= 0)
                    return 3;
            }
            if (turn == 2)
                had = descriptors();
        }
        printf("had %d, has %d\n", had, descriptors());
    } else if (strcmp(mode, "jump") == 0) {
        /* Out of the handler, past a call that waits, as programs do to end it. */
        action.sa_handler = leave;
        sigaction(SIGUSR1, &action, NULL);
        sprintf(path, "%s/fifo", folder);
        int fifo = open(path, O_RDWR);
        if (fifo < 0)
            return 2;
        /* So many that the connection has moved to shared memory, if there is any. */
        for (int turn = 0; turn < 40; turn++)
            size_of(folder);
        if (sigsetjmp(back, 1) == 0) {
            say("waits\n");
            if (read(fifo, path, 1) >= 0)
                return 3;
        }
        say("left\n");
        if (read(0, &byte, 1) != 1)
            return 2;
        char text[16] = "";
        ssize_t got = read(fifo, text, sizeof text - 1);
        printf("%zd %s\n", got, text);
    } else if (strcmp(mode, "opens") == 0) {
        /* Connected: before, nothing comes along. The third open in alphabetical order brings those
         * of others along. */
        size_of(folder);
        name_of(other, 0, 3);
        for (int at = 0; at < NAMES; at++) {
            char bytes[4096];
            struct stat stat;
            if (at == 2) {
                say("half\n");
                if (read(0, &byte, 1) != 1)
                    return 2;
            }
            name_of(path, 0, at);
            int fd = open(path, O_RDONLY);
            if (fd < 0 || fstat(fd, &stat) != 0)
                return 3;
            printf("%ld:%zd ", (long)stat.st_size, read(fd, bytes, sizeof bytes));
            close(fd);
        }
        printf("%ld\n", seen);
    } else {
        /* Connected: before, nothing comes along. */
        size_of(folder);
        for (int round = 0; round < ROUNDS; round++) {
            if (round > 0 && read(0, &byte, 1) != 1)
                return 2;
            look(round);
        }
    }
    return 0;
}
