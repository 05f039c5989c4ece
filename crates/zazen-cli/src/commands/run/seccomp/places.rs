//! Where a path of the program leads, and where its processes are.
//!
//! A supervisor can't change the working directory of a process. One that went below a prefix is remembered here;
//! from then on all its relative paths, and those of its children, are resolved here.
//!
//! Invariant: what a process inherited is settled before its parent moves on or ends.

use super::paths::{self, Prefix, Route, Text};
use super::target::Target;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The kernel finds it, as the program gave it.
    Kernel,
    /// The plug-in finds it, by this absolute path; `far`: below a prefix, not just reached from there.
    Asked { path: CString, far: bool },
}

/// A working directory that is not the kernel's: who has it open knows its name even after others changed that.
type Directory = Arc<OwnedFd>;

struct Process {
    /// In ticks since boot: a number that is used again is not the same process.
    started: u64,
    directory: Option<Directory>,
}

pub(super) struct Places {
    /// `LOCAL=FAR:…`, FAR canonical.
    settings: Vec<u8>,
    processes: Mutex<HashMap<i32, Process>>,
    /// Whether any process ever went below a prefix.
    any: AtomicBool,
}

impl Places {
    pub(super) fn new(settings: Vec<u8>) -> Places {
        Places { settings, processes: Mutex::default(), any: false.into() }
    }

    fn prefixes(&self) -> Vec<Prefix<'_>> {
        paths::prefixes(&self.settings).collect()
    }

    /// Where `path` leads, seen from descriptor `dir`. An empty one is `dir` itself, if `may_be_empty`.
    pub(super) fn place(
        &self,
        target: Target,
        dir: i32,
        path: &[u8],
        may_be_empty: bool,
    ) -> Result<Place, i32> {
        let mut out = Text::new();
        if path.first() == Some(&b'/') {
            return match paths::route(path, &self.prefixes(), &mut out) {
                Route::Local => Ok(Place::Kernel),
                Route::LocalAs => asked(out.as_bytes(), false),
                Route::Far => asked(out.as_bytes(), true),
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
    fn seen_from_local(&self, target: Target, dir: i32, path: &[u8]) -> Result<Place, i32> {
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
            Route::Far => asked(out.as_bytes(), true),
            _ => Ok(Place::Kernel),
        }
    }

    /// From a directory that only we know of.
    fn below(&self, directory: &[u8], path: &[u8]) -> Result<Place, i32> {
        let prefixes = self.prefixes();
        let (mut name, mut whole, mut out) = (Text::new(), Text::new(), Text::new());
        let far = paths::local_of(directory, &prefixes, &mut name);
        let joined: Vec<u8> = match path {
            b"" => directory.to_vec(),
            _ => [if directory == b"/" { b"" } else { directory }, b"/", path].concat(),
        };
        if far && !paths::climbs(path) {
            return asked(&joined, true);
        }
        if !paths::normalize(name.as_bytes(), path, &mut whole) {
            return Err(libc::ENAMETOOLONG);
        }
        let prefix_of = |path: &[u8]| prefixes.iter().position(|p| paths::below(path, p.local).is_some());
        match paths::route(whole.as_bytes(), &prefixes, &mut out) {
            // The kernel knows better what `..` means behind a link.
            Route::Far if far && prefix_of(whole.as_bytes()) == prefix_of(name.as_bytes()) => {
                asked(&joined, true)
            }
            Route::Far => asked(out.as_bytes(), true),
            Route::TooLong => Err(libc::ENAMETOOLONG),
            Route::Local | Route::LocalAs => asked(whole.as_bytes(), false),
        }
    }

    /// What the kernel finds by `path` from `dir`, as an absolute path, and whether that is below a far side.
    pub(super) fn absolute(&self, target: Target, dir: i32, path: &[u8]) -> Option<(CString, bool)> {
        if path.first() == Some(&b'/') {
            return Some((CString::new(path).ok()?, false));
        }
        let link = if dir == libc::AT_FDCWD { "cwd".to_owned() } else { format!("fd/{dir}") };
        let name = target.link(&link).filter(|name| name.first() == Some(&b'/') && !path.is_empty())?;
        let far = paths::local_of(&name, &self.prefixes(), &mut Text::new());
        Some((CString::new([&name, &b"/"[..], path].concat()).ok()?, far))
    }

    /// What a link's target is at the far side: an absolute one below a prefix leads there.
    pub(super) fn link_target(&self, target: Vec<u8>) -> Vec<u8> {
        let (prefixes, mut out) = (self.prefixes(), Text::new());
        let below = prefixes.iter().any(|prefix| paths::below(&target, prefix.local).is_some());
        if below && paths::route(&target, &prefixes, &mut out) == Route::Far {
            return out.as_bytes().to_vec();
        }
        target
    }

    /// What a directory of ours, or a link's far target, is called by the program.
    pub(super) fn name_of(&self, directory: &[u8]) -> Vec<u8> {
        let mut name = Text::new();
        paths::local_of(directory, &self.prefixes(), &mut name);
        name.as_bytes().to_vec()
    }

    fn processes(&self) -> MutexGuard<'_, HashMap<i32, Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the thread's process is, if only we know that: canonical, as the daemon has it.
    pub(super) fn directory_of(&self, target: Target) -> Option<Vec<u8>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let process = target.status().ok()?.process();
        let directory = found(&self.processes(), process)?;
        Target { tid: std::process::id().cast_signed() }.link(&format!("fd/{}", directory.as_raw_fd()))
    }

    /// The thread's process moves.
    pub(super) fn enter(&self, target: Target, directory: OwnedFd) -> Result<(), i32> {
        let process = target.status()?.process();
        let started = started(process).ok_or(libc::ESRCH)?;
        let mut processes = self.processes();
        self.any.store(true, Ordering::Release);
        settle(&mut processes, process);
        processes.insert(process, Process { started, directory: Some(Arc::new(directory)) });
        Ok(())
    }

    /// The thread's process ends.
    pub(super) fn end(&self, target: Target) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        if let Ok(status) = target.status() {
            let mut processes = self.processes();
            settle(&mut processes, status.process());
            processes.remove(&status.process());
        }
    }
}

fn asked(path: &[u8], far: bool) -> Result<Place, i32> {
    if path.len() >= paths::PATH_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    Ok(Place::Asked { path: CString::new(path).map_err(|_| libc::EINVAL)?, far })
}

/// Its own word, or that of the nearest parent who has one.
fn found(processes: &HashMap<i32, Process>, mut process: i32) -> Option<Directory> {
    let own = std::process::id().cast_signed();
    while process > 1 && process != own {
        if let Some(known) = processes.get(&process)
            && started(process) == Some(known.started)
        {
            return known.directory.clone();
        }
        process = Target { tid: process }.status().ok()?.parent();
    }
    None
}

/// Notes where those are who inherited it from `process`.
fn settle(processes: &mut HashMap<i32, Process>, process: i32) {
    let directory = found(processes, process);
    let mut open = children(process);
    while let Some(child) = open.pop() {
        let Some(started) = started(child) else { continue };
        if processes.get(&child).is_none_or(|known| known.started != started) {
            processes.insert(child, Process { started, directory: directory.clone() });
            open.extend(children(child));
        }
    }
}

fn children(process: i32) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let lists =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The 22nd field of /proc/PID/stat.
fn started(process: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in brackets, may have anything in it.
    text.get(text.rfind(')')? + 1..)?.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places::new(b"/far=/srv/f:/b=/srv/other".to_vec())
    }

    fn expect(path: &str, far: bool) -> Result<Place, i32> {
        Ok(Place::Asked { path: CString::new(path).unwrap(), far })
    }

    #[test]
    fn absolute_paths_go_by_prefix() {
        let (places, own) = (places(), Target { tid: std::process::id().cast_signed() });
        let place = |path: &str| places.place(own, libc::AT_FDCWD, path.as_bytes(), false);
        assert_eq!(place("/far/x"), expect("/srv/f/x", true));
        assert_eq!(place("/far"), expect("/srv/f", true));
        assert_eq!(place("/farther"), Ok(Place::Kernel));
        assert_eq!(place("/far/../etc/passwd"), expect("/etc/passwd", false));
        assert_eq!(place("/etc/../far/x"), expect("/srv/f/x", true));
        assert_eq!(place(&format!("/far/{}", "x".repeat(4089))), Err(libc::ENAMETOOLONG));
    }

    #[test]
    fn relative_paths_go_by_where_one_is() {
        let places = places();
        let from = |directory: &str, path: &str| places.below(directory.as_bytes(), path.as_bytes());
        assert_eq!(from("/srv/f/d", "x/y"), expect("/srv/f/d/x/y", true));
        assert_eq!(from("/srv/f/d", ""), expect("/srv/f/d", true));
        assert_eq!(from("/srv/f/d", "../x"), expect("/srv/f/d/../x", true));
        assert_eq!(from("/srv/f/d", "../../etc"), expect("/etc", false));
        assert_eq!(from("/srv/f", "../b/x"), expect("/srv/other/x", true));
        assert_eq!(from("/", "far/x"), expect("/srv/f/x", true));
        assert_eq!(from("/", "etc"), expect("/etc", false));
        assert_eq!(from("/tmp", "x"), expect("/tmp/x", false));
        assert_eq!(places.name_of(b"/srv/f/d"), b"/far/d");
        assert_eq!(places.name_of(b"/tmp"), b"/tmp");
    }

    #[test]
    fn children_are_where_their_parent_was() {
        let places = places();
        let own = Target { tid: std::process::id().cast_signed() };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = child.id().cast_signed();
        let theirs = || places.directory_of(Target { tid: process });
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name).into_os_string().into_encoded_bytes();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        let open = |name: &str| OwnedFd::from(std::fs::File::open(folder.path().join(name)).unwrap());
        // This process stands for a parent: it is the supervisor, where looking for parents ends.
        let directory = Some(Arc::new(open(".")));
        places.processes().insert(own.tid, Process { started: started(own.tid).unwrap(), directory });
        places.any.store(true, Ordering::Release);
        assert_eq!(theirs(), None);
        places.enter(Target { tid: process }, open("a")).unwrap();
        assert_eq!(theirs(), Some(name("a")));
        std::fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
        assert_eq!(theirs(), Some(name("b")));
        places.end(Target { tid: process });
        assert_eq!(theirs(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
