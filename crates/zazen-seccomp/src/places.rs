//! Where a path of the program leads, and the working directories of its processes.
//!
//! A supervisor cannot change the working directory of a process. If a process changes to a
//! directory below a prefix, it is remembered here: from then on its relative paths, and those of
//! its children, are resolved here, until it changes to a local directory.
//!
//! Invariants: what a child inherited is written down before its parent moves or ends; a path that
//! is not below a prefix is resolved by the kernel, within the program's root directory, mounts and
//! Landlock rules, or not at all.

use crate::target::{Target, Whereabouts};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_forward_api::paths::{self, Prefix, Route, Text};

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolver {
    /// The kernel resolves it, as the program gave it.
    Kernel,
    /// It is below a prefix: the plug-in resolves this absolute path.
    Asked(CString),
}

/// A working directory that the kernel does not know of. It is kept open, so that its name is known
/// even after a rename.
type Directory = Arc<OwnedFd>;

struct Process {
    /// In ticks since boot: a number that is used again is not the same process.
    started: u64,
    seat: Option<Seat>,
}

/// The working directory of a process, where the kernel has another one.
#[derive(Clone)]
struct Seat {
    directory: Directory,
    /// The kernel was told to move the process there. Once it is there, this seat no longer counts.
    leaving_for: Option<Whereabouts>,
}

pub(crate) struct Places {
    /// `LOCAL=FAR:…`, each FAR canonical.
    settings: Vec<u8>,
    processes: Mutex<HashMap<i32, Process>>,
    /// Whether any process ever went below a prefix.
    any: AtomicBool,
}

impl Places {
    pub(crate) fn new(settings: Vec<u8>) -> Places {
        Places { settings, processes: Mutex::default(), any: false.into() }
    }

    fn prefixes(&self) -> Vec<Prefix<'_>> {
        paths::prefixes(&self.settings).collect()
    }

    /// Where `path` leads, seen from descriptor `dir`. With `may_be_empty`, an empty path means
    /// `dir` itself.
    pub(crate) fn place(
        &self,
        target: &Target,
        dir: i32,
        path: &[u8],
        may_be_empty: bool,
    ) -> Result<Resolver, i32> {
        let mut out = Text::new();
        if path.first() == Some(&b'/') {
            return match paths::route(path, &self.prefixes(), &mut out) {
                // A path that only begins below a prefix is the kernel's as it stands.
                Route::Local | Route::LocalAs => Ok(Resolver::Kernel),
                Route::Far => asked(out.as_bytes()),
                Route::TooLong => Err(libc::ENAMETOOLONG),
            };
        }
        if dir == libc::AT_FDCWD
            && let Some(directory) = self.directory_of(target)
        {
            if path.is_empty() && !may_be_empty {
                return Err(libc::ENOENT);
            }
            return self.below(&directory, path);
        }
        if path.is_empty() {
            return Ok(Resolver::Kernel);
        }
        self.seen_from_local(target, dir, path)
    }

    /// From a local directory a path can lead below a prefix by `..`, or if the directory is above
    /// a prefix.
    fn seen_from_local(&self, target: &Target, dir: i32, path: &[u8]) -> Result<Resolver, i32> {
        let prefixes = self.prefixes();
        let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
        let named = |prefix: &Prefix<'_>| prefix.local.split(|byte| *byte == b'/').any(|part| part == first);
        if !first.starts_with(b".") && !prefixes.iter().any(named) {
            return Ok(Resolver::Kernel);
        }
        let link = if dir == libc::AT_FDCWD { "cwd".to_owned() } else { format!("fd/{dir}") };
        let Some(name) = target.link(&link).filter(|name| name.first() == Some(&b'/')) else {
            return Ok(Resolver::Kernel);
        };
        let (mut whole, mut out) = (Text::new(), Text::new());
        if !paths::normalize(&name, path, &mut whole) {
            return Ok(Resolver::Kernel);
        }
        match paths::route(whole.as_bytes(), &prefixes, &mut out) {
            Route::Far => asked(out.as_bytes()),
            _ => Ok(Resolver::Kernel),
        }
    }

    /// From a directory that only the supervisor knows of. EXDEV if the path leaves the far side:
    /// the kernel would begin at another directory, and the supervisor accesses no local files for
    /// a program.
    fn below(&self, directory: &[u8], path: &[u8]) -> Result<Resolver, i32> {
        let prefixes = self.prefixes();
        let (mut name, mut whole, mut out) = (Text::new(), Text::new(), Text::new());
        let far = paths::local_of(directory, &prefixes, &mut name);
        let joined: Vec<u8> = match path {
            b"" => directory.to_vec(),
            _ => [if directory == b"/" { b"" } else { directory }, b"/", path].concat(),
        };
        if far && !paths::climbs(path) {
            return asked(&joined);
        }
        if !paths::normalize(name.as_bytes(), path, &mut whole) {
            return Err(libc::ENAMETOOLONG);
        }
        let prefix_of = |path: &[u8]| prefixes.iter().position(|p| paths::below(path, p.local).is_some());
        match paths::route(whole.as_bytes(), &prefixes, &mut out) {
            // The far kernel resolves `..` behind symbolic links.
            Route::Far if far && prefix_of(whole.as_bytes()) == prefix_of(name.as_bytes()) => asked(&joined),
            Route::Far => asked(out.as_bytes()),
            Route::TooLong => Err(libc::ENAMETOOLONG),
            Route::Local | Route::LocalAs => Err(libc::EXDEV),
        }
    }

    /// The absolute path of what the kernel finds by `path` from `dir`, and whether it is a far
    /// one.
    pub(crate) fn absolute(&self, target: &Target, dir: i32, path: &[u8]) -> Option<(CString, bool)> {
        if path.first() == Some(&b'/') {
            return Some((CString::new(path).ok()?, false));
        }
        let link = if dir == libc::AT_FDCWD { "cwd".to_owned() } else { format!("fd/{dir}") };
        let name = target.link(&link).filter(|name| name.first() == Some(&b'/') && !path.is_empty())?;
        let far = paths::local_of(&name, &self.prefixes(), &mut Text::new());
        Some((CString::new([&name, &b"/"[..], path].concat()).ok()?, far))
    }

    /// The target of a symbolic link as the far side has it: an absolute target below a prefix is
    /// translated.
    pub(crate) fn link_target(&self, target: Vec<u8>) -> Vec<u8> {
        let (prefixes, mut out) = (self.prefixes(), Text::new());
        let below = prefixes.iter().any(|prefix| paths::below(&target, prefix.local).is_some());
        if below && paths::route(&target, &prefixes, &mut out) == Route::Far {
            return out.as_bytes().to_vec();
        }
        target
    }

    /// The program's name for a far directory or for a link's far target.
    pub(crate) fn name_of(&self, directory: &[u8]) -> Vec<u8> {
        let mut name = Text::new();
        paths::local_of(directory, &self.prefixes(), &mut name);
        name.as_bytes().to_vec()
    }

    fn processes(&self) -> MutexGuard<'_, HashMap<i32, Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a directory of that name is below a far side.
    pub(crate) fn is_far(&self, name: &[u8]) -> bool {
        paths::local_of(name, &self.prefixes(), &mut Text::new())
    }

    /// The working directory of the thread's process, if only the supervisor knows it: the daemon's
    /// canonical path.
    pub(crate) fn directory_of(&self, target: &Target) -> Option<Vec<u8>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let process = target.status().ok()?.process();
        let mut processes = self.processes();
        let seat = found(&processes, process)?;
        if seat.leaving_for.is_some() && seat.leaving_for == target.directory("cwd").ok() {
            // It has left.
            let started = Target::by_number(process).ok()?.started()?;
            if target.still_waits() {
                settle(&mut processes, process);
                processes.insert(process, Process { started, seat: None });
            }
            return None;
        }
        drop(processes);
        Target::own().link(&format!("fd/{}", seat.directory.as_raw_fd()))
    }

    /// The thread's process moves to `directory`.
    pub(crate) fn enter(&self, target: &Target, directory: OwnedFd) -> Result<(), i32> {
        self.sit(target, |_| Some(Seat { directory: Arc::new(directory), leaving_for: None }))
    }

    /// The kernel is about to move the thread's process to a local directory.
    pub(crate) fn leave(&self, target: &Target, whereto: Whereabouts) -> Result<(), i32> {
        self.sit(target, |seat| seat.map(|seat| Seat { leaving_for: Some(whereto), ..seat }))
    }

    fn sit(&self, target: &Target, change: impl FnOnce(Option<Seat>) -> Option<Seat>) -> Result<(), i32> {
        let process = target.status()?.process();
        let started = Target::by_number(process)?.started().ok_or(libc::ESRCH)?;
        let mut processes = self.processes();
        self.any.store(true, Ordering::Release);
        settle(&mut processes, process);
        let seat = change(found(&processes, process));
        // What was found out is true of this thread only if its call still waits.
        if !target.still_waits() {
            return Err(libc::ESRCH);
        }
        processes.insert(process, Process { started, seat });
        Ok(())
    }

    /// The thread's process ends.
    pub(crate) fn end(&self, target: &Target) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        if let Ok(status) = target.status() {
            let mut processes = self.processes();
            settle(&mut processes, status.process());
            if target.still_waits() {
                processes.remove(&status.process());
            }
        }
    }
}

fn asked(path: &[u8]) -> Result<Resolver, i32> {
    if path.len() >= paths::PATH_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    CString::new(path).map(Resolver::Asked).map_err(|_| libc::EINVAL)
}

/// The seat of the process, or of its nearest ancestor that is known.
fn found(processes: &HashMap<i32, Process>, mut process: i32) -> Option<Seat> {
    let own = std::process::id().cast_signed();
    while process > 1 && process != own {
        let target = Target::by_number(process).ok()?;
        if let Some(known) = processes.get(&process)
            && target.started() == Some(known.started)
        {
            return known.seat.clone();
        }
        process = target.status().ok()?.parent();
    }
    None
}

/// Writes down the seats of all who inherited theirs from `process`.
fn settle(processes: &mut HashMap<i32, Process>, process: i32) {
    let seat = found(processes, process);
    let children = |process: i32| Target::by_number(process).map_or_else(|_| Vec::new(), |it| it.children());
    let mut open = children(process);
    while let Some(child) = open.pop() {
        let Some(started) = Target::by_number(child).ok().and_then(|child| child.started()) else { continue };
        if processes.get(&child).is_none_or(|known| known.started != started) {
            processes.insert(child, Process { started, seat: seat.clone() });
            open.extend(children(child));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places::new(b"/far=/srv/f:/b=/srv/other".to_vec())
    }

    fn expect(path: &str) -> Result<Resolver, i32> {
        Ok(Resolver::Asked(CString::new(path).unwrap()))
    }

    #[test]
    fn absolute_paths_go_by_prefix() {
        let (places, own) = (places(), Target::own());
        let place = |path: &str| places.place(&own, libc::AT_FDCWD, path.as_bytes(), false);
        assert_eq!(place("/far/x"), expect("/srv/f/x"));
        assert_eq!(place("/far"), expect("/srv/f"));
        assert_eq!(place("/farther"), Ok(Resolver::Kernel));
        assert_eq!(place("/far/../etc/passwd"), Ok(Resolver::Kernel));
        assert_eq!(place("/far/x/../../etc/passwd"), Ok(Resolver::Kernel));
        assert_eq!(place("/etc/../far/x"), expect("/srv/f/x"));
        assert_eq!(place(&format!("/far/{}", "x".repeat(4089))), Err(libc::ENAMETOOLONG));
    }

    #[test]
    fn relative_paths_go_by_where_one_is() {
        let places = places();
        let from = |directory: &str, path: &str| places.below(directory.as_bytes(), path.as_bytes());
        assert_eq!(from("/srv/f/d", "x/y"), expect("/srv/f/d/x/y"));
        assert_eq!(from("/srv/f/d", ""), expect("/srv/f/d"));
        assert_eq!(from("/srv/f/d", "../x"), expect("/srv/f/d/../x"));
        assert_eq!(from("/srv/f/d", "../../etc"), Err(libc::EXDEV));
        assert_eq!(from("/srv/f", "../b/x"), expect("/srv/other/x"));
        assert_eq!(from("/", "far/x"), expect("/srv/f/x"));
        assert_eq!(from("/", "etc"), Err(libc::EXDEV));
        assert_eq!(from("/tmp", "x"), Err(libc::EXDEV));
        assert_eq!(places.name_of(b"/srv/f/d"), b"/far/d");
        assert_eq!(places.name_of(b"/tmp"), b"/tmp");
    }

    #[test]
    fn children_are_where_their_parent_was() {
        let places = places();
        let own = Target::own();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = child.id().cast_signed();
        let target = Target::by_number(process).unwrap();
        let theirs = || places.directory_of(&target);
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name).into_os_string().into_encoded_bytes();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        let open = |name: &str| OwnedFd::from(std::fs::File::open(folder.path().join(name)).unwrap());
        // This process stands for a parent: it is the supervisor, where looking for parents ends.
        let seat = Some(Seat { directory: Arc::new(open(".")), leaving_for: None });
        places.processes().insert(own.tid, Process { started: own.started().unwrap(), seat });
        places.any.store(true, Ordering::Release);
        assert_eq!(theirs(), None);
        places.enter(&target, open("a")).unwrap();
        assert_eq!(theirs(), Some(name("a")));
        std::fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
        assert_eq!(theirs(), Some(name("b")));
        // The kernel was to take it elsewhere, and failed; then it did.
        let elsewhere = crate::target::enterable(&own.root().unwrap(), b"/proc").unwrap();
        places.leave(&target, elsewhere).unwrap();
        assert_eq!(theirs(), Some(name("b")));
        places.leave(&target, target.directory("cwd").unwrap()).unwrap();
        assert_eq!(theirs(), None);
        places.enter(&target, open("b")).unwrap();
        places.end(&target);
        assert_eq!(theirs(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
