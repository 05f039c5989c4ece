/* Opens files of a folder one after the other, as programs do that read all of them.
 *
 * opens HOW FOLDER COUNT END [NAMES...]: HOW is "listed" (in the order in which the folder lists
 * them), "looked" (the same, and looks at each first) or "named" (in the order of the arguments).
 * Reads COUNT files, prints a line for each, then "ready", and does nothing at all until SIGUSR1
 * comes. Then END says what it does; the rest of the files is read after "go-on" and "hear". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMES 200

static volatile sig_atomic_t told;
static int asks_flags;
static char lines[NAMES * 300];
static size_t used;

static void at_usr1(int signal)
{
    (void)signal;
    told = 1;
}

/* What a program may learn of a file, as a line that is the same wherever the file is. */
static void see(int dir, const char *name, int look)
{
    static char bytes[1 << 20];
    struct stat before = {0}, stat;
    int looked = look ? fstatat(dir, name, &before, AT_SYMLINK_NOFOLLOW) : 0;
    int fd = openat(dir, name, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        used += sprintf(lines + used, "%s %d %o %d\n", name, looked, before.st_mode, -errno);
        return;
    }
    unsigned sum = 0;
    long got, all = 0;
    int failed = fstat(fd, &stat);
    while ((got = read(fd, bytes, sizeof bytes)) > 0) {
        all += got;
        for (long at = 0; at < got; at++)
            sum = sum * 31 + (unsigned char)bytes[at];
    }
    long error = got < 0 ? errno : 0, place = lseek(fd, 0, SEEK_CUR);
    long flags = asks_flags ? fcntl(fd, F_GETFL) : 0;
    used += sprintf(lines + used, "%s %d %o %d %o %ld %u %ld %ld %lo %d\n", name, looked, before.st_mode,
                    failed, stat.st_mode, all, sum, error, place, flags, close(fd));
}

static void say(const char *word)
{
    used += sprintf(lines + used, "%s\n", word);
    if (write(1, lines, used) != (ssize_t)used)
        exit(2);
    used = 0;
}

int main(int count, char **words)
{
    static char found[NAMES][256];
    const char *folder = words[2], *end = words[4];
    char **names = words + 5, *listed[NAMES], byte;
    int all = count - 5, first = atoi(words[3]), look = strcmp(words[1], "looked") == 0;
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return 2;
    signal(SIGUSR1, at_usr1);
    asks_flags = strcmp(end, "go-on") == 0;
    if (strcmp(words[1], "named") != 0) {
        DIR *stream = fdopendir(dup(dir));
        all = 0;
        for (struct dirent *entry = readdir(stream); entry && all < NAMES; entry = readdir(stream))
            if (entry->d_name[0] != '.') {
                strcpy(found[all], entry->d_name);
                listed[all] = found[all];
                all++;
            }
        closedir(stream);
        names = listed;
    }
    for (int at = 0; at < first && at < all; at++)
        see(dir, names[at], look);
    say("ready");
    while (!told && strcmp(end, "go-on") != 0)
        ;
    if (strcmp(end, "hear") == 0) {
        if (read(0, &byte, 1) != 1)
            return 3;
    } else if (strcmp(end, "change") == 0) {
        if (fchmod(dir, 0755) != 0)
            return 3;
    } else if (strcmp(end, "call") == 0) {
        if (faccessat(dir, ".", F_OK, 0) != 0)
            return 3;
    } else if (strcmp(end, "exec") == 0) {
        close(dir);
        execlp("cat", "cat", NULL);
        return 3;
    } else if (strcmp(end, "leave") == 0) {
        return 0;
    } else if (strcmp(end, "fork") == 0) {
        close(dir);
        fork();
    }
    if (strcmp(end, "hear") == 0 || strcmp(end, "go-on") == 0) {
        for (int at = first; at < all; at++)
            see(dir, names[at], look);
        say("done");
    } else {
        say("ended");
        /* Until the test has looked. */
        if (read(0, &byte, 1) < 0)
            return 3;
    }
    return 0;
}
