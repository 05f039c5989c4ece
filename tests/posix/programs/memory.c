/* memory.c: bad addresses and flags: `memory FOLDER WORD` prints what the kernel, or the library,
 * says of each. With a WORD, the program handles SIGSEGV and SIGBUS meanwhile. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

static sigjmp_buf back;
static void *volatile at;
static volatile int counted;
static char stack[64 << 10];

static void jump(int signal, siginfo_t *info, void *context) {
    at = info->si_addr;
    siglongjmp(back, signal);
}

static void count(int signal) {
    char here;
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    counted += 1 + 10 * sigismember(&blocked, SIGUSR1) + 100 * sigismember(&blocked, signal) +
               1000 * (&here >= stack && &here < stack + sizeof stack);
}

/* What the program is told of its handler, without what libc adds. */
static void tell(const char *what, const struct sigaction *action) {
    const char *whose = action->sa_handler == SIG_DFL     ? "the default"
                        : action->sa_handler == SIG_IGN   ? "ignored"
                        : action->sa_handler == count     ? "counts"
                        : action->sa_sigaction == jump    ? "jumps"
                        : action->sa_handler == handler   ? "ends"
                                                          : "unknown";
    printf("%s: %s %x %d\n", what, whose, action->sa_flags & ~0x04000000,
           sigismember(&action->sa_mask, SIGUSR1));
}

/* The kernel's own structure, by number. */
static void by_number(int fd, char *none) {
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        unsigned long mask;
    } kernels = {0};
    signal(SIGSEGV, count);
    say("by number", syscall(SYS_rt_sigaction, SIGSEGV, NULL, &kernels, 8));
    printf("%d %lx\n", kernels.handler == count, kernels.flags & ~0x04000000UL);
    kernels.handler = (void *)SIG_DFL;
    say("by number", syscall(SYS_rt_sigaction, SIGSEGV, &kernels, &kernels, 8));
    printf("%d %lx\n", kernels.handler == count, kernels.flags & ~0x04000000UL);
    say("a look", write(fd, none, 10));
    kernels.handler = (void *)1;
    say("by number", syscall(SYS_rt_sigaction, SIGSEGV, NULL, &kernels, 8));
    printf("%d\n", kernels.handler == (void *)SIG_DFL);
    say("a bad place", syscall(SYS_rt_sigaction, SIGSEGV, none, NULL, 8));
    signal(SIGSEGV, count);
    say("a look", write(fd, none, 10));
    raise(SIGSEGV);
    printf("counted %d\n", counted);
}

/* Handlers with all that a program may say of them, and looks at bad addresses meanwhile. */
static void handlers(int fd, char *none) {
    struct sigaction with = {.sa_sigaction = jump, .sa_flags = SA_SIGINFO}, action;
    int time;
    sigaddset(&with.sa_mask, SIGUSR1);
    sigaction(SIGSEGV, &with, &action);
    tell("before", &action);
    for (time = 0; time < 3; time++) {
        at = NULL;
        if (sigsetjmp(back, 1) == 0)
            *(volatile char *)(none + time) = 1;
        printf("jumped from %d\n", at == none + time);
        say("after a jump", write(fd, none, 10));
        say("and a jump", read(fd, none, 10));
    }
    sigaction(SIGSEGV, NULL, &action);
    tell("asked for", &action);
    /* Blocked signals, a stack of its own, and once only. */
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    with.sa_handler = count;
    with.sa_flags = SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &with, &with);
    tell("in one object", &with);
    raise(SIGSEGV);
    say("a look", write(fd, none, 10));
    printf("counted %d\n", counted);
    action = (struct sigaction){.sa_handler = count, .sa_flags = SA_RESETHAND};
    sigaction(SIGSEGV, &action, NULL);
    say("a look", write(fd, none, 10));
    raise(SIGSEGV);
    printf("counted %d\n", counted);
    sigaction(SIGSEGV, NULL, &action);
    tell("after one call", &action);
    say("a look", write(fd, none, 10));
    printf("signal %d\n", signal(SIGSEGV, count) == SIG_DFL);
    raise(SIGSEGV);
    raise(SIGSEGV);
    printf("sysv_signal %d\n", sysv_signal(SIGSEGV, count) == count);
    raise(SIGSEGV);
    sigaction(SIGSEGV, NULL, &action);
    tell("after sysv_signal", &action);
    printf("counted %d\n", counted);
    signal(SIGSEGV, SIG_IGN);
    raise(SIGSEGV);
    say("ignored, a look", write(fd, none, 10));
    sigaction(SIGSEGV, NULL, &action);
    tell("ignored", &action);
    printf("bad signal %d\n", sigaction(SIGKILL, &action, NULL));
    by_number(fd, none);
    signal(SIGSEGV, SIG_DFL);
    fflush(stdout);
}

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
    handlers(fd, none);
    return 0;
}
