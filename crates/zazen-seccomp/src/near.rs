//! Which folders prefixes stand for, as the daemon's kernel identifies them: so a program can find
//! out whether its own kernel has the same ones.

use crate::far::{Far, px};
use crate::identity::Identity;
use crate::target::Target;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zazen_forward_api::near::Folder;
use zazen_forward_api::paths;
use zazen_forward_api::structures::{PxStat, ROOT};

/// The folders of `forward`'s prefixes, in the form of `zazen_forward_api::near`, as this process's
/// user reaches them through the daemon behind `socket`. `None` if the daemon does not answer.
pub fn folders(forward: &OsStr, socket: &Path) -> Option<String> {
    let own = Target::own().status().ok()?.identity(false);
    let far = Far::connect(socket).ok()?;
    let all = paths::prefixes(forward.as_bytes()).map(|prefix| {
        folder(&far, &own, prefix.far).map_or_else(|| "-".to_owned(), |folder| folder.to_string())
    });
    Some(all.collect::<Vec<_>>().join(";"))
}

fn folder(far: &Far, own: &Identity, path: &[u8]) -> Option<Folder> {
    let path = CString::new(path).ok()?;
    let mut stat = PxStat::default();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
    far.acting(own, || px!(px_stat(ROOT, path.as_ptr(), 0, mask, (&raw mut stat).cast()))).ok()?;
    let told = stat.mask & libc::STATX_MNT_ID != 0 && stat.mode & libc::S_IFMT == libc::S_IFDIR;
    let device = [stat.devices[2], stat.devices[3]];
    told.then_some(Folder { device, inode: stat.ino, mount: stat.mnt_id })
}
