//! Random work on names, done in two directories: the mounted one, and a plain one as the oracle.
//! Results, error numbers, attributes and listings must be the same.

use super::Random;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

type Outcome = Result<String, i32>;

fn outcome<T: std::fmt::Display>(result: std::io::Result<T>) -> Outcome {
    result.map(|value| value.to_string()).map_err(|error| error.raw_os_error().unwrap_or(-1))
}

fn done(result: std::io::Result<()>) -> Outcome {
    outcome(result.map(|()| "done"))
}

fn path_in(root: &Path, random: &mut Random) -> PathBuf {
    let mut path = root.to_path_buf();
    for _ in 0..random.below(3) {
        path.push(format!("d{}", random.below(3)));
    }
    path.push(format!("{}{}", ["f", "d"][random.below(2) as usize], random.below(4)));
    path
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

fn last(result: i32) -> std::io::Result<()> {
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// One operation below `root`, as `random` says.
fn step(root: &Path, random: &mut Random) -> (String, Outcome) {
    let kind = random.below(16);
    let a = path_in(root, random);
    let b = path_in(root, random);
    let number = random.next();
    let result = match kind {
        0 | 1 => done(fs::create_dir(&a)),
        2 | 3 => {
            let bytes = number.to_le_bytes().repeat(1 + (number % 2000) as usize);
            let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&a);
            done(file.and_then(|file| file.write_all_at(&bytes, number % 5000)))
        }
        4 => outcome(fs::read(&a).map(|bytes| format!("{} {:?}", bytes.len(), bytes.last()))),
        5 => done(fs::remove_file(&a)),
        6 => done(fs::remove_dir(&a)),
        7 | 8 => done(fs::rename(&a, &b)),
        9 => done(fs::hard_link(&a, &b)),
        10 => done(std::os::unix::fs::symlink(format!("f{}", number % 4), &a)),
        11 => done(fs::set_permissions(&a, fs::Permissions::from_mode(0o400 | (number % 0o1000) as u32))),
        12 => {
            let file = fs::OpenOptions::new().write(true).custom_flags(libc::O_TRUNC).open(&a);
            done(file.and_then(|file| file.set_len(number % 100_000)))
        }
        13 => {
            let flag = if number.is_multiple_of(2) { libc::RENAME_EXCHANGE } else { libc::RENAME_NOREPLACE };
            let (from, to) = (c(&a), c(&b));
            let (fd, from, to) = (libc::AT_FDCWD, from.as_ptr(), to.as_ptr());
            // SAFETY: both paths live until the call returns.
            done(last(unsafe { libc::renameat2(fd, from, fd, to, flag) }))
        }
        14 => {
            let (path, value) = (c(&a), number.to_le_bytes());
            // SAFETY: path, name and value live until the call returns.
            done(last(unsafe {
                libc::setxattr(path.as_ptr(), c"user.zazen".as_ptr(), value.as_ptr().cast(), 8, 0)
            }))
        }
        _ => outcome(fs::symlink_metadata(&a).map(|meta| describe(&meta))),
    };
    let relative = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
    (format!("kind {kind} {} {}", relative(&a), relative(&b)), result)
}

fn describe(meta: &fs::Metadata) -> String {
    // A directory's bytes are the file system's own business.
    let bytes = if meta.is_dir() { 0 } else { meta.len() };
    format!("{:o} {} {} {} {bytes}", meta.mode(), meta.uid(), meta.gid(), meta.nlink())
}

fn tree(root: &Path, at: &Path, into: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    for entry in fs::read_dir(at)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        let mut text = describe(&meta);
        if meta.is_file() {
            let bytes = fs::read(&path)?;
            text += &format!(
                " {:x}",
                bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31) ^ u64::from(*byte))
            );
        } else if meta.is_symlink() {
            text += &format!(" {}", fs::read_link(&path)?.display());
        }
        into.insert(path.strip_prefix(root).unwrap_or(&path).display().to_string(), text);
        if meta.is_dir() {
            tree(root, &path, into)?;
        }
    }
    Ok(())
}

/// Does the same `operations` in both directories.
pub fn run(mounted: &Path, plain: &Path, seed: u64, operations: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut log: Vec<String> = Vec::new();
    for number in 0..operations {
        let mut same = random.clone();
        let (what, expected) = step(plain, &mut same);
        let (_, got) = step(mounted, &mut random);
        log.push(format!("{number}: {what} -> {expected:?}"));
        let recent = || log[log.len().saturating_sub(20)..].join("\n");
        if got != expected {
            return Err(format!("seed {seed}: got {got:?}, expected {expected:?}\n{}", recent()));
        }
        if number % 500 == 499 || number + 1 == operations {
            let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
            tree(mounted, mounted, &mut ours)
                .map_err(|error| format!("list the mount: {error}\n{}", recent()))?;
            tree(plain, plain, &mut theirs).map_err(|error| format!("list the oracle: {error}"))?;
            if ours != theirs {
                let differ: Vec<_> =
                    ours.iter().filter(|(name, text)| theirs.get(*name) != Some(*text)).collect();
                let lack: Vec<_> = theirs.keys().filter(|name| !ours.contains_key(*name)).collect();
                return Err(format!(
                    "seed {seed}, {number}: trees differ: {differ:?}; lack {lack:?}\n{}",
                    recent()
                ));
            }
        }
    }
    Ok(())
}
