//! Where a path of the program leads, and where its processes are.
//!
//! A supervisor can't change the working directory of a process. One that went below a prefix is remembered here;
//! from then on all its relative paths, and those of its children, are resolved here, until it goes elsewhere.
//!
//! Invariants: what a process inherited is settled before its parent moves on or ends; what is not below a prefix the
//! kernel finds for the program itself, within its root directory, mounts and Landlock rules, or nobody does.

use crate::target::{Target, Whereabouts};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_forward_api::paths::{self, Prefix, Route, Text};

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The kernel finds it, as the program gave it.
    Kernel,
    /// It is below a prefix: the plug-in finds it, by this absolute path.
    Asked(CString),
}

/// A working directory that is not the kernel's: who has it open knows its name even after others changed that.
type Directory = Arc<OwnedFd>;

struct Process {
    /// In ticks since boot: a number that is used again is not the same process.
    started: u64,
    seat: Option<Seat>,
}

/// Where a process is that the kernel knows to be elsewhere.
#[derive(Clone)]
struct Seat {
    directory: Directory,
    /// The kernel was told to go on and take it there; once it is there, this seat is empty.
    leaving_for: Option<Whereabouts>,
}

pub(crate) struct Places {
    /// `LOCAL=FAR:…`, FAR canonical.
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

    /// Where `path` leads, seen from descriptor `dir`. An empty one is `dir` itself, if `may_be_empty`.
    pub(crate) fn place(
        &self,
        target: &Target,
        dir: i32,
        path: &[u8],
        may_be_empty: bool,
    ) -> Result<Place, i32> {
        let mut out = Text::new();
        if path.first() == Some(&b'/') {
            return match paths::route(path, &self.prefixes(), &mut out) {
                // A path that only begins below a prefix is the kernel's as it stands.
                Route::Local | Route::LocalAs => Ok(Place::Kernel),
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
            return Ok(Place::Kernel);
        }
        self.seen_from_local(target, dir, path)
    }

    /// From a directory of this machine: by climbing, or from above, a path can get below a prefix.
    fn seen_from_local(&self, target: &Target, dir: i32, path: &[u8]) -> Result<Place, i32> {
        let prefixes = self.prefixes();
        let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
        let named = |prefix: &Prefix<'_>| prefix.local.split(|byte| *byte == b'/').any(|part| part == first);
        if !first.starts_with(b".") && !prefixes.iter().any(named) {
            return Ok(Place::Kernel);
        }
        let link = if dir == libc::AT_FDCWD { "cwd".to_owned() } else { format!("fd/{dir}") };
        let Some(name) = target.link(&link).filter(|name| name.first() == Some(&b'/')) else {
            return Ok(Place::Kernel);
        };
        let (mut whole, mut out) = (Text::new(), Text::new());
        if !paths::normalize(&name, path, &mut whole) {
            return Ok(Place::Kernel);
        }
        match paths::route(whole.as_bytes(), &prefixes, &mut out) {
            Route::Far => asked(out.as_bytes()),
            _ => Ok(Place::Kernel),
        }
    }

    /// From a directory that only we know of. EXDEV where the path leaves the far side: the kernel would begin elsewhere,
    /// and we do nothing for a program that is not forwarded.
    fn below(&self, directory: &[u8], path: &[u8]) -> Result<Place, i32> {
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
            // The kernel knows better what `..` means behind a link.
            Route::Far if far && prefix_of(whole.as_bytes()) == prefix_of(name.as_bytes()) => asked(&joined),
            Route::Far => asked(out.as_bytes()),
            Route::TooLong => Err(libc::ENAMETOOLONG),
            Route::Local | Route::LocalAs => Err(libc::EXDEV),
        }
    }

    /// What the kernel finds by `path` from `dir`, as an absolute path, and whether that is below a far side.
    pub(crate) fn absolute(&self, target: &Target, dir: i32, path: &[u8]) -> Option<(CString, bool)> {
        if path.first() == Some(&b'/') {
            return Some((CString::new(path).ok()?, false));
        }
        let link = if dir == libc::AT_FDCWD { "cwd".to_owned() } else { format!("fd/{dir}") };
        let name = target.link(&link).filter(|name| name.first() == Some(&b'/') && !path.is_empty())?;
        let far = paths::local_of(&name, &self.prefixes(), &mut Text::new());
        Some((CString::new([&name, &b"/"[..], path].concat()).ok()?, far))
    }

    /// What a link's target is at the far side: an absolute one below a prefix leads there.
    pub(crate) fn link_target(&self, target: Vec<u8>) -> Vec<u8> {
        let (prefixes, mut out) = (self.prefixes(), Text::new());
        let below = prefixes.iter().any(|prefix| paths::below(&target, prefix.local).is_some());
        if below && paths::route(&target, &prefixes, &mut out) == Route::Far {
            return out.as_bytes().to_vec();
        }
        target
    }

    /// What a directory of ours, or a link's far target, is called by the program.
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

    /// Where the thread's process is, if only we know that: canonical, as the daemon has it.
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

    /// The kernel is about to take the thread's process there.
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
        // All that was found out is of the thread whose call waits, if it still does.
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

fn asked(path: &[u8]) -> Result<Place, i32> {
    if path.len() >= paths::PATH_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    CString::new(path).map(Place::Asked).map_err(|_| libc::EINVAL)
}

/// Its own word, or that of the nearest parent who has one.
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

/// Notes where those are who inherited it from `process`.
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

    fn expect(path: &str) -> Result<Place, i32> {
        Ok(Place::Asked(CString::new(path).unwrap()))
    }

    #[test]
    fn absolute_paths_go_by_prefix() {
        let (places, own) = (places(), Target::own());
        let place = |path: &str| places.place(&own, libc::AT_FDCWD, path.as_bytes(), false);
        assert_eq!(place("/far/x"), expect("/srv/f/x"));
        assert_eq!(place("/far"), expect("/srv/f"));
        assert_eq!(place("/farther"), Ok(Place::Kernel));
        assert_eq!(place("/far/../etc/passwd"), Ok(Place::Kernel));
        assert_eq!(place("/far/x/../../etc/passwd"), Ok(Place::Kernel));
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
