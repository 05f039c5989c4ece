/* memory.c: bad addresses and flags: `memory FOLDER WORD` prints what the kernel, or the library,
 * says of each. With a WORD, the program handles SIGSEGV and SIGBUS meanwhile. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "-");
}

/* Where a program can't write. */
static const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
static const int zero = 0;

static void handler(int signal) { _exit(signal + 40); }

int main(int count, char **words) {
    char *none = mmap(0, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *fixed = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *edge = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action;
    struct stat stat_;
    char text[64];
    int fd, status;
    mprotect(edge + 4096, 4096, PROT_NONE);
    memset(edge, 'e', 4096);
    if (count != 3 || chdir(words[1]) != 0)
        return 1;
    if (words[2][0]) {
        signal(SIGSEGV, handler);
        signal(SIGBUS, handler);
    }
    fd = open("f", O_CREAT | O_RDWR, 0644);
    say("open", open(none, O_RDONLY));
    say("open of an end", open(edge + 4000, O_RDONLY));
    say("stat", stat(none, &stat_));
    say("stat into", stat("f", (struct stat *)none));
    say("stat into what is fixed", stat("f", (struct stat *)fixed));
    say("fstat into", fstat(fd, (struct stat *)none));
    say("rename", rename("f", none));
    say("rename from", rename(none, "f"));
    say("symlink", symlink(none, "s"));
    say("readlink", readlink(none, text, sizeof text));
    say("write", write(fd, none, 10));
    say("write at an end", write(fd, edge + 4090, 20));
    say("lseek", lseek(fd, 0, SEEK_SET) + 1);
    say("write", write(fd, edge, 4096));
    say("lseek", lseek(fd, 0, SEEK_SET) + 1);
    say("read", read(fd, none, 10));
    say("read into what is fixed", read(fd, fixed, 10));
    say("read of nothing", read(fd, none, 0));
    say("readv", readv(fd, (struct iovec *)none, 1));
    say("readv", readv(fd, (struct iovec[]){{text, 4}, {text + 4, 4}}, 2));
    say("readv of parts", readv(fd, (struct iovec[]){{none, 4}, {text, 4}}, 2));
    say("writev of parts", writev(fd, (struct iovec[]){{none, 4}, {text, 4}}, 2));
    say("writev of one", writev(fd, (struct iovec[]){{none, 4}}, 1));
    say("pread", pread(fd, none, 10, 0));
    say("pwrite", pwrite(fd, none, 10, 0));
    say("getcwd", getcwd(none, 4096) ? 0 : -1);
    say("mkdir", mkdir(none, 0755));
    say("getxattr", getxattr("f", none, text, 4));
    say("fcntl", fcntl(fd, F_GETLK, none));
    say("a constant lock", fcntl(fd, F_SETLK, &whole));
    say("one to wait for", fcntl(fd, F_SETLKW, &whole));
    say("a description's", fcntl(fd, F_OFD_SETLK, &whole));
    say("a question", fcntl(fd, F_GETLK, &whole));
    say("a constant flag", ioctl(fd, FIONBIO, &zero));
    say("bad locks", fcntl(fd, F_SETLK, none));
    say("utimensat", utimensat(AT_FDCWD, "f", (struct timespec *)none, 0));
    /* Flags that no call knows. */
    say("faccessat", faccessat(AT_FDCWD, "f", R_OK, 0x100000));
    say("fchmodat", fchmodat(AT_FDCWD, "f", 0644, 0x100000));
    say("fchownat", fchownat(AT_FDCWD, "f", -1, -1, 0x100000));
    say("fstatat", fstatat(AT_FDCWD, "f", &stat_, 0x100000));
    say("utimensat", utimensat(AT_FDCWD, "f", 0, 0x100000));
    say("unlinkat", unlinkat(AT_FDCWD, "f", 0x100000));
    say("poll", poll((struct pollfd *)none, 1, 0));
    say("ppoll", ppoll(&(struct pollfd){fd, POLLIN, 0}, 1, &(struct timespec){-1, 0}, 0));
    say("ppoll", ppoll(&(struct pollfd){fd, POLLIN, 0}, 1, &(struct timespec){0, 2000000000}, 0));
    say("ppoll",
        ppoll(&(struct pollfd){fd, POLLIN, 0}, 1, &(struct timespec){0x7fffffffffffffff, 999999999}, 0));
    say("pselect", pselect(1, 0, 0, 0, &(struct timespec){-1, -1}, 0));
    say("still there", write(fd, "x", 1));
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    /* The handler of before is the default, and a fault ends the program. */
    sigaction(SIGSEGV, NULL, &action);
    printf("handler %d %d\n", action.sa_handler == SIG_DFL, signal(SIGBUS, SIG_DFL) == SIG_DFL);
    fflush(stdout);
    if (fork() == 0) {
        *(volatile char *)none = 1;
        _exit(0);
    }
    wait(&status);
    printf("fault %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    fflush(stdout);
    if (fork() == 0) {
        raise(SIGSEGV);
        _exit(0);
    }
    wait(&status);
    printf("raise %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    fflush(stdout);
    if (fork() == 0) {
        signal(SIGSEGV, handler);
        signal(SIGSEGV, SIG_DFL);
        say("again", write(fd, none, 10));
        fflush(stdout);
        signal(SIGSEGV, handler);
        *(volatile char *)none = 1;
        _exit(0);
    }
    wait(&status);
    printf("own %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return 0;
}
