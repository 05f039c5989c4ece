/* Looks at files of another node, hears by a channel that somebody changed them, and looks again.
 *
 * ahead FOLDER CHANNEL [WORD]: prints "ready" once the answers to its later questions could have
 * come along with the first ones; then what it sees. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMES 8

static volatile int told;
static volatile char *shared;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

static void *listens(void *unused)
{
    char byte;
    (void)unused;
    told = read(0, &byte, 1) == 1;
    return NULL;
}

static void ready(void)
{
    if (write(1, "ready\n", 6) != 6)
        exit(2);
}

/* A change that this program's own child makes. */
static int child(const char *folder)
{
    int pid = fork();
    if (pid == 0) {
        if (chdir(folder) != 0)
            _exit(2);
        int fd = open("file", O_WRONLY | O_TRUNC);
        if (write(fd, "much longer\n", 12) != 12 || close(fd) != 0 || chmod("n5", 0600) != 0 ||
            unlink("n6") != 0 || rename("n7", "other") != 0)
            _exit(2);
        _exit(0);
    }
    return pid;
}

static void hear(const char *channel, const char *word, const char *folder, int wire, int pid)
{
    char line[64];
    if (strcmp(channel, "read") == 0) {
        if (read(0, line, sizeof line) < 1)
            exit(3);
    } else if (strcmp(channel, "stream") == 0) {
        if (!fgets(line, sizeof line, stdin))
            exit(3);
    } else if (strcmp(channel, "socket") == 0) {
        while (recv(wire, line, sizeof line, MSG_DONTWAIT) < 1)
            ;
    } else if (strcmp(channel, "poll") == 0) {
        struct pollfd in = {.fd = 0, .events = POLLIN};
        while (poll(&in, 1, 0) != 1)
            ;
    } else if (strcmp(channel, "name") == 0) {
        while (access(word, F_OK) != 0)
            ;
    } else if (strcmp(channel, "memory") == 0 || strcmp(channel, "segment") == 0) {
        while (!*shared)
            ;
    } else if (strcmp(channel, "thread") == 0) {
        while (!told)
            ;
    } else if (strcmp(channel, "child") == 0) {
        while (waitpid(pid, NULL, WNOHANG) != pid)
            ;
    } else if (strcmp(channel, "time") == 0) {
        double end = now() + atof(word);
        while (now() < end)
            ;
    }
    (void)folder;
}

int main(int count, char **words)
{
    const char *folder = words[1], *channel = words[2], *word = count > 3 ? words[3] : "";
    char path[4096], bytes[4096], name[16];
    struct stat stat;
    int wire = -1, pid = 0;
    pthread_t thread;

    if (strcmp(channel, "socket") == 0) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        strcpy(to.sun_path, word);
        wire = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(wire, (struct sockaddr *)&to, sizeof to) != 0)
            return 2;
    }
    if (strcmp(channel, "memory") == 0) {
        int fd = open(word, O_RDWR);
        shared = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (shared == MAP_FAILED)
            return 2;
    }
    if (strcmp(channel, "segment") == 0) {
        shared = shmat(atoi(word), NULL, 0);
        if (shared == (void *)-1)
            return 2;
    }
    if (strcmp(channel, "thread") == 0)
        pthread_create(&thread, NULL, listens, NULL);

    /* What comes along: the folder's listing, attributes of names that follow, the file. */
    snprintf(path, sizeof path, "%s/folder", folder);
    int held = open(folder, O_RDONLY | O_DIRECTORY);
    int listed = open(path, O_RDONLY | O_DIRECTORY);
    DIR *all = opendir(folder);
    for (struct dirent *entry = readdir(all); entry; entry = readdir(all))
        ;
    rewinddir(all);
    int seen = 0;
    for (struct dirent *entry = readdir(all); entry && seen < 5; entry = readdir(all))
        if (entry->d_name[0] == 'a')
            seen += fstatat(held, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) == 0;
    snprintf(path, sizeof path, "%s/file", folder);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || held < 0 || listed < 0 || !all)
        return 2;
    ready();
    if (strcmp(channel, "child") == 0)
        pid = child(folder);
    hear(channel, word, folder, wire, pid);
    double at = now();

    fstat(fd, &stat);
    ssize_t got = read(fd, bytes, sizeof bytes);
    printf("file %lld %o ", (long long)stat.st_size, stat.st_mode & 07777);
    printf("%.*s", (int)(got > 0 ? got : 0), bytes);
    for (int number = 0; number < NAMES; number++) {
        snprintf(name, sizeof name, "n%d", number);
        int there = fstatat(held, name, &stat, AT_SYMLINK_NOFOLLOW) == 0;
        printf("%s %o\n", name, there ? stat.st_mode & 07777 : 0);
    }
    DIR *inner = fdopendir(listed);
    int names = 0;
    for (struct dirent *entry = readdir(inner); entry; entry = readdir(inner))
        names += entry->d_name[0] != '.';
    printf("names %d\n", names);
    fprintf(stderr, "%.9f\n", at);
    return 0;
}
