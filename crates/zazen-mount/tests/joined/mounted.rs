//! A plain directory, mounted, against the kernel's own view of it. The tests need root: each
//! mounts in a mount namespace of its own thread, so that nothing stays behind.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use zazen_mount::contract::{fsx, names};
use zazen_mount::local::LocalTree;
use zazen_mount::{Mounted, Options};

const USER: u32 = 64_401;
const GROUP: u32 = 64_402;
/// A test is ended after this time.
const SECONDS_MAX: Duration = Duration::from_secs(240);

/// A thread of its own with a private mount namespace; `None` where that needs rights that the test
/// does not have.
pub(super) fn apart<T: Send>(act: impl FnOnce(&Path) -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: changes this thread's view of mounts alone; the strings are literals.
            let private = unsafe {
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(
                        c"none".as_ptr(),
                        c"/".as_ptr(),
                        std::ptr::null(),
                        libc::MS_REC | libc::MS_PRIVATE,
                        std::ptr::null(),
                    ) == 0
            };
            if !private {
                eprintln!("skipped: no mount namespace: {}", std::io::Error::last_os_error());
                return None;
            }
            fs::create_dir(path.join("plain")).unwrap();
            fs::create_dir(path.join("mnt")).unwrap();
            let (done, is_done) = mpsc::channel();
            let names =
                ["mnt", "mnt2"].map(|name| CString::new(path.join(name).as_os_str().as_bytes()).unwrap());
            // Begun here, it sees the mounts of this thread.
            let bound = std::thread::spawn(move || end_if_late(&is_done, &names));
            let result = act(path);
            drop(done);
            bound.join().unwrap();
            Some(result)
        });
        thread.join().unwrap()
    })
}

/// Ends a test that hangs: its calls fail once the mounts are gone, and if that does not help, the
/// process ends.
fn end_if_late(done: &mpsc::Receiver<()>, mounts: &[CString]) {
    for patience in [SECONDS_MAX, Duration::from_secs(20)] {
        if done.recv_timeout(patience) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        eprintln!("a test of a mount takes too long: its mounts are ended");
        for mount in mounts {
            // SAFETY: the kernel copies the path; a forced unmount fails what waits for the mount.
            unsafe { libc::umount2(mount.as_ptr(), libc::MNT_FORCE) };
        }
    }
    std::process::abort();
}

pub(super) fn options(passthrough: bool) -> Options {
    Options { source: "test".into(), allow_other: true, read_only: false, passthrough }
}

/// The folder `plain` mounted on `mnt`.
fn mounted(path: &Path, passthrough: bool) -> Mounted {
    let tree = Arc::new(LocalTree::new(&path.join("plain")).unwrap());
    Mounted::new(tree, &path.join("mnt"), &options(passthrough)).unwrap()
}

#[test]
fn names_behave_as_in_the_directory_itself() {
    apart(|path| {
        let mount = mounted(path, true);
        let oracle = path.join("oracle");
        fs::create_dir(&oracle).unwrap();
        for seed in 1..=3 {
            let sub = path.join(format!("mnt/{seed}"));
            let oracle = oracle.join(seed.to_string());
            fs::create_dir(&sub).unwrap();
            fs::create_dir(&oracle).unwrap();
            names::run(&sub, &oracle, seed, 1500).unwrap();
        }
        mount.unmount().unwrap();
        assert!(fs::read_dir(path.join("mnt")).unwrap().next().is_none());
    });
}

#[test]
fn bytes_are_what_was_written_also_through_two_mounts() {
    apart(|path| {
        for passthrough in [true, false] {
            let first = mounted(path, passthrough);
            fs::create_dir(path.join("mnt2")).unwrap();
            let tree = Arc::new(LocalTree::new(&path.join("plain")).unwrap());
            let second = Mounted::new(tree, &path.join("mnt2"), &options(passthrough)).unwrap();
            let work = |paths: &[&str], map, seed| fsx::Work {
                paths: paths.iter().map(|name| path.join(name)).collect(),
                seed,
                operations: 2000,
                bytes_max: fsx::BYTES_MAX,
                map,
            };
            fsx::run(&work(&["mnt/one"], true, 11)).unwrap();
            fsx::run(&work(&["mnt/two", "mnt2/two"], false, 12)).unwrap();
            first.unmount().unwrap();
            second.unmount().unwrap();
            fs::remove_dir(path.join("mnt2")).unwrap();
        }
    });
}

#[test]
fn a_killed_mount_is_replaced_and_a_living_one_is_not() {
    apart(|path| {
        let program = std::env::current_exe().unwrap();
        let program = program.parent().and_then(Path::parent).unwrap().join("examples/mount_local");
        let mnt = path.join("mnt");
        let mut child =
            std::process::Command::new(program).arg(path.join("plain")).arg(&mnt).spawn().unwrap();
        fs::write(path.join("plain/a"), "a").unwrap();
        wait_for(|| mnt.join("a").exists());
        let tree = || Arc::new(LocalTree::new(&path.join("plain")).unwrap());
        let refused = Mounted::new(tree(), &mnt, &options(true)).err().unwrap().to_string();
        assert!(refused.contains("zazen unmount"), "{refused}");
        child.kill().unwrap();
        child.wait().unwrap();
        wait_for(|| fs::metadata(&mnt).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN)));
        let mount = Mounted::new(tree(), &mnt, &options(true)).unwrap();
        assert_eq!(fs::read(mnt.join("a")).unwrap(), b"a");
        zazen_mount::mount::unmount(&mnt).unwrap();
        drop(mount);
        let refused = zazen_mount::mount::unmount(&mnt).unwrap_err().to_string();
        assert!(refused.contains("is no mount"), "{refused}");
        assert!(!mnt.join("a").exists());
    });
}

#[test]
fn a_signal_unmounts() {
    apart(|path| {
        let program = std::env::current_exe().unwrap();
        let program = program.parent().and_then(Path::parent).unwrap().join("examples/mount_local");
        let mnt = path.join("mnt");
        let mut child =
            std::process::Command::new(program).arg(path.join("plain")).arg(&mnt).spawn().unwrap();
        fs::write(path.join("plain/a"), "a").unwrap();
        wait_for(|| mnt.join("a").exists());
        // SAFETY: a signal to the child that was started above.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
        assert!(child.wait().unwrap().success());
        assert!(!mnt.join("a").exists());
    });
}

pub(super) fn wait_for(mut done: impl FnMut() -> bool) {
    for _ in 0..500 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("it did not happen within ten seconds");
}

/// The calling thread becomes a user with one supplementary group, for file access.
fn become_user(groups: &[u32]) {
    become_user_with(USER, groups);
}

/// The calling thread becomes user and group `id` with these supplementary groups, for file access.
pub(super) fn become_user_with(id: u32, groups: &[u32]) {
    let groups: Vec<rustix::process::Gid> =
        groups.iter().map(|gid| rustix::process::Gid::from_raw(*gid)).collect();
    rustix::thread::set_thread_groups(&groups).unwrap();
    // SAFETY: both change the calling thread alone.
    unsafe {
        libc::setfsgid(id);
        libc::setfsuid(id);
    }
}

#[test]
fn a_caller_has_its_groups_and_its_files() {
    apart(|path| {
        let mount = mounted(path, true);
        let mnt = path.join("mnt");
        fs::set_permissions(&mnt, fs::Permissions::from_mode(0o777)).unwrap();
        let secret = mnt.join("group");
        fs::write(&secret, "for the group").unwrap();
        chown(&secret, Some(0), Some(GROUP)).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
        let strict = mnt.join("folder");
        fs::create_dir(&strict).unwrap();
        chown(&strict, Some(0), Some(GROUP)).unwrap();
        fs::set_permissions(&strict, fs::Permissions::from_mode(0o770)).unwrap();
        let try_as = |groups: &'static [u32], name: &'static str| {
            std::thread::scope(|scope| {
                let (secret, strict, mnt) = (secret.clone(), strict.clone(), mnt.clone());
                let thread = scope.spawn(move || {
                    become_user(groups);
                    fs::write(mnt.join(name), "mine").unwrap();
                    (fs::read(&secret).is_ok(), fs::write(strict.join(name), "in").is_ok())
                });
                thread.join().unwrap()
            })
        };
        assert_eq!(try_as(&[GROUP], "in"), (true, true));
        assert_eq!(try_as(&[], "out"), (false, false));
        let own = fs::metadata(path.join("plain/in")).unwrap();
        assert_eq!((own.uid(), own.gid()), (USER, USER));
        assert_eq!(fs::metadata(path.join("plain/folder/in")).unwrap().uid(), USER);
        mount.unmount().unwrap();
    });
}

#[test]
fn another_users_write_takes_the_set_id_bits() {
    apart(|path| {
        let mount = mounted(path, true);
        let file: PathBuf = path.join("mnt/tool");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
        fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"root").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o6777);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                become_user(&[]);
                fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"user").unwrap();
            });
        });
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o777);
        mount.unmount().unwrap();
    });
}

fn lock(file: &fs::File, kind: i16, wait: bool) -> std::io::Result<()> {
    let range = libc::flock { l_type: kind, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // SAFETY: the range lives until the call returns.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const range) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn flock(file: &fs::File, operation: i32) -> std::io::Result<()> {
    // SAFETY: numbers and an open descriptor only.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn locks_exclude_wait_and_end_and_the_two_kinds_do_not_meet() {
    apart(|path| {
        let mount = mounted(path, true);
        let name = path.join("mnt/locked");
        fs::write(&name, "x").unwrap();
        let open = || fs::OpenOptions::new().read(true).write(true).open(&name).unwrap();
        let (a, b) = (open(), open());
        let again = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        };
        flock(&a, libc::LOCK_EX).unwrap();
        again(flock(&b, libc::LOCK_EX | libc::LOCK_NB));
        // fcntl's locks of all bytes are another kind.
        lock(&b, libc::F_WRLCK as i16, false).unwrap();
        again(lock(&a, libc::F_WRLCK as i16, false));
        // A wait ends when the lock does, here by the last close.
        let waits = std::thread::spawn(move || flock(&b, libc::LOCK_EX).map(|()| b));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!waits.is_finished());
        drop(a);
        let b = waits.join().unwrap().unwrap();
        let c = open();
        again(flock(&c, libc::LOCK_SH | libc::LOCK_NB));
        again(lock(&c, libc::F_RDLCK as i16, false));
        flock(&b, libc::LOCK_UN).unwrap();
        flock(&c, libc::LOCK_SH).unwrap();
        drop((b, c));
        mount.unmount().unwrap();
    });
}

#[test]
fn a_signal_ends_a_wait_for_a_lock() {
    apart(|path| {
        let mount = mounted(path, true);
        let name = path.join("mnt/locked");
        fs::write(&name, "x").unwrap();
        let held = fs::File::open(&name).unwrap();
        flock(&held, libc::LOCK_EX).unwrap();
        let mut child = std::process::Command::new("flock").arg(&name).arg("true").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(child.try_wait().unwrap().is_none());
        let started = std::time::Instant::now();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(started.elapsed() < std::time::Duration::from_secs(60));
        drop(held);
        mount.unmount().unwrap();
    });
}
