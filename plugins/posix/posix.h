/* posix.h: POSIX file and socket I/O as calls that are forwarded: the posix plug-in's interface.
 *
 * The preload library (crates/zazen-preload) is the client; docs/forwarding.md says what it
 * promises. What is forwarded is what a system call does, not the call: descriptors are numbers
 * of open file descriptions that the session (one process's view) holds at the far side; paths
 * are resolved at the far side, against a description of a directory or as absolute ones.
 *
 * A session is joined by as many connections as a process likes (one for each thread that is in
 * a call). Its key is 64 random bits that the client chooses; only callers of the same identity
 * can join: a host has a process for each. It ends, and all that it held is released, when its
 * last connection is gone, unless an exec was announced.
 *
 * Functions return -1 with errno set, as the system calls do. `tag` names a call that may block,
 * so that px_cancel() can interrupt it. */
#ifndef ZAZEN_POSIX_H
#define ZAZEN_POSIX_H

#include <stddef.h>
#include <stdint.h>

struct zazen_host;
struct zazen_caller;

/* A path is resolved against PX_ROOT if it is absolute, else against this description. */
#define PX_ROOT (-100)
/* The description's own offset. */
#define PX_OFFSET (-1)
/* Bytes of one read or write, at most. */
#define PX_BYTES_MAX 8388608
/* Bytes of a path with its NUL, at most. */
#define PX_PATH_MAX 4096

/* Bits of px_open_ahead()'s result: `stat` counts; `data` is all that there is. */
#define PX_AHEAD_STAT 1
#define PX_AHEAD_WHOLE 2
/* And of px_open_several(): the time of access is that of before the bytes of `data` were read.
 * Whoever reads them says so when it closes the file (PX_CLOSE_READ), or reads a byte. */
#define PX_AHEAD_QUIET 4
/* And of both: the file changed within the last three seconds, so that what is said of it may be
 * somebody's word that other files changed, too. */
#define PX_AHEAD_NEWS 8

/* Bits of px_close()'s `last`: no descriptor of the session refers to the description any more;
 * bytes that came along quietly were read. */
#define PX_CLOSE_LAST 1
#define PX_CLOSE_READ 2

enum px_hello_kind {
    PX_HELLO_NEW = 0,    /* a new session */
    PX_HELLO_JOIN = 1,   /* one more connection of a session */
    PX_HELLO_FORK = 2,   /* a new session that takes over the descriptions of a px_fork() */
    PX_HELLO_EXEC = 3    /* the same session after px_exec(): keeps what is listed, drops the rest */
};

struct px_hello {
    uint64_t key;
    uint64_t token; /* of px_fork(); PX_HELLO_NEW: the lowest number for a description */
    uint32_t kind;
    uint32_t pid; /* the client's */
    uint32_t umask;
    uint32_t keep_all; /* not only what is listed */
};

/* What an open gave. */
struct px_opened {
    uint64_t ino;
    uint64_t dev;
    uint32_t id;
    uint32_t mode; /* st_mode */
};

/* What statx(2) says, in its order. */
struct px_stat {
    uint32_t mask, blksize;
    uint64_t attributes;
    uint32_t nlink, uid, gid, mode;
    uint64_t ino, size, blocks, attributes_mask;
    int64_t atime, btime, ctime, mtime;
    uint32_t atime_nsec, btime_nsec, ctime_nsec, mtime_nsec;
    uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
    uint64_t mnt_id;
};

/* What one look of px_stat_several() found. `error`: errno, or 0 where `stat` counts. `acl`,
 * `label`: errno of asking for the attributes system.posix_acl_access and security.selinux; 0 where
 * they are there, or were not asked for. Nobody asks them of links. */
struct px_found {
    int32_t error, acl, label, reserved;
    struct px_stat stat;
};

/* A file that px_open_several() opened. Behind it stand `bytes` bytes of the file, and zeros up to
 * a multiple of 8. `bits`: PX_AHEAD_... */
struct px_came {
    struct px_opened opened;
    struct px_stat stat;
    int32_t bits;
    uint32_t bytes;
};

struct px_statfs {
    uint64_t type, bsize, blocks, bfree, bavail, files, ffree, fsid, namelen, frsize, flags;
};

/* A record lock: struct flock with fixed sizes. */
struct px_lock {
    int64_t start, length;
    int32_t type, whence, pid, reserved;
};

struct px_times {
    int64_t atime, atime_nsec, mtime, mtime_nsec;
};

struct px_pollfd {
    uint32_t id;
    int16_t events, revents;
};

struct px_address {
    uint32_t bytes;
    uint8_t data[128];
    uint32_t reserved;
};

/* START-ZAZEN-SCANNER ID=16 INIT=px_init FINI=px_fini ATTACH=px_attach DETACH=px_detach IDENTITY=caller */

int px_init(const struct zazen_host *host);
void px_fini(void);
void px_attach(const struct zazen_caller *caller);
void px_detach(const struct zazen_caller *caller, int32_t reason);

/* Sessions. */

/* errno */
int px_hello(const struct px_hello *hello /* in:ptr */, const uint32_t *keep /* in:arr:size=+1:max=1048576 */,
             uint32_t keep_count /* in:obj */);
/* Holds a copy of the session's descriptions until a PX_HELLO_FORK takes it, or half a minute
 * has passed. */
/* errno */
int px_fork(uint64_t *token /* out:ptr */);
/* Announces that the process is about to replace itself (1), or that it did not come to it (0). */
/* errno */
int px_exec(int coming /* in:obj */);
/* A process that becomes another user goes on with that user's plug-in process, and takes what
 * it has open along: here is the descriptor of a description, and there it is entered again
 * under the number that it had. */
/* errno */
int px_give(uint32_t id /* in:obj */, int *fd /* out:ptr:fd */);
/* errno */
int px_take(uint32_t id /* in:obj */, int fd /* in:obj:fd */);
/* Interrupts a blocking call of this session: it fails with EINTR. */
/* errno */
int px_cancel(uint32_t tag /* in:obj */);

/* Opening and closing. */

/* EINPROGRESS: it may block; ask px_open_wait(). */
/* errno */
int px_open(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
            uint32_t mode /* in:obj */, uint32_t mask /* in:obj */, struct px_opened *opened /* out:ptr */);
/* errno blocking */
int px_open_wait(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
                 uint32_t mode /* in:obj */, uint32_t mask /* in:obj */, uint32_t tag /* in:obj */,
                 struct px_opened *opened /* out:ptr */);
/* The same check, and a descriptor instead of a number. */
/* errno */
int px_open_direct(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
                   uint32_t mode /* in:obj */, uint32_t mask /* in:obj */, int *fd /* out:ptr:fd */);
/* `last`: PX_CLOSE_... Locks go either way. */
/* errno */
int px_close(uint32_t id /* in:obj */, int last /* in:obj */);

/* Data. */

/* errno */
int64_t px_read(uint32_t id /* in:obj */, int64_t offset /* in:obj */, int flags /* in:obj */,
                void *data /* out:arr:size=+1:zerocopy */, uint64_t *count /* inout:ptr */);
/* errno blocking */
int64_t px_read_wait(uint32_t id /* in:obj */, uint32_t tag /* in:obj */,
                     void *data /* out:arr:size=+1:zerocopy */, uint64_t *count /* inout:ptr */);
/* errno */
int64_t px_write(uint32_t id /* in:obj */, int64_t offset /* in:obj */, int flags /* in:obj */,
                 const void *data /* in:arr:size=+1:zerocopy */, uint64_t count /* in:obj */);
/* errno blocking */
int64_t px_write_wait(uint32_t id /* in:obj */, uint32_t tag /* in:obj */,
                      const void *data /* in:arr:size=+1:zerocopy */, uint64_t count /* in:obj */);
/* errno */
int64_t px_seek(uint32_t id /* in:obj */, int64_t offset /* in:obj */, int whence /* in:obj */);
/* Both offsets: PX_OFFSET or a position, which moves. */
/* errno */
int64_t px_copy(uint32_t from /* in:obj */, int64_t *from_offset /* inout:ptr */, uint32_t to /* in:obj */,
                int64_t *to_offset /* inout:ptr */, uint64_t count /* in:obj */);
/* errno */
int px_sync(uint32_t id /* in:obj */, int what /* in:obj */);
/* errno */
int px_truncate(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int64_t size /* in:obj */);
/* errno */
int px_allocate(uint32_t id /* in:obj */, int mode /* in:obj */, int64_t offset /* in:obj */,
                int64_t size /* in:obj */);
/* Linux's directory entries, as many as fit. */
/* errno */
int64_t px_entries(uint32_t id /* in:obj */, void *data /* out:arr:size=+1:zerocopy */,
                   uint64_t *count /* inout:ptr */);

/* What is known of a file. An empty path means the description `dir` itself. */

/* The result is 1 if the file changed within the last three seconds, else 0. */
/* errno */
int px_stat(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
            uint32_t mask /* in:obj */, struct px_stat *stat /* out:ptr */);
/* errno */
int px_statfs(int dir /* in:obj */, const char *path /* in:str:max=4096 */,
              struct px_statfs *stat /* out:ptr */);
/* errno */
int px_access(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int mode /* in:obj */,
              int flags /* in:obj */);
/* errno */
int px_chmod(int dir /* in:obj */, const char *path /* in:str:max=4096 */, uint32_t mode /* in:obj */,
             int flags /* in:obj */);
/* errno */
int px_chown(int dir /* in:obj */, const char *path /* in:str:max=4096 */, uint32_t uid /* in:obj */,
             uint32_t gid /* in:obj */, int flags /* in:obj */);
/* errno */
int px_utimes(int dir /* in:obj */, const char *path /* in:str:max=4096 */,
              const struct px_times *times /* in:ptr:nullok */, int flags /* in:obj */);
/* errno */
int px_readlink(int dir /* in:obj */, const char *path /* in:str:max=4096 */,
                void *target /* out:arr:size=+1:max=4096 */, uint64_t *room /* inout:ptr */);
/* The canonical path of a file, or of where the description is now. */
/* errno */
int px_realpath(int dir /* in:obj */, const char *path /* in:str:max=4096 */,
                void *target /* out:arr:size=+1:max=4096 */, uint64_t *room /* inout:ptr */);
/* errno */
int64_t px_getxattr(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
                    const char *name /* in:str:max=256 */, void *value /* out:arr:size=+1:max=65536 */,
                    uint64_t *room /* inout:ptr */);
/* errno */
int64_t px_listxattr(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
                     void *names /* out:arr:size=+1:max=65536 */, uint64_t *room /* inout:ptr */);
/* errno */
int px_setxattr(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
                const char *name /* in:str:max=256 */, const void *value /* in:arr:size=+1:max=65536 */,
                uint64_t count /* in:obj */, int how /* in:obj */);
/* errno */
int px_removexattr(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
                   const char *name /* in:str:max=256 */);

/* Names. */

/* errno */
int px_rename(int from /* in:obj */, const char *old_path /* in:str:max=4096 */, int to /* in:obj */,
              const char *new_path /* in:str:max=4096 */, uint32_t flags /* in:obj */);
/* errno */
int px_link(int from /* in:obj */, const char *old_path /* in:str:max=4096 */, int to /* in:obj */,
            const char *new_path /* in:str:max=4096 */, int flags /* in:obj */);
/* errno */
int px_symlink(const char *target /* in:str:max=4096 */, int dir /* in:obj */,
               const char *path /* in:str:max=4096 */);
/* errno */
int px_unlink(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */);
/* errno */
int px_mkdir(int dir /* in:obj */, const char *path /* in:str:max=4096 */, uint32_t mode /* in:obj */,
             uint32_t mask /* in:obj */);
/* errno */
int px_mknod(int dir /* in:obj */, const char *path /* in:str:max=4096 */, uint32_t mode /* in:obj */,
             uint64_t dev /* in:obj */, uint32_t mask /* in:obj */);

/* Locks and flags. */

/* F_GETLK, F_SETLK and F_OFD_ likewise. */
/* errno */
int px_lock(uint32_t id /* in:obj */, int command /* in:obj */, struct px_lock *lock /* inout:ptr */);
/* F_SETLKW, F_OFD_SETLKW. */
/* errno blocking */
int px_lock_wait(uint32_t id /* in:obj */, int command /* in:obj */, uint32_t tag /* in:obj */,
                 const struct px_lock *lock /* in:ptr */);
/* errno */
int px_flock(uint32_t id /* in:obj */, int operation /* in:obj */);
/* errno blocking */
int px_flock_wait(uint32_t id /* in:obj */, int operation /* in:obj */, uint32_t tag /* in:obj */);
/* F_GETFL, F_SETFL, F_GETPIPE_SZ, F_SETPIPE_SZ, F_ADD_SEALS, F_GET_SEALS, F_SETSIG and their kin
 * with an integer. */
/* errno */
int64_t px_fcntl(uint32_t id /* in:obj */, int command /* in:obj */, int64_t argument /* in:obj */);
/* FIONREAD, FIONBIO and the inode flags: with one 8-byte object. */
/* errno */
int px_ioctl(uint32_t id /* in:obj */, uint64_t request /* in:obj */, uint64_t *argument /* inout:ptr */);
/* errno */
int px_advise(uint32_t id /* in:obj */, int64_t offset /* in:obj */, int64_t size /* in:obj */,
              int advice /* in:obj */);

/* Sockets. */

/* errno */
int px_socket(int domain /* in:obj */, int type /* in:obj */, int protocol /* in:obj */,
              struct px_opened *opened /* out:ptr */);
/* errno */
int px_bind(uint32_t id /* in:obj */, const struct px_address *address /* in:ptr */);
/* errno */
int px_listen(uint32_t id /* in:obj */, int backlog /* in:obj */);
/* errno blocking */
int px_connect(uint32_t id /* in:obj */, uint32_t tag /* in:obj */,
               const struct px_address *address /* in:ptr */);
/* errno blocking */
int px_accept(uint32_t id /* in:obj */, uint32_t tag /* in:obj */, int flags /* in:obj */,
              struct px_address *address /* out:ptr */, struct px_opened *opened /* out:ptr */);
/* errno blocking */
int64_t px_send(uint32_t id /* in:obj */, uint32_t tag /* in:obj */, int flags /* in:obj */,
                const struct px_address *address /* in:ptr:nullok */,
                const void *data /* in:arr:size=+1:zerocopy */, uint64_t count /* in:obj */);
/* errno blocking */
int64_t px_receive(uint32_t id /* in:obj */, uint32_t tag /* in:obj */, int *flags /* inout:ptr */,
                   struct px_address *address /* out:ptr */, void *data /* out:arr:size=+1:zerocopy */,
                   uint64_t *count /* inout:ptr */);
/* errno */
int px_getsockopt(uint32_t id /* in:obj */, int level /* in:obj */, int name /* in:obj */,
                  void *value /* out:arr:size=+1:max=1024 */, uint64_t *room /* inout:ptr */);
/* errno */
int px_setsockopt(uint32_t id /* in:obj */, int level /* in:obj */, int name /* in:obj */,
                  const void *value /* in:arr:size=+1:max=1024 */, uint64_t count /* in:obj */);
/* The socket's own name (0) or its peer's (1). */
/* errno */
int px_sockname(uint32_t id /* in:obj */, int peer /* in:obj */, struct px_address *address /* out:ptr */);
/* errno */
int px_shutdown(uint32_t id /* in:obj */, int how /* in:obj */);
/* errno blocking */
int px_poll(struct px_pollfd *sockets /* inout:arr:size=+1:max=65536 */, uint32_t count /* in:obj */,
            int timeout_ms /* in:obj */, uint32_t tag /* in:obj */);

/* Answers that come along with others, for clients from which a message takes long. */

/* px_open() for reading, and what programs ask for next. `data` gets a regular file's bytes, if all
 * of them fit, and the offset stays at its beginning; or a directory's entries, and the offset is
 * behind them. The result has bits: PX_AHEAD_... */
/* errno */
int px_open_ahead(int dir /* in:obj */, const char *path /* in:str:max=4096 */, int flags /* in:obj */,
                  struct px_opened *opened /* out:ptr */, struct px_stat *stat /* out:ptr */,
                  void *data /* out:arr:size=+1:zerocopy */, uint64_t *count /* inout:ptr */);
/* px_stat() of several names in a folder: `folder` is empty, or a path that ends with a slash, and
 * each name ends with a NUL. `found` gets a struct px_found for each, as many as fit. `also`: the
 * two extended attributes, too. The result is 1 if one of the files changed within the last three
 * seconds, or one of the looks failed; else 0. */
/* errno */
int px_stat_several(int dir /* in:obj */, const char *folder /* in:str:max=4096 */, int flags /* in:obj */,
                    uint32_t mask /* in:obj */, int also /* in:obj */,
                    const void *names /* in:arr:size=+1:max=65536 */, uint64_t bytes /* in:obj */,
                    void *found /* out:arr:size=+1:zerocopy */, uint64_t *room /* inout:ptr */);
/* px_open_ahead() of the first of several names in a folder; and the files that follow, as a guess
 * of what the caller opens next: up to the first one that is no regular file, may not be opened or
 * has no blocks on its disk, and up to the first one whose bytes do not come. `folder` and `names`
 * are as in px_stat_several(). `files` gets a struct px_came, and the bytes, for each file that was
 * opened; the result is how many. A guess is opened with the same flags, waits for nothing, and
 * leaves no trace in the file's time of access. */
/* errno */
int px_open_several(int dir /* in:obj */, const char *folder /* in:str:max=4096 */, int flags /* in:obj */,
                    const void *names /* in:arr:size=+1:max=65536 */, uint64_t bytes /* in:obj */,
                    void *files /* out:arr:size=+1:zerocopy */, uint64_t *room /* inout:ptr */);

/* px_close() of several descriptions: `closes` is a number and PX_CLOSE_... of each, two uint32_t.
 * One that cannot be closed does not keep the others open; the result is of the last one. */
/* errno */
int px_close_several(const void *closes /* in:arr:size=+1:max=65536 */, uint64_t bytes /* in:obj */);

/* END-ZAZEN-SCANNER */

#endif
