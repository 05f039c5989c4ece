//! The plug-in's answers as the kernel's structures.

use zazen_forward_api::structures::PxStat;

/// A structure of the kernel's as it lies in memory.
pub(crate) fn bytes<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: used with C structures that were zeroed as a whole, so that all bytes are written.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

pub(crate) fn stat(from: &PxStat) -> libc::stat {
    // SAFETY: all zeros is a valid stat.
    let mut to: libc::stat = unsafe { std::mem::zeroed() };
    let [rdev_major, rdev_minor, dev_major, dev_minor] = from.devices;
    to.st_dev = libc::makedev(dev_major, dev_minor);
    to.st_rdev = libc::makedev(rdev_major, rdev_minor);
    to.st_ino = from.ino;
    to.st_mode = from.mode;
    to.st_nlink = from.nlink.into();
    to.st_uid = from.uid;
    to.st_gid = from.gid;
    to.st_size = from.size.cast_signed();
    to.st_blksize = from.blksize.cast_signed().into();
    to.st_blocks = from.blocks.cast_signed();
    [to.st_atime, _, to.st_ctime, to.st_mtime] = from.seconds;
    [to.st_atime_nsec, _, to.st_ctime_nsec, to.st_mtime_nsec] = from.nanoseconds.map(i64::from);
    to
}

pub(crate) fn statx(from: &PxStat) -> libc::statx {
    // SAFETY: all zeros is a valid statx.
    let mut to: libc::statx = unsafe { std::mem::zeroed() };
    to.stx_mask = from.mask;
    to.stx_blksize = from.blksize;
    to.stx_attributes = from.attributes;
    to.stx_attributes_mask = from.attributes_mask;
    to.stx_nlink = from.nlink;
    to.stx_uid = from.uid;
    to.stx_gid = from.gid;
    to.stx_mode = from.mode as u16;
    to.stx_ino = from.ino;
    to.stx_size = from.size;
    to.stx_blocks = from.blocks;
    to.stx_mnt_id = from.mnt_id;
    let times = [&mut to.stx_atime, &mut to.stx_btime, &mut to.stx_ctime, &mut to.stx_mtime];
    for (index, time) in times.into_iter().enumerate() {
        (time.tv_sec, time.tv_nsec) = (from.seconds[index], from.nanoseconds[index]);
    }
    [to.stx_rdev_major, to.stx_rdev_minor, to.stx_dev_major, to.stx_dev_minor] = from.devices;
    to
}
