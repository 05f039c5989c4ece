//! Checks who could change what a path names, by the owner and mode of the file and of every folder
//! above it.
//!
//! A daemon trusts the bytes of its plug-ins and of its cache. So nobody else may be able to write
//! them or replace them: not the file, not a folder on the way, not a symbolic link on the way.
//!
//! Not covered: what root may do, who may mount, file systems whose servers do not keep owners and
//! modes, and user namespaces in which root's files cannot be told from those of unknown users.

use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use zazen_core::{Error, ErrorKind, Result};

/// Symbolic links that one path may pass through: the kernel's own bound.
const LINKS_MAX: usize = 40;
/// Write permission for others than the owner.
const OTHERS_WRITE: u32 = 0o022;
/// Where Linux keeps a POSIX access list.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Whose files are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trust {
    /// This user's and root's.
    pub uid: u32,
    /// Files that this group may write are trusted too. Root trusts only group 0.
    pub gid: u32,
}

impl Trust {
    /// Root and this process's own effective user.
    pub fn of_this_process() -> Trust {
        let uid = rustix::process::geteuid().as_raw();
        let gid = if uid == 0 { 0 } else { rustix::process::getegid().as_raw() };
        Trust { uid, gid }
    }
}

/// Fails with `Config` if a user whom `trust` does not name can change what `path` names. The
/// message says where and what to do. If `path` does not exist yet, only the folders above it
/// count.
pub fn check(path: &Path, trust: Trust) -> Result<()> {
    let absolute = std::path::absolute(path)
        .map_err(|error| Error::io(format!("{} cannot be made absolute", path.display()), error))?;
    let mut left: VecDeque<OsString> = names(&absolute);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    let mut above_is_shared = check_one(path, &at, trust, false)?.is_shared;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at.pop();
            above_is_shared = check_one(path, &at, trust, false)?.is_shared;
            continue;
        }
        let next = at.join(&name);
        let seen = match check_one(path, &next, trust, above_is_shared) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if !seen.is_link {
            (at, above_is_shared) = (next, seen.is_shared);
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(refuse(path, &next, "leads through too many symbolic links"));
        }
        let target = std::fs::read_link(&next)
            .map_err(|error| Error::io(format!("symbolic link {}", next.display()), error))?;
        for name in names(&target).into_iter().rev() {
            left.push_front(name);
        }
        if target.is_absolute() {
            at = PathBuf::from("/");
            above_is_shared = check_one(path, &at, trust, false)?.is_shared;
        }
    }
    Ok(())
}

/// The same for an opened file, called `name`, whose contents are believed: `Corrupt` if somebody
/// whom `trust` does not name can write them.
pub fn check_file(stat: &Stat, name: &Path, trust: Trust) -> Result<()> {
    let refuse = |why: String| {
        Err(Error::new(ErrorKind::Corrupt, format!("{} {why}; it is not believed", name.display())))
    };
    if !is_owned(stat.st_uid, trust) {
        return refuse(format!("belongs to user {}", stat.st_uid));
    }
    if stat.st_mode & OTHERS_WRITE != 0 {
        return refuse(format!("has mode {:04o}, so others could change it", stat.st_mode & 0o7777));
    }
    Ok(())
}

/// The same for an opened folder, called `name`, to which only this process writes. Its sticky bit
/// is not enough: others could put there what is not there yet.
pub fn check_folder(stat: &Stat, name: &Path, trust: Trust) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::Config, format!("{} {why}", name.display())));
    if !is_owned(stat.st_uid, trust) {
        return refuse(format!(
            "belongs to user {}, who could replace what is there; give it to user {} (chown -R), or choose \
             another place",
            stat.st_uid, trust.uid
        ));
    }
    let group_writes = stat.st_mode & 0o020 != 0 && stat.st_gid != trust.gid;
    if stat.st_mode & 0o002 != 0 || group_writes {
        return refuse(format!(
            "has mode {:04o}, so others could change it; run chmod go-w on it, or choose another place",
            stat.st_mode & 0o7777
        ));
    }
    Ok(())
}

fn is_owned(owner: u32, trust: Trust) -> bool {
    owner == 0 || owner == trust.uid || is_unseen_root(owner)
}

/// In a user namespace without a number for the machine's root (some containers), root's files show
/// the number that stands for all users whom the namespace does not know. Then they cannot be told
/// apart, and count as root's.
fn is_unseen_root(owner: u32) -> bool {
    static UNSEEN: OnceLock<Option<u32>> = OnceLock::new();
    let unseen = UNSEEN.get_or_init(|| {
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()?;
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        let mut outer = map.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse::<u32>().ok());
        (!outer.any(|first| first == 0)).then_some(overflow)
    });
    *unseen == Some(owner)
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

struct Seen {
    is_link: bool,
    /// A sticky folder that others may write: they can add names, not replace those of others.
    is_shared: bool,
}

fn refuse(path: &Path, at: &Path, why: impl std::fmt::Display) -> Error {
    let named = if path == at { String::new() } else { format!("{}: ", path.display()) };
    Error::new(ErrorKind::Config, format!("{named}{} {why}", at.display()))
}

/// Checks one name; `is_shared`: others can add names to the folder that it is in.
fn check_one(path: &Path, at: &Path, trust: Trust, is_shared: bool) -> Result<Seen> {
    let stat = rustix::fs::statat(CWD, at, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| match errno {
        Errno::NOENT => Error::new(ErrorKind::NotFound, format!("{} does not exist", at.display())),
        other => Error::io(format!("{}: look at its owner", at.display()), other.into()),
    })?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_owned = is_owned(stat.st_uid, trust);
    let owner = if trust.uid == 0 { "root".to_owned() } else { format!("user {} or root", trust.uid) };
    // A link's own mode says nothing; its folder's owner and mode do, but where others can add
    // names.
    if kind == FileType::Symlink && (is_owned || !is_shared) {
        return Ok(Seen { is_link: true, is_shared: false });
    }
    if !is_owned {
        return Err(refuse(
            path,
            at,
            format!("belongs to user {}, who could replace what is there; it must be {owner}'s", stat.st_uid),
        ));
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let group_writes = mode.contains(Mode::WGRP) && (stat.st_gid != trust.gid || has_access_list(at));
    let is_open = mode.contains(Mode::WOTH) || group_writes;
    let is_sticky = kind == FileType::Directory && mode.contains(Mode::SVTX);
    if is_open && !is_sticky {
        let bits = stat.st_mode & 0o7777;
        let who = if mode.contains(Mode::WOTH) { "everybody" } else { "its group or its access list" };
        return Err(refuse(
            path,
            at,
            format!("has mode {bits:04o}, so {who} could change it; chmod go-w it, or choose another place"),
        ));
    }
    Ok(Seen { is_link: false, is_shared: is_open })
}

/// With an access list, the group's bits are its mask: others than the group may be meant.
fn has_access_list(at: &Path) -> bool {
    rustix::fs::lgetxattr(at, ACCESS_LIST, &mut [0_u8; 0][..]).is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn said(path: &Path) -> String {
        check(path, Trust::of_this_process()).err().map_or_else(String::new, |error| error.to_string())
    }

    /// A folder below the temporary one, which is sticky.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        chmod(folder.path(), 0o755);
        folder
    }

    #[test]
    fn ones_own_files_are_believed_and_so_is_what_does_not_exist_yet() {
        let root = folder();
        let file = root.path().join("a/b");
        assert_eq!(said(&file), "");
        std::fs::create_dir(root.path().join("a")).unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(said(&file), "");
        assert_eq!(said(&root.path().join("a/../a/b")), "");
    }

    #[test]
    fn what_others_can_write_is_refused_wherever_on_the_way() {
        let root = folder();
        let (above, file) = (root.path().join("a"), root.path().join("a/b"));
        std::fs::create_dir(&above).unwrap();
        std::fs::write(&file, "").unwrap();
        chmod(&file, 0o666);
        assert!(said(&file).contains("has mode 0666, so everybody could change it"), "{}", said(&file));
        chmod(&file, 0o644);
        chmod(&above, 0o777);
        let text = said(&file);
        assert!(
            text.starts_with(&format!("{}: {} has mode 0777", file.display(), above.display())),
            "{text}"
        );
        chmod(&above, 0o1777);
        assert_eq!(said(&file), "", "nobody else can replace a file of ours in a sticky folder");
        let trust = Trust { gid: u32::MAX, ..Trust::of_this_process() };
        chmod(&above, 0o775);
        assert!(check(&file, trust).unwrap_err().to_string().contains("its group"));
    }

    #[test]
    fn links_are_followed_and_their_targets_checked() {
        let root = folder();
        let (good, bad) = (root.path().join("good"), root.path().join("bad"));
        std::fs::create_dir(&good).unwrap();
        std::fs::create_dir(&bad).unwrap();
        chmod(&bad, 0o777);
        symlink("bad/x", root.path().join("link")).unwrap();
        symlink(&good, root.path().join("other")).unwrap();
        symlink("round", root.path().join("round")).unwrap();
        assert!(said(&root.path().join("link")).contains("bad has mode 0777"));
        assert_eq!(said(&root.path().join("other/x")), "");
        assert!(said(&root.path().join("round")).contains("too many symbolic links"));
    }

    #[test]
    fn another_users_file_is_refused() {
        let root = folder();
        let file = root.path().join("a");
        std::fs::write(&file, "").unwrap();
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: giving files away needs root");
            return;
        }
        std::os::unix::fs::chown(&file, Some(64_101), None).unwrap();
        assert!(said(&file).contains("belongs to user 64101"), "{}", said(&file));
        let trust = Trust { uid: 64_101, gid: 64_101 };
        assert!(check(&file, trust).is_ok());
        // Another user's link in a sticky folder.
        chmod(root.path(), 0o1777);
        let link = root.path().join("link");
        symlink("/etc/passwd", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(64_101), None).unwrap();
        assert!(said(&link).contains("belongs to user 64101"), "{}", said(&link));
    }
}
