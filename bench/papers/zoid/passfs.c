/* passfs.c: a minimal file system in user space that passes one file through, to compare
 * with forwarding.
 *
 *   passfs plain|passthrough FILE MOUNTPOINT
 *
 * FILE is MOUNTPOINT/file. plain: each read and write is a request (FOPEN_DIRECT_IO), which pread
 * and pwrite serve. passthrough: the kernel reads and writes the backing file itself (Linux 6.9 and
 * later). The program uses /dev/fuse directly, because libfuse of most distributions is older than
 * pass-through. Needs root. Prints "ready". SIGTERM unmounts. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Of Linux 6.9's linux/fuse.h, where the installed one is older. */
#define PASS_FLAG2 (1u << 5)        /* FUSE_PASSTHROUGH >> 32 */
#define PASS_OPEN (1u << 7)         /* FOPEN_PASSTHROUGH */
struct backing {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define BACKING_OPEN _IOW(229, 1, struct backing)
#define MAX_PAGES (1u << 22)

#define WRITE_MAX (1u << 20)
#define ROOT 1
#define FILE_NODE 2
/* Seconds that names and attributes hold: nobody else changes them. */
#define HOLDS 3600

static const char *mountpoint, *path;
static int device, passes;
static char request[WRITE_MAX + 65536] __attribute__((aligned(4096)));
static char data[WRITE_MAX] __attribute__((aligned(4096)));

static void fail(const char *what) {
    fprintf(stderr, "passfs: %s: %s\n", what, strerror(errno));
    umount2(mountpoint, MNT_DETACH);
    exit(1);
}

static void on_end(int number) {
    (void)number;
    umount2(mountpoint, MNT_DETACH);
    _exit(0);
}

static void answer(const struct fuse_in_header *in, int error, const void *body, size_t bytes) {
    struct fuse_out_header head = {(uint32_t)(sizeof head + bytes), -error, in->unique};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)body, bytes}};
    /* ENOENT: the caller was interrupted and has gone. */
    if (writev(device, parts, bytes > 0 ? 2 : 1) < 0 && errno != ENOENT && errno != ENODEV)
        fail("writev");
}

static int attributes(uint64_t node, struct fuse_attr *attr) {
    struct stat of;
    if ((node == ROOT ? stat("/", &of) : stat(path, &of)) != 0)
        return errno;
    memset(attr, 0, sizeof *attr);
    attr->ino = node;
    attr->size = (uint64_t)of.st_size;
    attr->blocks = (uint64_t)of.st_blocks;
    attr->mode = node == ROOT ? S_IFDIR | 0755 : of.st_mode;
    attr->nlink = 1;
    attr->blksize = 4096;
    return 0;
}

static void init(const struct fuse_in_header *in, const struct fuse_init_in *asked) {
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION};
    out.max_readahead = asked->max_readahead;
    out.flags = (FUSE_BIG_WRITES | MAX_PAGES | FUSE_INIT_EXT) & asked->flags;
    out.max_write = WRITE_MAX;
    out.max_pages = WRITE_MAX / 4096;
    out.max_background = 64;
    out.congestion_threshold = 48;
    if (passes) {
        if ((asked->flags & FUSE_INIT_EXT) == 0 || (asked->flags2 & PASS_FLAG2) == 0) {
            errno = EOPNOTSUPP;
            fail("this kernel has no FUSE pass-through");
        }
        out.flags2 = PASS_FLAG2;
        /* max_stack_depth, in newer headers. */
        out.unused[0] = 1;
    }
    answer(in, 0, &out, sizeof out);
}

static void open_file(const struct fuse_in_header *in, const struct fuse_open_in *asked) {
    struct fuse_open_out out = {0};
    int file = open(path, (int)(asked->flags & (O_ACCMODE | O_APPEND)) | O_CLOEXEC);
    if (file < 0) {
        answer(in, errno, NULL, 0);
        return;
    }
    out.fh = (uint64_t)file;
    out.open_flags = FOPEN_DIRECT_IO;
    if (passes) {
        struct backing backing = {.fd = file};
        int id = ioctl(device, BACKING_OPEN, &backing);
        if (id <= 0)
            fail("FUSE_DEV_IOC_BACKING_OPEN");
        out.open_flags = PASS_OPEN;
        out.padding = (uint32_t)id; /* backing_id, in newer headers */
    }
    answer(in, 0, &out, sizeof out);
}

static void serve(const struct fuse_in_header *in) {
    const void *body = in + 1;
    int error;
    switch (in->opcode) {
    case FUSE_INIT:
        init(in, body);
        return;
    case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.nodeid = FILE_NODE, .entry_valid = HOLDS, .attr_valid = HOLDS};
        error = strcmp(body, "file") == 0 ? attributes(FILE_NODE, &out.attr) : ENOENT;
        answer(in, error, &out, error != 0 ? 0 : sizeof out);
        return;
    }
    case FUSE_SETATTR: {
        const struct fuse_setattr_in *asked = body;
        if ((asked->valid & FATTR_SIZE) != 0 && truncate(path, (off_t)asked->size) != 0) {
            answer(in, errno, NULL, 0);
            return;
        }
    }
    /* fall through */
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = HOLDS};
        error = attributes(in->nodeid, &out.attr);
        answer(in, error, &out, error != 0 ? 0 : sizeof out);
        return;
    }
    case FUSE_OPEN:
        open_file(in, body);
        return;
    case FUSE_READ: {
        const struct fuse_read_in *asked = body;
        size_t room = asked->size < sizeof data ? asked->size : sizeof data;
        ssize_t got = pread((int)asked->fh, data, room, (off_t)asked->offset);
        answer(in, got < 0 ? errno : 0, data, got < 0 ? 0 : (size_t)got);
        return;
    }
    case FUSE_WRITE: {
        const struct fuse_write_in *asked = body;
        struct fuse_write_out out = {0};
        ssize_t put = pwrite((int)asked->fh, asked + 1, asked->size, (off_t)asked->offset);
        out.size = put < 0 ? 0 : (uint32_t)put;
        answer(in, put < 0 ? errno : 0, &out, put < 0 ? 0 : sizeof out);
        return;
    }
    case FUSE_RELEASE:
        close((int)((const struct fuse_release_in *)body)->fh);
        answer(in, 0, NULL, 0);
        return;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        answer(in, ENOSYS, NULL, 0);
    }
}

int main(int argc, char **argv) {
    char options[128];
    if (argc != 4)
        return fprintf(stderr, "passfs plain|passthrough FILE MOUNTPOINT\n"), 2;
    passes = strcmp(argv[1], "passthrough") == 0;
    path = argv[2];
    mountpoint = argv[3];
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0)
        fail("/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (mount("passfs", mountpoint, "fuse.passfs", MS_NOSUID | MS_NODEV, options) != 0)
        fail("mount");
    signal(SIGTERM, on_end);
    signal(SIGINT, on_end);
    puts("ready");
    fflush(stdout);
    for (;;) {
        ssize_t got = read(device, request, sizeof request);
        if (got < 0 && errno == ENODEV)
            return 0;
        if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN))
            continue;
        if (got < 0)
            fail("read");
        serve((const struct fuse_in_header *)request);
    }
}
