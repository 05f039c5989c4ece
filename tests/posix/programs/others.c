/* others.c: functions of libc that do several things: `others FOLDER OTHER`, OTHER is a name of
 * a file in FOLDER. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>

static int visited;

/* What a call answered, and its error. It reads `errno` after the call: the arguments of one
 * printf have no order. */
static void say(const char *what, ssize_t answer)
{
    printf("%s %zd %s\n", what, answer, answer < 0 ? strerrorname_np(errno) : "-");
}

static int visit(const char *path, const struct stat *stat, int kind, struct FTW *at)
{
    (void)path, (void)stat, (void)kind, (void)at;
    return ++visited > 100;
}

int main(int count, char **words)
{
    char text[200], *name;
    struct stat stat;
    int fd, leader, status;
    if (chdir(words[1]))
        return 2;
    close(open("file", O_CREAT | O_WRONLY, 0644));
    lstat("file", &stat);
    printf("ftok %d %d\n", (unsigned)(ftok("file", 'z') & 0xffff) == (stat.st_ino & 0xffff), ftok("none", 1));
    strcpy(text, "nameXXXXXX");
    name = mktemp(text);
    printf("mktemp %.4s %d %d\n", name, strcmp(name, "nameXXXXXX") != 0, access(name, F_OK));
    name = tempnam(words[1], "pre");
    printf("tempnam %d %d\n", name && strncmp(name, words[1], strlen(words[1])) == 0,
           name ? access(name, F_OK) : 1);
    mkdir("tree", 0755);
    mkdir("tree/sub", 0755);
    if (symlink("..", "tree/sub/up") || symlink("sub", "tree/again"))
        perror("symlink");
    status = nftw("tree", visit, 10, 0);
    printf("nftw %d %d\n", status, visited);

    /* By their absolute names, quoted ones, ones that are not there, a command's. */
    setenv("FOLDER", words[1], 1);
    wordexp_t found = {0};
    status = wordexp("$FOLDER/tr*/* \"$FOLDER/t*\" $FOLDER/none* $(echo $FOLDER/fil?) t?ee", &found, 0);
    status += wordexp("$FOLDER/[f]ile", &found, WRDE_APPEND);
    printf("wordexp %d %zu", status, found.we_wordc);
    for (size_t at = 0; at < found.we_wordc; at++) {
        name = found.we_wordv[at];
        printf(" %s", strncmp(name, words[1], strlen(words[1])) ? name : name + strlen(words[1]));
    }
    wordfree(&found);
    printf(" %d %d\n", wordexp("$(true)*", &found, WRDE_NOCMD), wordexp("x;", &found, 0));

    fd = open("file", O_RDWR);
    if (write(fd, "0123456789", 10) != 10)
        perror("write");
    struct iovec parts[3] = {{text, 3}, {NULL, 0}, {text + 3, 3}};
    lseek(fd, 0, SEEK_SET);
    printf("readv %zd", readv(fd, parts, 3));
    printf(" %.6s\n", text);
    parts[0].iov_base = NULL;
    say("NULL part", readv(fd, parts, 1));
    parts[0].iov_base = text;
    parts[0].iov_len = (size_t)-1;
    say("too long", readv(fd, parts, 1));
    say("too long", writev(fd, parts, 2));
    printf("no parts %zd\n", readv(fd, parts, 0));
    say("too many", readv(fd, parts, 2000));
    close(fd);

    mkfifo("fifo", 0644);
    int ends = open("fifo", O_RDWR), entries = count + 0;
    struct pollfd ready[4] = {{ends, POLLIN, 0}, {ends, POLLOUT, 0}};
    entries = entries > 1 ? 2 : 1; /* not known to the compiler: with _FORTIFY_SOURCE this is __poll_chk */
    printf("poll %d", poll(ready, entries, 0));
    if (write(ends, "x", 1) == 1)
        printf(" %d", poll(ready, entries, 0));
    struct timespec soon = {0, 1000};
    printf(" %d %d %d\n", ppoll(ready, entries, &soon, NULL), ready[0].revents, ready[1].revents);
    close(ends);

    fd = open("printed", O_CREAT | O_WRONLY, 0644);
    printf("dprintf %d\n", dprintf(fd, "%s %d\n", words[0] ? "formatted" : "", 5));
    fflush(stdout);

    /* The streams of a terminal or of a daemon are no longer those of before. */
    dup2(fd, 1);
    if (forkpty(&leader, NULL, NULL, NULL) == 0) {
        printf("on the terminal %d\n", isatty(1));
        fflush(stdout);
        _exit(0);
    }
    ssize_t got = read(leader, text, sizeof text - 1);
    dprintf(fd, "terminal said %.*s", (int)(got > 0 ? got : 0), text);
    wait(&status);
    if (fork() == 0) {
        if (daemon(0, 0))
            _exit(1);
        printf("not in the file\n");
        fflush(stdout);
        fd = open(words[2], O_CREAT | O_WRONLY, 0644);
        dprintf(fd, "daemon at %s\n", getcwd(text, sizeof text));
        _exit(0);
    }
    wait(&status);
    for (int i = 0; i < 100 && (stat.st_size = 0, lstat(words[2], &stat) || stat.st_size == 0); i++)
        usleep(20000);
    return 0;
}
