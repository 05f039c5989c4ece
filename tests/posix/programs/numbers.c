/* numbers.c: system calls by their numbers, and processes that are made past fork:
 * `numbers FOLDER`. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char memory[1 << 16] __attribute__((aligned(16)));

static void say(const char *name, long result)
{
    printf("%s %s\n", name, result < 0 ? strerrorname_np(errno) : "ok");
    fflush(stdout);
}
#define SAY(number, ...) say(#number, syscall(number, __VA_ARGS__))

static void put(const char *name, const char *text, int mode)
{
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, mode);
    if (write(fd, text, strlen(text)) < 0)
        perror(name);
    close(fd);
}

static void wait_for(const char *name, long pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    printf("%s: killed %d, status %d\n", name, WIFSIGNALED(status), WEXITSTATUS(status));
    fflush(stdout);
}

/* What a child does with what it inherited, and with a name. */
static int child(int fd, const char *name)
{
    int made = open(name, O_CREAT | O_WRONLY, 0644), good = 0;
    struct stat stat;
    good += made >= 0 && write(made, "child", 5) == 5;
    good += 2 * (lstat("one", &stat) == 0);
    good += 4 * (pwrite(fd, "c", 1, 100) == 1);
    good += 8 * (fstat(fd, &stat) == 0 && stat.st_size == 101);
    return good;
}

static int inherited;

static int start(void *name) { return child(inherited, name); }

static void processes(void)
{
    struct { unsigned long long fields[8]; } how = {{0, 0, 0, 0, SIGCHLD}};
    struct stat stat;
    /* As many calls as make a connection use shared memory. */
    for (int i = 0; i < 40; i++)
        lstat("one", &stat);
    inherited = open("inherited", O_CREAT | O_RDWR, 0644);
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(child(inherited, "by-clone"));
    wait_for("clone by number", pid);
    pid = syscall(SYS_clone3, &how, sizeof how);
    if (pid == 0)
        _exit(child(inherited, "by-clone3"));
    wait_for("clone3 by number", pid);
    wait_for("clone", clone(start, memory + sizeof memory, SIGCHLD, "by-function"));
#ifdef __x86_64__
    pid = syscall(SYS_fork);
    if (pid == 0)
        _exit(child(inherited, "by-fork"));
    wait_for("fork by number", pid);
    /* Past every library: what it inherited is an error then. No call may take another's reply. */
    register long number __asm__("rax") = SYS_fork;
    __asm__ volatile("syscall" : "+r"(number) : : "rcx", "r11", "memory");
    pid = number;
    if (pid == 0)
        _exit(child(inherited, "by-instruction") & 3);
    for (int i = 0; i < 200; i++)
        if (lstat("one", &stat) || stat.st_size != 4)
            printf("the parent's call failed: %s\n", strerrorname_np(errno));
    wait_for("fork by an instruction", pid);
#endif
    close(inherited);
}

static void started(const char *folder)
{
    char *words[] = {"name", "word", NULL};
    int here = open(".", O_RDONLY | O_DIRECTORY), script = open("script", O_RDONLY);
    int closing = open("script", O_RDONLY | O_CLOEXEC), program = open("/bin/true", O_PATH | O_CLOEXEC);
    for (int turn = 0; turn < 6; turn++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (turn == 0)
                execveat(here, "script", words, environ, 0);
            if (turn == 1)
                execveat(script, "", words, environ, AT_EMPTY_PATH);
            if (turn == 2)
                execveat(program, "", words, environ, AT_EMPTY_PATH);
            if (turn == 3)
                execveat(AT_FDCWD, folder, words, environ, 0);
            if (turn == 4)
                execveat(here, "link", words, environ, AT_SYMLINK_NOFOLLOW);
            if (turn == 5)
                fexecve(closing, words, environ);
            printf("%s\n", strerrorname_np(errno));
            fflush(stdout);
            _exit(100);
        }
        wait_for("execveat", pid);
    }
    close(here), close(script), close(closing), close(program);
}

static void old_numbers(const char *folder)
{
#ifdef __x86_64__
    struct stat stat;
    char path[4096];
    int fd;
    snprintf(path, sizeof path, "%s/one", folder);
    SAY(SYS_open, path, O_RDONLY);
    say("close", close(syscall(SYS_creat, "made", 0600)));
    SAY(SYS_stat, path, &stat);
    printf("%d\n", (int)stat.st_size);
    SAY(SYS_lstat, "none", &stat);
    SAY(SYS_access, path, R_OK);
    SAY(SYS_mkdir, "folder", 0755);
    SAY(SYS_rename, "made", "folder/moved");
    SAY(SYS_renameat, AT_FDCWD, "folder/moved", AT_FDCWD, "made");
    SAY(SYS_rmdir, "folder");
    SAY(SYS_link, "made", "linked");
    SAY(SYS_symlink, "made", "to");
    memset(path, 0, sizeof path);
    SAY(SYS_readlink, "to", path, 100);
    printf("%s\n", path);
    SAY(SYS_chmod, "made", 0640);
    SAY(SYS_lchown, "to", -1, -1);
    SAY(SYS_chown, "to", -1, -1);
    SAY(SYS_utime, "made", NULL);
    SAY(SYS_utimes, "made", NULL);
    SAY(SYS_futimesat, AT_FDCWD, "made", NULL);
    SAY(SYS_mknod, "node", S_IFREG | 0600, 0);
    SAY(SYS_unlink, "node");
    fd = open("one", O_RDONLY);
    SAY(SYS_dup2, fd, 70);
    struct pollfd ready = {70, POLLIN, 0};
    long polled = syscall(SYS_poll, &ready, 1, 0);
    printf("poll %ld %d\n", polled, ready.revents);
    fd = open(folder, O_RDONLY | O_DIRECTORY);
    long got = syscall(SYS_getdents, fd, memory, sizeof memory), links = 0, names = 0;
    for (long at = 0; at < got; at += *(unsigned short *)(memory + at + 16)) {
        unsigned short length = *(unsigned short *)(memory + at + 16);
        links += memory[at + length - 1] == DT_LNK;
        names += strcmp(memory + at + 18, "linked") == 0 || strcmp(memory + at + 18, "to") == 0;
    }
    printf("getdents %ld %ld\n", links, names);
#endif
    (void)folder;
}

int main(int count, char **words)
{
    struct { unsigned long long flags, mode, resolve; } how = {O_RDONLY, 0, 0};
    struct statfs fs;
    char name[4096];
    (void)count;
    if (syscall(SYS_chdir, words[1]))
        return 2;
    memset(name, 'x', sizeof name);
    long length = syscall(SYS_getcwd, name, sizeof name);
    printf("getcwd %d\n", length == (long)strlen(words[1]) + 1 && !strcmp(name, words[1]));
    SAY(SYS_getcwd, name, 1);
    put("one", "one\n", 0644);
    put("script", "#!/bin/sh\necho script $1\n", 0755);
    if (symlink("script", "link"))
        perror("symlink");
    SAY(SYS_mknodat, AT_FDCWD, "node2", S_IFREG | 0600, 0);
    SAY(SYS_fchmodat, AT_FDCWD, "node2", 0644);
    SAY(SYS_statfs, words[1], &fs);
    SAY(SYS_getxattr, "one", "user.none", name, 10);
    SAY(SYS_setxattr, "one", "user.x", "v", 1, 0);
    SAY(SYS_listxattr, "one", name, 100);
    int fd = open("one", O_RDWR);
    SAY(SYS_utimensat, fd, NULL, NULL, 0);
    SAY(SYS_fadvise64, fd, 0, 0, POSIX_FADV_DONTNEED);
    void *map = (void *)syscall(SYS_mmap, 0, 4, PROT_READ, MAP_PRIVATE, fd, 0);
    printf("mmap %.4s", map == MAP_FAILED ? "no\n" : (char *)map);
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    SAY(SYS_openat2, folder, "one", &how, sizeof how);
    how.resolve = 8;
    long opened = syscall(SYS_openat2, folder, "one", &how, sizeof how);
    printf("openat2 beneath %d\n", opened >= 0 || errno == ENOSYS);
    /* A file without a name gets one. */
    fd = open(".", O_TMPFILE | O_RDWR, 0600);
    say("unnamed", write(fd, "unnamed", 7));
    say("named", linkat(fd, "", AT_FDCWD, "named", AT_EMPTY_PATH));
    old_numbers(words[1]);
    fflush(stdout);
    processes();
    snprintf(name, sizeof name, "%s/script", words[1]);
    started(name);
    return 0;
}
