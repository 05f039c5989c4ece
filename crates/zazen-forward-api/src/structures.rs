//! The structures and constants of `plugins/posix/posix.h`.
//!
//! Invariant: each structure is laid out as in the header; `tests/joined/layout.rs` compares sizes,
//! offsets and constants.

/// The posix plug-in's number: `ID=` of the header.
pub const PLUGIN_ID: u16 = 16;

/// `PX_ROOT`: the path is absolute.
pub const ROOT: i32 = -100;
/// `PX_OFFSET`: the description's own offset.
pub const OFFSET: i64 = -1;
/// `PX_BYTES_MAX`: the most bytes of one read or write.
pub const BYTES_MAX: usize = 8 << 20;

/// `PX_HELLO_NEW`: begins a new session.
pub const HELLO_NEW: u32 = 0;
/// `PX_HELLO_JOIN`: adds a connection to a session.
pub const HELLO_JOIN: u32 = 1;
/// `PX_HELLO_FORK`: begins a new session that takes over the descriptions of a `px_fork()`.
pub const HELLO_FORK: u32 = 2;
/// `PX_HELLO_EXEC`: goes on with the same session after `px_exec()`, keeps what is listed and drops
/// the rest.
pub const HELLO_EXEC: u32 = 3;

/// `struct px_hello`: how a connection joins a session.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The session's key: 64 random bits that the client chooses.
    pub key: u64,
    /// The token of a `px_fork()`.
    pub token: u64,
    /// One of the `HELLO_` constants.
    pub kind: u32,
    /// The client's process.
    pub pid: u32,
    /// The client's file mode creation mask.
    pub umask: u32,
    /// Not 0: keep all descriptions, not only the listed ones.
    pub keep_all: u32,
}

/// `struct px_opened`: what an open gave.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PxOpened {
    /// Inode number.
    pub ino: u64,
    /// Device number.
    pub dev: u64,
    /// The number of the open file description in its session.
    pub id: u32,
    /// `st_mode`.
    pub mode: u32,
}

/// `struct px_stat`: what statx(2) says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PxStat {
    /// `stx_mask`.
    pub mask: u32,
    /// `stx_blksize`.
    pub blksize: u32,
    /// `stx_attributes`.
    pub attributes: u64,
    /// `stx_nlink`.
    pub nlink: u32,
    /// `stx_uid`.
    pub uid: u32,
    /// `stx_gid`.
    pub gid: u32,
    /// `stx_mode`.
    pub mode: u32,
    /// `stx_ino`.
    pub ino: u64,
    /// `stx_size`.
    pub size: u64,
    /// `stx_blocks`.
    pub blocks: u64,
    /// `stx_attributes_mask`.
    pub attributes_mask: u64,
    /// Seconds of access, birth, status change and modification.
    pub seconds: [i64; 4],
    /// Nanoseconds of the same.
    pub nanoseconds: [u32; 4],
    /// Major and minor number of the device that the file is, then of the device that holds the
    /// file.
    pub devices: [u32; 4],
    /// `stx_mnt_id`.
    pub mnt_id: u64,
}

/// `PX_AHEAD_STAT`: `px_open_ahead()` tells the attributes.
pub const AHEAD_STAT: i32 = 1;
/// `PX_AHEAD_WHOLE`: what `px_open_ahead()` brings is all that there is.
pub const AHEAD_WHOLE: i32 = 2;

/// `PX_AHEAD_QUIET`: the time of access is that of before the bytes were read.
pub const AHEAD_QUIET: i32 = 4;
/// `PX_AHEAD_NEWS`: the file changed within the last three seconds.
pub const AHEAD_NEWS: i32 = 8;

/// `PX_CLOSE_LAST`: no descriptor of the session refers to the description any more.
pub const CLOSE_LAST: i32 = 1;
/// `PX_CLOSE_READ`: bytes that came along quietly were read.
pub const CLOSE_READ: i32 = 2;

/// `struct px_came`: a file that was opened along with another one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// The open file description.
    pub opened: PxOpened,
    /// Its attributes.
    pub stat: PxStat,
    /// Bits of `px_open_ahead()`'s result.
    pub bits: i32,
    /// Bytes of the file that stand behind this, and zeros up to a multiple of 8.
    pub bytes: u32,
}

/// `struct px_found`: what one look of several found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// errno; 0 where `stat` counts.
    pub error: i32,
    /// errno of asking for the access control list; 0 where it is there, or was not asked for.
    pub acl: i32,
    /// The same for SELinux's label.
    pub label: i32,
    /// 0.
    pub reserved: i32,
    /// The attributes.
    pub stat: PxStat,
}

/// `struct px_statfs`, its eleven numbers in the header's order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs(pub [u64; 11]);

/// `struct px_lock`: a record lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// `l_start`.
    pub start: i64,
    /// `l_len`.
    pub length: i64,
    /// `l_type`.
    pub kind: i32,
    /// `l_whence`.
    pub whence: i32,
    /// `l_pid`.
    pub pid: i32,
    /// 0.
    pub reserved: i32,
}

/// `struct px_times`: access time, its nanoseconds, modification time, its nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times(pub [i64; 4]);

/// `struct px_pollfd`: `struct pollfd` with a description instead of a descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollFd {
    /// The description.
    pub id: u32,
    /// What is waited for.
    pub events: i16,
    /// What has happened.
    pub revents: i16,
}

/// `struct px_address`: a socket's address.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Bytes of `data` that count.
    pub bytes: u32,
    /// A `struct sockaddr`.
    pub data: [u8; 128],
    /// 0.
    pub reserved: u32,
}

impl Default for Address {
    fn default() -> Address {
        Address { bytes: 0, data: [0; 128], reserved: 0 }
    }
}

/// Numbers of functions: their order in `posix.h`. `zazen run --shared-read` compares them with the
/// generator's.
pub mod function {
    /// `px_hello`
    pub const HELLO: u32 = 0;
    /// `px_close`
    pub const CLOSE: u32 = 9;
    /// `px_read`
    pub const READ: u32 = 10;
    /// `px_write`
    pub const WRITE: u32 = 12;
    /// `px_seek`
    pub const SEEK: u32 = 14;
    /// `px_entries`
    pub const ENTRIES: u32 = 19;
    /// `px_stat`
    pub const STAT: u32 = 20;
    /// `px_statfs`
    pub const STATFS: u32 = 21;
    /// `px_access`
    pub const ACCESS: u32 = 22;
    /// `px_realpath`
    pub const REALPATH: u32 = 27;
    /// `px_getxattr`
    pub const GETXATTR: u32 = 28;
    /// `px_listxattr`
    pub const LISTXATTR: u32 = 29;
    /// `px_fcntl`
    pub const FCNTL: u32 = 42;
    /// `px_advise`
    pub const ADVISE: u32 = 44;
    /// `px_open_ahead`
    pub const OPEN_AHEAD: u32 = 57;
    /// `px_stat_several`
    pub const STAT_SEVERAL: u32 = 58;
    /// `px_open_several`
    pub const OPEN_SEVERAL: u32 = 59;
    /// `px_close_several`
    pub const CLOSE_SEVERAL: u32 = 60;
}
