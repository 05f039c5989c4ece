/* Looks at files of another node, hears by a channel that somebody changed them, and looks again.
 *
 * ahead FOLDER CHANNEL [WORD]: prints "ready" once the answers to its later questions could have
 * come along with the first ones; then what it sees. No answer gets too old meanwhile (but for the
 * channel "time"): the library asks this program's clock_gettime. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMES 8
/* Files that are opened in the order of their listing: how many there are, and how many are opened
 * before somebody changes them. */
#define FILES 20
#define OPENED 12

static volatile int told;
static volatile char *shared;
/* What a channel needs, from before the first answer. */
static int held_open = -1, socket_of_name = -1;
static DIR *names_there;
static sem_t *named;
static sigset_t usr1;

static int kernel_time(clockid_t clock, struct timespec *time)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, time);
}

static int time_passes;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static long looks;
    if (clock != CLOCK_MONOTONIC || time_passes)
        return kernel_time(clock, time);
    /* Slowly, so that nothing waits for ever. */
    looks += 10;
    time->tv_sec = 1000 + looks / 1000000000;
    time->tv_nsec = looks % 1000000000;
    return 0;
}

static double now(void)
{
    struct timespec time;
    kernel_time(CLOCK_MONOTONIC, &time);
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

static int put(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    return fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0;
}

/* As `change` of test_ahead.py: of each four files one is written, one replaced, one removed. */
static int change_opens(void)
{
    char name[32];
    int failed = 0;
    for (int number = 0; number < FILES; number++) {
        snprintf(name, sizeof name, "opens/%d", number);
        if (number % 4 == 0)
            failed |= put(name, "written anew");
        else if (number % 4 == 1)
            failed |= put("opens/new", "replaced") || rename("opens/new", name) != 0;
        else if (number % 4 == 2)
            failed |= unlink(name) != 0;
    }
    return failed;
}

/* Whether a file is not as it was made, or as it was changed. */
static int is_wrong(int dir, const char *name, int is_changed)
{
    const char *changed[] = {"written anew", "replaced", NULL, "old"};
    const char *text = is_changed ? changed[atoi(name) % 4] : "old";
    char bytes[64];
    struct stat stat;
    int fd = openat(dir, name, O_RDONLY);
    if (fd < 0 || !text)
        return fd >= 0 || text;
    int size = fstat(fd, &stat) == 0 ? (int)stat.st_size : -1;
    ssize_t got = read(fd, bytes, sizeof bytes);
    close(fd);
    return got != size || size != (int)strlen(text) || memcmp(bytes, text, size) != 0;
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
            unlink("n6") != 0 || rename("n7", "other") != 0 || change_opens())
            _exit(2);
        _exit(0);
    }
    return pid;
}

/* Opens what the channel needs. */
static int prepare(const char *channel, const char *word)
{
    static const char *files[] = {"flock", "lock", "tested", "size", "end", "far-size", "far-end"};
    for (unsigned at = 0; at < sizeof files / sizeof *files; at++)
        if (strcmp(channel, files[at]) == 0)
            return (held_open = open(word, at < 3 ? O_RDWR : O_RDONLY)) < 0;
    if (strcmp(channel, "names") == 0 || strcmp(channel, "far-names") == 0)
        return (names_there = opendir(word)) == NULL;
    if (strcmp(channel, "connect") == 0)
        return (socket_of_name = socket(AF_UNIX, SOCK_STREAM, 0)) < 0;
    if (strcmp(channel, "named") == 0)
        return (named = sem_open(word, 0)) == SEM_FAILED;
    if (strcmp(channel, "messages") == 0)
        return (held_open = mq_open(word, O_RDONLY | O_NONBLOCK)) < 0;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    if (strcmp(channel, "signal") == 0 || strcmp(channel, "pending") == 0)
        return sigprocmask(SIG_BLOCK, &usr1, NULL);
    return 0;
}

static int count_names(void)
{
    int found = 0;
    rewinddir(names_there);
    for (struct dirent *entry = readdir(names_there); entry; entry = readdir(names_there))
        found += entry->d_name[0] != '.';
    return found;
}

/* Whether the program was told: asked again and again, and no question waits. */
static int is_told(const char *channel, const char *word)
{
    static const struct timespec at_once;
    struct flock all = {.l_type = F_WRLCK};
    struct sembuf down = {0, -1, IPC_NOWAIT};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct stat stat_of;
    char bytes[8300];
    sigset_t pending;
    int count, fd;
    if (strcmp(channel, "flock") == 0)
        return flock(held_open, LOCK_EX | LOCK_NB) == 0;
    if (strcmp(channel, "lock") == 0)
        return fcntl(held_open, F_SETLK, &all) == 0;
    if (strcmp(channel, "tested") == 0)
        return fcntl(held_open, F_GETLK, &all) == 0 && all.l_type == F_UNLCK;
    if (strcmp(channel, "size") == 0 || strcmp(channel, "far-size") == 0)
        return fstat(held_open, &stat_of) == 0 && stat_of.st_size > 0;
    if (strcmp(channel, "end") == 0 || strcmp(channel, "far-end") == 0)
        return lseek(held_open, 0, SEEK_END) > 0;
    if (strcmp(channel, "names") == 0 || strcmp(channel, "far-names") == 0)
        return count_names() > 0;
    if (strcmp(channel, "available") == 0)
        return ioctl(0, FIONREAD, &count) == 0 && count > 0;
    if (strcmp(channel, "connect") == 0) {
        strcpy(to.sun_path, word);
        return connect(socket_of_name, (struct sockaddr *)&to, sizeof to) == 0;
    }
    if (strcmp(channel, "exit") == 0)
        return waitpid(-1, NULL, WNOHANG) > 0;
    if (strcmp(channel, "gone") == 0)
        return kill(atoi(word), 0) != 0;
    if (strcmp(channel, "group") == 0)
        return getpgid(atoi(word)) < 0;
    if (strcmp(channel, "signal") == 0)
        return sigtimedwait(&usr1, NULL, &at_once) == SIGUSR1;
    if (strcmp(channel, "pending") == 0)
        return sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1);
    if (strcmp(channel, "semaphore") == 0)
        return semop(atoi(word), &down, 1) == 0;
    if (strcmp(channel, "queue") == 0)
        return msgrcv(atoi(word), bytes, 64, 0, IPC_NOWAIT) >= 0;
    if (strcmp(channel, "named") == 0)
        return sem_trywait(named) == 0;
    if (strcmp(channel, "messages") == 0)
        return mq_receive(held_open, bytes, sizeof bytes, NULL) >= 0;
    if (strcmp(channel, "far-access") == 0)
        return access(word, F_OK) == 0;
    if (strcmp(channel, "far-stat") == 0)
        return stat(word, &stat_of) == 0;
    if (strcmp(channel, "far-lstat") == 0)
        return lstat(word, &stat_of) == 0;
    if (strcmp(channel, "far-gone") == 0)
        return stat(word, &stat_of) != 0;
    if (strcmp(channel, "far-mode") == 0)
        return stat(word, &stat_of) == 0 && (stat_of.st_mode & 0777) == 0600;
    if (strcmp(channel, "far-link") == 0)
        return readlink(word, bytes, sizeof bytes) > 0;
    if (strcmp(channel, "far-path") == 0)
        return realpath(word, bytes) != NULL;
    if (strcmp(channel, "far-open") == 0) {
        if ((fd = open(word, O_RDONLY)) >= 0)
            close(fd);
        return fd >= 0;
    }
    if (strcmp(channel, "far-bytes") == 0) {
        if ((fd = open(word, O_RDONLY)) < 0)
            exit(3);
        count = read(fd, bytes, sizeof bytes);
        close(fd);
        return count > 3 && memcmp(bytes, "told", 4) == 0;
    }
    fprintf(stderr, "no channel: %s\n", channel);
    exit(3);
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
    } else {
        while (!is_told(channel, word))
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

    /* Whatever happens, it ends. */
    alarm(100);
    time_passes = strcmp(channel, "time") == 0;
    if (prepare(channel, word))
        return 2;
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
    /* And opens of files that follow. */
    char files[FILES][16];
    int count_of_files = 0, wrong = 0;
    snprintf(path, sizeof path, "%s/opens", folder);
    DIR *opens = opendir(path);
    for (struct dirent *entry = readdir(opens); entry; entry = readdir(opens))
        if (entry->d_name[0] != '.' && count_of_files < FILES)
            snprintf(files[count_of_files++], 16, "%s", entry->d_name);
    for (int at = 0; at < OPENED; at++)
        wrong += is_wrong(dirfd(opens), files[at], 0);
    ready();
    if (strcmp(channel, "child") == 0)
        pid = child(folder);
    hear(channel, word, folder, wire, pid);
    double at = now();

    for (int at = OPENED; at < count_of_files; at++)
        wrong += is_wrong(dirfd(opens), files[at], 1);
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
    printf("%d opens, %d wrong\n", count_of_files, wrong);
    fprintf(stderr, "%.9f\n", at);
    return 0;
}
