//! Where a tree may be mounted.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::ownership::{self, Trust};

/// Fails with `InvalidArgument` unless `mountpoint` is a folder, and no link to one: who owns the
/// link would say where the tree goes. If root mounts, it fails with `Config` if others could
/// replace the folder or one above it: a mount over /etc would be theirs. They may write to it.
pub(crate) fn check(mountpoint: &Path) -> Result<()> {
    let refuse = |why: String| {
        let text = format!("mount {}: {why}", mountpoint.display());
        Err(Error::new(ErrorKind::InvalidArgument, text))
    };
    // What cannot be looked at, the kernel refuses.
    let Ok(found) = mountpoint.symlink_metadata() else { return Ok(()) };
    if found.is_symlink() {
        return match mountpoint.canonicalize() {
            Ok(folder) => refuse(format!("it is a link; give the folder {}", folder.display())),
            Err(_) => refuse("it is a link that leads nowhere; give a folder".to_owned()),
        };
    }
    if !found.is_dir() {
        return refuse("it is not a folder; make one with mkdir".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        // The kernel and fusermount3 look at what a user may mount on.
        return Ok(());
    }
    let above = mountpoint.parent().unwrap_or(Path::new("/"));
    ownership::check(above, Trust::of_this_process())
        .map_err(|error| error.within(format!("mount {}", mountpoint.display())))?;
    // Where others may add names, as in /tmp or in a group's sticky folder, they may rename what is
    // theirs.
    let is_shared = above.metadata().is_ok_and(|above| above.mode() & 0o022 != 0);
    if is_shared && found.uid() != 0 {
        let user = found.uid();
        return refuse(format!("it belongs to user {user}, who could replace it; give it to root"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_tree_is_mounted_on_folders_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("folder")).unwrap();
        std::fs::write(path("file"), b"").unwrap();
        symlink("folder", path("link")).unwrap();
        symlink("nowhere", path("dangling")).unwrap();
        check(&path("folder")).unwrap();
        let refused = |name: &str| check(&path(name)).unwrap_err().to_string();
        assert!(refused("file").ends_with("it is not a folder; make one with mkdir"), "{}", refused("file"));
        assert!(refused("link").ends_with("/folder"), "{}", refused("link"));
        assert!(refused("dangling").contains("leads nowhere"), "{}", refused("dangling"));
    }

    #[test]
    fn root_mounts_on_nothing_that_others_can_replace() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root, who owns files of others");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (theirs, below) = (dir.path().join("theirs"), dir.path().join("theirs/0"));
        std::fs::create_dir_all(&below).unwrap();
        chown(&theirs, Some(65_533), None).unwrap();
        let refused = check(&below).unwrap_err();
        assert!(refused.to_string().contains("belongs to user 65533"), "{refused}");
        chown(&theirs, Some(0), None).unwrap();
        std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(check(&below).is_err());
        // As in /tmp: others can add names there, and replace none of root's.
        std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o1777)).unwrap();
        check(&below).unwrap();
        chown(&below, Some(65_533), None).unwrap();
        assert!(check(&below).unwrap_err().to_string().contains("give it to root"));
        std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o1770)).unwrap();
        chown(&theirs, None, Some(65_533)).unwrap();
        assert!(check(&below).unwrap_err().to_string().contains("give it to root"), "a group's folder");
        // In a folder of root's they cannot replace even what is theirs.
        std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&below, PermissionsExt::from_mode(0o777)).unwrap();
        check(&below).unwrap();
    }
}
