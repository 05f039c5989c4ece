/* What a statically linked program does with files, printed line by line: test_seccomp.py runs
 * it below a plain folder and below a forwarded one, and compares. `static FOLDER [WHAT]`. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static char root[2048];

static const char *at(const char *name)
{
    static _Thread_local char paths[4][4096];
    static _Thread_local int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static long said(const char *what, long result)
{
    int error = errno;
    if (result < 0)
        printf("%s: %s\n", what, strerrorname_np(error));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
    errno = error;
    return result;
}
#define DO(call) said(#call, (long)(call))

static void show(const char *name)
{
    struct stat s;
    if (said(name, lstat(at(name), &s)) == 0)
        printf("  mode %o links %d size %ld mtime %s\n", s.st_mode, (int)s.st_nlink,
               S_ISREG(s.st_mode) ? (long)s.st_size : -1, s.st_mtime < 1000000000 ? "set" : "now");
}

static void files(void)
{
    char text[64] = "";
    struct flock lock = {.l_type = F_WRLCK};
    int fd = open(at("a"), O_RDWR | O_CREAT | O_EXCL, 0666);
    DO(fd >= 0);
    DO(write(fd, "hello, far side\n", 16));
    DO(lseek(fd, 7, SEEK_SET));
    DO(read(fd, text, 63));
    printf("%s", text);
    DO(open(at("a"), O_RDWR | O_CREAT | O_EXCL, 0666));
    DO(flock(fd, LOCK_EX | LOCK_NB));
    DO(fcntl(fd, F_SETLK, &lock));
    DO(ftruncate(fd, 4096));
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    DO(map != MAP_FAILED);
    memcpy(map, "MAPPED", 6);
    DO(msync(map, 4096, MS_SYNC));
    DO(pread(fd, text, 6, 0));
    printf("%.6s\n", text);
    DO(fcntl(fd, F_GETFD));
    int other = open(at("a"), O_RDONLY | O_CLOEXEC);
    DO(fcntl(other, F_GETFD));
    DO(dup2(other, 50));
    close(other), close(50), close(fd);
    FILE *stream = fopen(at("lines"), "w");
    for (int i = 0; i < 1000; i++)
        fprintf(stream, "line %d\n", i);
    DO(fclose(stream));
    show("lines");
}

static void names(void)
{
    char text[4096] = "";
    struct timespec times[2] = {{1000, 5}, {2000, 6}};
    struct utimbuf old = {3000, 4000};
    struct stat s;
    struct statfs fs;
    umask(027);
    DO(mkdir(at("d"), 0777));
    DO(mkdir(at("d"), 0777));
    DO(mkdir(at("none/d"), 0777));
    show("d");
    DO(symlink("a", at("l")));
    DO(symlink(at("a"), at("absolute")));
    DO(readlink(at("l"), text, sizeof text));
    DO(readlink(at("absolute"), text, sizeof text) == (long)strlen(at("a")));
    DO(strcmp(text, at("a")));
    DO(stat(at("absolute"), &s));
    DO(readlink(at("a"), text, sizeof text));
    DO(link(at("a"), at("d/h")));
    show("d/h");
    DO(rename(at("lines"), at("d/lines")));
    DO(rename(at("lines"), at("d/lines")));
    DO(syscall(SYS_renameat2, AT_FDCWD, at("a"), AT_FDCWD, at("d/h"), 1));
    DO(chmod(at("a"), 0640));
    DO(utimensat(AT_FDCWD, at("a"), times, 0));
    show("a");
    DO(stat(at("a"), &s));
    printf("%ld.%ld %ld.%ld\n", (long)s.st_atim.tv_sec, s.st_atim.tv_nsec,
           (long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    DO(utime(at("a"), &old));
    DO(stat(at("a"), &s));
    printf("%ld %ld\n", (long)s.st_atime, (long)s.st_mtime);
    DO(truncate(at("a"), 5));
    DO(access(at("a"), R_OK));
    DO(access(at("none"), F_OK));
    DO(chown(at("a"), getuid(), getgid()));
    DO(lchown(at("l"), getuid(), getgid()));
    DO(statfs(at("a"), &fs));
    DO(fs.f_namelen);
    DO(setxattr(at("a"), "user.zazen", "value", 5, 0));
    DO(getxattr(at("a"), "user.zazen", text, sizeof text));
    DO(getxattr(at("a"), "user.zazen", NULL, 0));
    DO(getxattr(at("a"), "user.none", text, sizeof text));
    DO(removexattr(at("a"), "user.zazen"));
    DO(mknod(at("fifo"), S_IFIFO | 0600, 0));
    DO(unlink(at("l")));
    DO(unlink(at("d")));
    DO(rmdir(at("d")));
    DO(open(at("a/b"), O_RDONLY));
    DO(open(at("d"), O_WRONLY));
    DO(open((char *)8, O_RDONLY));
    DO(stat(at("a"), (struct stat *)8));
    DO(stat("", &s));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void list(DIR *folder)
{
    char names[64][256];
    int count = 0;
    if (said("opendir", folder ? 0 : -1) < 0)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL && count < 64;)
        snprintf(names[count++], sizeof names[0], "%s", entry->d_name);
    qsort(names, count, sizeof names[0], by_name);
    for (int i = 0; i < count; i++)
        printf(" %s", names[i]);
    printf("\n");
    closedir(folder);
}

static void folders(void)
{
    char text[4096];
    struct stat s;
    int fd;
    list(opendir(root));
    int folder = open(at("d"), O_RDONLY | O_DIRECTORY);
    DO((fd = openat(folder, "x", O_CREAT | O_WRONLY, 0600)) >= 0);
    DO(fstatat(folder, "x", &s, 0));
    DO(renameat(folder, "x", AT_FDCWD, at("moved")));
    DO(unlinkat(AT_FDCWD, at("moved"), 0));
    DO(mkdirat(folder, "sub", 0755));
    DO(chdir(at("d")));
    DO(strcmp(getcwd(text, sizeof text), at("d")));
    DO(chdir("sub"));
    DO(strcmp(getcwd(text, sizeof text), at("d/sub")));
    DO((fd = open("here", O_CREAT | O_WRONLY, 0644)) >= 0);
    DO(write(fd, "x", 1));
    DO(rename("here", "../there"));
    DO(stat("../there", &s));
    DO(stat("../../a", &s));
    if (fork() == 0) {
        /* A child is where its parent was, and goes where it likes. */
        DO(strcmp(getcwd(text, sizeof text), at("d/sub")));
        DO(chdir(".."));
        DO(stat("there", &s));
        exit(0);
    }
    wait(NULL);
    DO(stat("there", &s));
    int pipes[2];
    DO(pipe(pipes));
    if (fork() == 0) {
        /* Its parent moves on before it looks; and it is orphaned before its own child does. */
        if (fork() == 0) {
            usleep(60000);
            DO(stat("../there", &s));
            exit(0);
        }
        exit(0);
    }
    usleep(20000);
    DO(chdir("/"));
    DO(strcmp(getcwd(text, sizeof text), "/"));
    close(pipes[1]);
    DO(read(pipes[0], text, 1));
    DO(chdir(root));
    list(opendir("."));
    DO(fchdir(folder));
    DO(stat("there", &s));
    DO(chdir(at("none")));
    DO(chdir(at("a")));
}

static void *work(void *argument)
{
    long number = (long)argument, bad = 0;
    char name[64], text[64];
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "t%ld.%d", number, i);
        int fd = open(at(name), O_CREAT | O_RDWR | O_EXCL, 0600);
        bad += fd < 0 || pwrite(fd, name, strlen(name), 0) != (long)strlen(name);
        close(fd);
        fd = open(at(name), O_RDONLY);
        bad += read(fd, text, sizeof text) != (long)strlen(name) || memcmp(name, text, strlen(name)) != 0;
        close(fd);
        bad += unlink(at(name)) != 0;
    }
    return (void *)bad;
}

static void many(void)
{
    pthread_t threads[6];
    void *bad;
    for (int process = 0; process < 3; process++)
        if (fork() == 0) {
            long sum = 0;
            for (long i = 0; i < 6; i++)
                pthread_create(&threads[i], NULL, work, (void *)(i + 10 * process));
            for (int i = 0; i < 6; i++)
                pthread_join(threads[i], &bad), sum += (long)bad;
            exit(sum != 0);
        }
    for (int status; wait(&status) > 0;)
        DO(status);
}

static void nothing(int signal)
{
    (void)signal;
}

/* Only forwarded: what would not end otherwise. */
static void waiting(void)
{
    struct sigaction action = {.sa_handler = nothing};
    struct itimerval soon = {{0, 100000}, {0, 100000}}, never = {{0, 0}, {0, 0}};
    char text[16] = "";
    DO(mkfifo(at("pipe"), 0600));
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    DO(open(at("pipe"), O_RDONLY));
    setitimer(ITIMER_REAL, &never, NULL);
    DO(open(at("pipe"), O_WRONLY | O_NONBLOCK));
    pid_t child = fork();
    if (child == 0) {
        usleep(50000);
        int fd = open(at("pipe"), O_WRONLY);
        exit(write(fd, "through", 7) != 7);
    }
    /* Others don't wait meanwhile. */
    struct stat s;
    pid_t other = fork();
    if (other == 0) {
        for (int i = 0; i < 100; i++)
            if (stat(at("pipe"), &s) != 0)
                exit(1);
        exit(0);
    }
    int fd = open(at("pipe"), O_RDONLY), status;
    DO(read(fd, text, sizeof text));
    printf("%s\n", text);
    waitpid(child, &status, 0), DO(status);
    waitpid(other, &status, 0), DO(status);
    /* Who waits can be killed. */
    if ((child = fork()) == 0)
        open(at("pipe"), O_WRONLY), exit(0);
    close(fd);
    if ((other = fork()) == 0)
        open(at("pipe"), O_RDONLY | O_NONBLOCK), usleep(1000), exit(0);
    waitpid(other, &status, 0);
    kill(child, SIGKILL);
    waitpid(child, &status, 0), DO(WIFSIGNALED(status) || WIFEXITED(status));
}

static void border(const char *elsewhere)
{
    char here[4096];
    snprintf(here, sizeof here, "%s/x", elsewhere);
    close(open(here, O_CREAT | O_WRONLY, 0600));
    close(open(at("y"), O_CREAT | O_WRONLY, 0600));
    DO(rename(at("y"), here));
    DO(rename(here, at("z")));
    DO(link(here, at("z")));
    DO(link(at("y"), here));
    DO(execl(at("y"), "y", NULL));
    DO(execl(at("none"), "none", NULL));
}

int main(int count, char **words)
{
    snprintf(root, sizeof root, "%s", words[1]);
    if (count > 3 && strcmp(words[2], "border") == 0) {
        border(words[3]);
    } else if (count > 2 && strcmp(words[2], "waiting") == 0) {
        waiting();
    } else if (count > 2 && strcmp(words[2], "denied") == 0) {
        if (count > 3)
            DO(setgid(atoi(words[3])) | setuid(atoi(words[3])));
        DO(open(at("secret"), O_RDONLY));
        DO(access(at("secret"), R_OK));
        DO(open(at("new"), O_CREAT | O_WRONLY, 0600));
        DO(open(at("public"), O_RDONLY) >= 0);
    } else if (count > 2 && strcmp(words[2], "until-lost") == 0) {
        struct stat s;
        DO(stat(root, &s));
        DO(getchar());
        DO(stat(root, &s));
        DO(open(at("new"), O_CREAT | O_WRONLY, 0600));
        DO(stat("/", &s));
    } else if (count > 2 && strcmp(words[2], "raw") == 0) {
        /* As Go's runtime: by number, nothing of libc between. */
        char text[8] = "";
        long fd = syscall(SYS_openat, AT_FDCWD, at("raw"), O_CREAT | O_RDWR, 0644);
        DO(fd >= 0);
        DO(syscall(SYS_write, fd, "raw", 3));
        DO(syscall(SYS_close, fd));
        fd = syscall(SYS_openat, AT_FDCWD, at("raw"), O_RDONLY);
        DO(syscall(SYS_read, fd, text, 8));
        DO(syscall(SYS_unlinkat, AT_FDCWD, at("none"), 0));
    } else {
        files();
        names();
        folders();
        many();
    }
    return 5;
}
