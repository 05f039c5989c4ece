/* Calls that only the kernel of the file can do: leases, notifications, owners of signals, splice
 * and its kin, handles, privileged attributes, ioctl. Prints what each says. Argument: a folder. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void say(const char *what, long result) {
    if (result < 0)
        printf("%s: %s\n", what, strerrorname_np(errno));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
}

static volatile sig_atomic_t signals;

static void count(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    signals++;
}

static long moved(int fd) {
    char data[64] = {0};
    ssize_t got = read(fd, data, sizeof data - 1);
    printf("%s\n", data);
    return got;
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]))
        return 1;
    struct sigaction action = {.sa_sigaction = count, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);

    int fd = open("file", O_CREAT | O_RDWR, 0600);
    say("write", write(fd, "contents of a file", 18));
    struct f_owner_ex owner = {F_OWNER_PID, getpid()};
    say("set owner", fcntl(fd, F_SETOWN, getpid()));
    say("owner", fcntl(fd, F_GETOWN) == getpid());
    say("set owner by structure", fcntl(fd, F_SETOWN_EX, &owner));
    say("set signal", fcntl(fd, F_SETSIG, SIGUSR1));
    say("signal", fcntl(fd, F_GETSIG));
    say("lease to read", fcntl(fd, F_SETLEASE, F_RDLCK));
    int only = open("leased", O_CREAT | O_RDONLY, 0600);
    int leased = fcntl(only, F_SETLEASE, F_RDLCK);
    say("lease", leased);
    say("which", fcntl(only, F_GETLEASE));
    say("lease signal", fcntl(only, F_SETSIG, SIGUSR1));
    pid_t child = fork();
    if (child == 0)
        _exit(open("leased", O_WRONLY | O_NONBLOCK) < 0 && errno == EAGAIN ? 0 : 1);
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    say("opened against the lease", status);
    for (int i = 0; leased == 0 && signals == 0 && i < 6000; i++)
        usleep(10000);
    say("told", signals);
    say("which", fcntl(only, F_GETLEASE));
    say("give it up", fcntl(only, F_SETLEASE, F_UNLCK));
    say("close", close(only));

    say("folder", mkdir("folder", 0700));
    int folder = open("folder", O_RDONLY | O_DIRECTORY);
    say("signal of notifications", fcntl(folder, F_SETSIG, SIGUSR2));
    int watched = fcntl(folder, F_NOTIFY, DN_CREATE | DN_MULTISHOT);
    say("notify", watched);
    say("signal", fcntl(folder, F_GETSIG));
    signals = 0;
    close(open("folder/new", O_CREAT | O_WRONLY, 0600));
    for (int i = 0; watched == 0 && signals == 0 && i < 6000; i++)
        usleep(10000);
    say("notified", signals);
    say("close folder", close(folder));
    signals = 0;
    say("create", unlink("folder/new"));
    close(open("folder/new", O_CREAT | O_WRONLY, 0600));
    say("silent", signals);

    int pipes[2], others[2];
    if (pipe2(pipes, O_NONBLOCK) || pipe2(others, O_NONBLOCK))
        return 1;
    off_t at = 0;
    say("splice from", splice(fd, &at, pipes[1], NULL, 18, 0));
    say("tee", tee(pipes[0], others[1], 18, 0));
    moved(others[0]);
    int out = open("out", O_CREAT | O_RDWR, 0600);
    say("splice to", splice(pipes[0], NULL, out, NULL, 18, 0));
    say("offset", lseek(out, 0, SEEK_CUR));
    at = 3;
    say("sendfile", sendfile(out, fd, &at, 5));
    say("sendfile to a pipe", sendfile(pipes[1], out, (off_t[]){0}, 10));
    moved(pipes[0]);
    say("two files", splice(fd, NULL, out, NULL, 4, 0));
    int append = open("out", O_WRONLY | O_APPEND);
    say("splice to appended", splice(pipes[0], NULL, append, NULL, 4, SPLICE_F_NONBLOCK));
    say("tee of files", tee(fd, out, 4, 0));
    say("fifo", mkfifo("fifo", 0600));
    int fifo = open("fifo", O_RDWR | O_NONBLOCK);
    struct iovec part = {"through memory", 14};
    say("vmsplice", vmsplice(fifo, &part, 1, 0));
    moved(fifo);
    say("vmsplice to a file", vmsplice(out, &part, 1, 0));

    struct {
        struct file_handle head;
        char room[128];
    } handle = {.head = {.handle_bytes = 128}};
    int mount;
    say("handle", name_to_handle_at(AT_FDCWD, "file", &handle.head, &mount, 0));
    int again = open_by_handle_at(fd, &handle.head, O_RDONLY);
    say("by handle", again >= 0);
    if (again >= 0)
        moved(again);
    handle.head.handle_bytes = 128;
    say("handle of a descriptor", name_to_handle_at(fd, "", &handle.head, &mount, AT_EMPTY_PATH));
    handle.head.handle_bytes = 128;
    say("handle of nothing", name_to_handle_at(AT_FDCWD, "none", &handle.head, &mount, 0));

    char value[64] = "", names[256] = "";
    say("trusted", setxattr("file", "trusted.one", "v", 1, 0));
    say("trusted, by number", fsetxattr(fd, "trusted.two", "ww", 2, 0));
    say("security", setxattr("file", "security.three", "xxx", 3, 0));
    say("symlink", symlink("file", "link"));
    say("of a link", lsetxattr("link", "trusted.link", "l", 1, 0));
    say("of a link's file", getxattr("link", "trusted.one", value, sizeof value));
    say("read", fgetxattr(fd, "trusted.two", value, sizeof value));
    say("read security", getxattr("file", "security.three", value, sizeof value));
    long length = listxattr("file", names, sizeof names);
    say("names", length);
    say("names of the link", llistxattr("link", names, sizeof names));
    say("remove", removexattr("file", "trusted.one"));
    say("read", getxattr("file", "trusted.one", value, sizeof value));
    say("size of names", flistxattr(fd, NULL, 0));
    say("too small", listxattr("file", names, 1));

    char *page, *wide, *volatile nothing = NULL;
    if (posix_memalign((void **)&page, 4096, 8192))
        return 1;
    memset(page, 'p', 8192);
    int direct = open("direct", O_CREAT | O_RDWR | O_DIRECT, 0600);
    say("direct", direct >= 0 ? 1 : -1);
    if (direct >= 0) {
        say("is direct", (fcntl(direct, F_GETFL) & O_DIRECT) != 0);
        say("aligned", write(direct, page, 4096));
        say("not aligned", write(direct, page + 1, 100));
        say("read", pread(direct, page, 4096, 0));
        say("read not aligned", pread(direct, page + 1, 99, 7));
    }
    say("readahead", readahead(fd, 0, 100));
    say("of a folder", readahead(open(".", O_RDONLY), 0, 100));
    say("of what is written only", readahead(append, 0, 100));
    say("of a fifo", readahead(fifo, 0, 100));
    say("range", sync_file_range(fd, 0, 10, SYNC_FILE_RANGE_WRITE));
    say("range's flags", sync_file_range(fd, 0, 10, 77));
    say("negative range", sync_file_range(fd, -1, 10, 0));
    say("range of a fifo", sync_file_range(fifo, 0, 10, 0));
    wide = malloc(8192);
    say("name", syscall(SYS_getcwd, wide, 8192) > 0);
    say("no room", syscall(SYS_getcwd, wide, 0));
    say("little room", syscall(SYS_getcwd, wide, 1));
    say("no memory", syscall(SYS_getcwd, NULL, 8192));
    say("bad memory", syscall(SYS_getcwd, (char *)-1, 8192));
    struct timespec times[2] = {{100, 0}, {200, 0}};
    say("times by number", syscall(SYS_utimensat, fd, NULL, times, 0));
    say("with flags", syscall(SYS_utimensat, fd, NULL, times, AT_SYMLINK_NOFOLLOW));
    say("by libc", utimensat(fd, nothing, times, 0));
    say("entries", syscall(SYS_getdents64, open(".", O_RDONLY), (char *)-1, 1000));
    say("one byte", syscall(SYS_getdents64, open(".", O_RDONLY), wide, 1));
    say("a file's", syscall(SYS_getdents64, fd, wide, 8192));
    int only_path = open("file", O_PATH);
    say("by path only", fgetxattr(only_path, "trusted.two", value, sizeof value));
    say("its ioctl", ioctl(only_path, FS_IOC_GETFLAGS, &at));
    say("its mode", fchmod(only_path, 0600));

    const unsigned long resolves[] = {RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS,
                                      RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS};
    int here = open(".", O_RDONLY | O_DIRECTORY);
    umask(027);
    for (int i = 0; i < 5; i++) {
        struct open_how how = {.flags = O_RDONLY, .resolve = resolves[i]};
        struct open_how creating = {.flags = O_RDWR | O_CREAT, .mode = 0666, .resolve = resolves[i]};
        const char *paths[] = {"file", "link", "folder/new", "../none", "folder/../file", "none"};
        for (int j = 0; j < 12; j++) {
            char what[64];
            int at = j < 6 ? AT_FDCWD : here;
            snprintf(what, sizeof what, "openat2 %lx %d %s", resolves[i], j < 6, paths[j % 6]);
            say(what, syscall(SYS_openat2, at, paths[j % 6], &how, sizeof how) >= 0 ? 1 : -1);
        }
        char name[64];
        struct stat made = {0};
        snprintf(name, sizeof name, "made%d", i);
        int new = syscall(SYS_openat2, AT_FDCWD, name, &creating, sizeof creating);
        say("made", new >= 0 ? write(new, "made", 4) : -1);
        say("stat", stat(name, &made) ? -1 : (long)(made.st_mode & 0777));
    }

    long flags = 0;
    struct fsxattr extended = {0};
    say("flags", ioctl(fd, FS_IOC_GETFLAGS, &flags));
    say("extended flags", ioctl(fd, FS_IOC_FSGETXATTR, &extended));
    say("version", ioctl(fd, FS_IOC_GETVERSION, &flags));
    say("clone", ioctl(out, FICLONE, fd) >= 0 ? 0 : 0);
    say("clone of nothing", ioctl(out, FICLONE, 999));
    say("not a terminal", ioctl(fd, TCGETS, value));
    say("bad address", ioctl(fd, FS_IOC_FSGETXATTR, NULL));
    return 0;
}
