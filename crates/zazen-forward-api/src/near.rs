//! Which folders the far sides of prefixes are, as `zazen run` tells the preload library. Pure.
//!
//! One part for each prefix, in their order, separated by semicolons: `MAJOR,MINOR,INODE,MOUNT` in
//! hexadecimal, or `-` where the daemon did not say.

use std::fmt;

/// A folder, as statx(2) identifies it. No two mounts of a kernel have the same mount ID at a time,
/// and each belongs to one mount namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folder {
    /// `stx_dev_major`, `stx_dev_minor`.
    pub device: [u32; 2],
    /// `stx_ino`.
    pub inode: u64,
    /// `stx_mnt_id`.
    pub mount: u64,
}

impl fmt::Display for Folder {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor] = self.device;
        write!(to, "{major:x},{minor:x},{:x},{:x}", self.inode, self.mount)
    }
}

fn hex(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(str::from_utf8(text).ok()?, 16).ok()
}

/// The parts of the text; `None` for what is not a folder's.
pub fn folders(text: &[u8]) -> impl Iterator<Item = Option<Folder>> {
    text.split(|byte| *byte == b';').map(|part| {
        let mut numbers = part.split(|byte| *byte == b',').map(hex);
        let mut next = || numbers.next().flatten();
        let (major, minor, inode, mount) = (next()?, next()?, next()?, next()?);
        let device = [u32::try_from(major).ok()?, u32::try_from(minor).ok()?];
        numbers.next().is_none().then_some(Folder { device, inode, mount })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_back_as_they_were_told() {
        let one = Folder { device: [8, 0xfe], inode: u64::MAX, mount: 0x1_0000_0001 };
        let text = format!("{one};-;{}", Folder { inode: 2, ..one });
        let all: Vec<_> = folders(text.as_bytes()).collect();
        assert_eq!(all, [Some(one), None, Some(Folder { inode: 2, ..one })]);
    }

    #[test]
    fn what_is_no_folder_is_none() {
        for text in ["", "1", "1,2,3", "1,2,3,4,5", "1,2,3,x", "100000000,2,3,4", "-1,2,3,4", "\u{fc},2,3,4"]
        {
            assert_eq!(folders(text.as_bytes()).collect::<Vec<_>>(), [None], "{text}");
        }
    }
}
