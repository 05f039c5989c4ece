/* locker.c: holds files, locks and children of its own until it is killed. It knows nothing of
 * forwarding.
 *
 *   locker FOLDER SEED */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILES 4
#define OPEN_MAX 32

static uint64_t state;

static uint64_t below(uint64_t bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 20) % bound;
}

int main(int argc, char **argv) {
    static char data[1 << 18];
    int open_files[OPEN_MAX];
    unsigned count = 0;
    char path[4096];
    if (argc != 3)
        return 2;
    state = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    puts("ready");
    fflush(stdout);
    for (;;) {
        int file = count > 0 ? open_files[below(count)] : -1;
        struct flock lock = {.l_whence = SEEK_SET, .l_start = (off_t)below(1000),
                                     .l_len = (off_t)below(100) + 1};
        switch (below(8)) {
        case 0:
        case 1:
            snprintf(path, sizeof path, "%s/lock%u", argv[1], (unsigned)below(FILES));
            if (count < OPEN_MAX && (file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0)
                open_files[count++] = file;
            break;
        case 2:
            lock.l_type = below(2) == 0 ? F_WRLCK : F_RDLCK;
            /* Some wait, and are killed while they do. */
            fcntl(file, below(8) == 0 ? F_SETLKW : F_SETLK, &lock);
            break;
        case 3:
            lock.l_type = F_UNLCK;
            fcntl(file, F_SETLK, &lock);
            break;
        case 4:
            flock(file, (below(2) == 0 ? LOCK_EX : LOCK_SH) | LOCK_NB);
            break;
        case 5:
            if (count > 0) {
                unsigned nth = (unsigned)below(count);
                close(open_files[nth]);
                open_files[nth] = open_files[--count];
            }
            break;
        case 6:
            if (pwrite(file, data, below(sizeof data), (off_t)below(1 << 20)) < 0 && errno == EIO)
                return 1;
            break;
        default:
            if (pread(file, data, below(sizeof data), (off_t)below(1 << 20)) < 0 && errno == EIO)
                return 1;
        }
    }
}
