/* nfsfs.c: a client of an NFS server as a FUSE file system, for kernels that can mount no NFS.
 *
 *   nfsfs nfs://HOST/EXPORT MOUNTPOINT
 *
 * It does what fuse-nfs does, which no distribution packages: each request of the kernel becomes
 * calls of libnfs (NFS v3), and no byte is kept (direct_io), so that each read comes from the
 * server. Each of its threads has a connection of its own, as nfs(5) nconnect has it. */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <nfsc/libnfs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRANSFER_MAX (1 << 20)
/* Files that a thread has open at the server. */
#define OPENED_MAX 64

/* An open file of a program. */
struct file {
    uint64_t number;
    int flags;
    char path[];
};

static const char *address;
static _Atomic uint64_t files;
/* This thread's connection, and the files that are open by it. */
static __thread struct nfs_context *nfs;
static __thread struct {
    uint64_t number;
    struct nfsfh *file;
} opened[OPENED_MAX];

static struct nfs_context *connection(void) {
    struct nfs_url *url;
    if (nfs != NULL)
        return nfs;
    nfs = nfs_init_context();
    url = nfs != NULL ? nfs_parse_url_dir(nfs, address) : NULL;
    if (url == NULL || nfs_mount(nfs, url->server, url->path) != 0) {
        fprintf(stderr, "nfsfs: %s: %s\n", address, nfs != NULL ? nfs_get_error(nfs) : "no memory");
        exit(1);
    }
    nfs_destroy_url(url);
    return nfs;
}

/* The file, open by this thread's connection. */
static int by_this_thread(const struct fuse_file_info *info, struct nfsfh **file) {
    const struct file *of = (const struct file *)(uintptr_t)info->fh;
    size_t at = of->number % OPENED_MAX;
    int failed;
    if (opened[at].file != NULL && opened[at].number == of->number) {
        *file = opened[at].file;
        return 0;
    }
    if (opened[at].file != NULL)
        nfs_close(connection(), opened[at].file);
    opened[at].file = NULL;
    failed = nfs_open(connection(), of->path, of->flags, &opened[at].file);
    if (failed != 0)
        return failed;
    opened[at].number = of->number;
    *file = opened[at].file;
    return 0;
}

static int remember(const char *path, struct fuse_file_info *info) {
    struct file *file = malloc(sizeof *file + strlen(path) + 1);
    if (file == NULL)
        return -ENOMEM;
    file->number = atomic_fetch_add(&files, 1) + 1;
    file->flags = info->flags & (O_ACCMODE | O_SYNC);
    strcpy(file->path, path);
    info->fh = (uint64_t)(uintptr_t)file;
    return 0;
}

static int get_attributes(const char *path, struct stat *into, struct fuse_file_info *info) {
    struct nfs_stat_64 of;
    int failed = nfs_lstat64(connection(), path, &of);
    (void)info;
    if (failed != 0)
        return failed;
    memset(into, 0, sizeof *into);
    into->st_ino = of.nfs_ino;
    into->st_mode = (mode_t)of.nfs_mode;
    into->st_nlink = of.nfs_nlink;
    into->st_uid = (uid_t)of.nfs_uid;
    into->st_gid = (gid_t)of.nfs_gid;
    into->st_size = (off_t)of.nfs_size;
    into->st_blksize = TRANSFER_MAX;
    into->st_blocks = (blkcnt_t)of.nfs_blocks;
    into->st_mtim.tv_sec = (time_t)of.nfs_mtime;
    into->st_mtim.tv_nsec = (long)of.nfs_mtime_nsec;
    return 0;
}

static int open_file(const char *path, struct fuse_file_info *info) {
    struct nfsfh *file;
    int failed = remember(path, info);
    if (failed == 0 && (failed = by_this_thread(info, &file)) != 0)
        free((void *)(uintptr_t)info->fh);
    return failed;
}

static int create_file(const char *path, mode_t mode, struct fuse_file_info *info) {
    struct nfsfh *file;
    int failed = nfs_creat(connection(), path, (int)mode, &file);
    if (failed != 0)
        return failed;
    nfs_close(connection(), file);
    return open_file(path, info);
}

static int read_file(const char *path, char *into, size_t bytes, off_t at, struct fuse_file_info *info) {
    struct nfsfh *file;
    int failed = by_this_thread(info, &file);
    (void)path;
    return failed != 0 ? failed : (int)nfs_pread(connection(), file, (uint64_t)at, bytes, into);
}

static int write_file(const char *path, const char *data, size_t bytes, off_t at,
                      struct fuse_file_info *info) {
    struct nfsfh *file;
    int failed = by_this_thread(info, &file);
    (void)path;
    return failed != 0 ? failed : (int)nfs_pwrite(connection(), file, (uint64_t)at, bytes, (void *)data);
}

static int truncate_file(const char *path, off_t bytes, struct fuse_file_info *info) {
    (void)info;
    return nfs_truncate(connection(), path, (uint64_t)bytes);
}

static int sync_file(const char *path, int data_only, struct fuse_file_info *info) {
    struct nfsfh *file;
    int failed = by_this_thread(info, &file);
    (void)path, (void)data_only;
    return failed != 0 ? failed : nfs_fsync(connection(), file);
}

static int release_file(const char *path, struct fuse_file_info *info) {
    (void)path;
    free((void *)(uintptr_t)info->fh);
    return 0;
}

static int remove_file(const char *path) {
    return nfs_unlink(connection(), path);
}

static int read_directory(const char *path, void *into, fuse_fill_dir_t fill, off_t at,
                          struct fuse_file_info *info, enum fuse_readdir_flags flags) {
    struct nfsdir *directory;
    struct nfsdirent *entry;
    int failed = nfs_opendir(connection(), path, &directory);
    (void)at, (void)info, (void)flags;
    if (failed != 0)
        return failed;
    while ((entry = nfs_readdir(connection(), directory)) != NULL)
        fill(into, entry->name, NULL, 0, 0);
    nfs_closedir(connection(), directory);
    return 0;
}

static void *begin(struct fuse_conn_info *kernel, struct fuse_config *config) {
    kernel->max_write = kernel->max_read = TRANSFER_MAX;
    config->direct_io = 1;
    config->attr_timeout = config->entry_timeout = 1;
    return NULL;
}

static const struct fuse_operations OPERATIONS = {
    .init = begin,
    .getattr = get_attributes,
    .open = open_file,
    .create = create_file,
    .read = read_file,
    .write = write_file,
    .truncate = truncate_file,
    .fsync = sync_file,
    .release = release_file,
    .unlink = remove_file,
    .readdir = read_directory,
};

int main(int argc, char **argv) {
    char limit[64];
    char *words[] = {argv[0], (char *)"-f", (char *)"-o", limit, NULL, NULL};
    if (argc != 3)
        return fprintf(stderr, "nfsfs nfs://HOST/EXPORT MOUNTPOINT\n"), 2;
    address = argv[1];
    words[4] = argv[2];
    /* Threads that wait for requests keep their connections. */
    snprintf(limit, sizeof limit, "max_read=%d,max_idle_threads=16", TRANSFER_MAX);
    return fuse_main(5, words, &OPERATIONS, NULL);
}
