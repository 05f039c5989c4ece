//! nftw and ftw of a forwarded tree: libc's walk by themselves, past the hooks.

use crate::far::{Destination, place};
use crate::real::{aliases, hooks};
use crate::{directories, metadata, names};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use zazen_forward_api::paths::Text;

const PHYSICAL: c_int = 1;
const ONE_DEVICE: c_int = 2;
const CHANGE_DIRECTORY: c_int = 4;
const DEPTH_FIRST: c_int = 8;
const ACTIONS: c_int = 16;

const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE: c_int = 2;
const NO_STAT: c_int = 3;
const LINK: c_int = 4;
const AFTER_DIRECTORY: c_int = 5;
const DANGLING: c_int = 6;

const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

/// `struct FTW`.
#[repr(C)]
struct Position {
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C" fn(*const c_char, *const libc::stat64, c_int, *mut c_void) -> c_int;

struct Walk {
    visit: Visit,
    flags: c_int,
    /// ftw's visitor knows no positions.
    old: bool,
    device: u64,
    /// Directories that were entered, where links are followed: each is walked once.
    entered: RefCell<Vec<(u64, u64)>>,
}

fn is_far(path: *const c_char) -> bool {
    // SAFETY: the program's string.
    let leads_to = unsafe { place(libc::AT_FDCWD, path, &mut Text::new()) };
    matches!(leads_to, Ok(Destination::Near(_) | Destination::Far(..)))
}

hooks! {
    fn nftw(path: *const c_char, visit: Visit, descriptors: c_int, flags: c_int) -> c_int {
        if !is_far(path) {
            return next(path, visit, descriptors, flags);
        }
        walk(path, Walk { visit, flags, old: false, device: 0, entered: RefCell::default() })
    }

    fn ftw(path: *const c_char, visit: Visit, descriptors: c_int) -> c_int {
        if !is_far(path) {
            return next(path, visit, descriptors);
        }
        walk(path, Walk { visit, flags: 0, old: true, device: 0, entered: RefCell::default() })
    }
}

aliases! {
    nftw64 = nftw, (path: *const c_char, visit: Visit, descriptors: c_int, flags: c_int) -> c_int;
    ftw64 = ftw, (path: *const c_char, visit: Visit, descriptors: c_int) -> c_int;
}

unsafe fn walk(path: *const c_char, mut walk: Walk) -> c_int {
    // SAFETY: the program's string; all zeros is a valid stat.
    unsafe {
        let mut stat: libc::stat64 = std::mem::zeroed();
        if metadata::lstat(path, &raw mut stat) != 0 {
            return -1;
        }
        walk.device = stat.st_dev;
        let result = walk.step(CStr::from_ptr(path), 0);
        if walk.flags & ACTIONS != 0 && (result == SKIP_SUBTREE || result == SKIP_SIBLINGS) {
            0
        } else {
            result
        }
    }
}

impl Walk {
    /// What a file is to the visitor.
    unsafe fn look(&self, path: &CStr, stat: &mut libc::stat64) -> c_int {
        // SAFETY: a string and an object of the caller's.
        unsafe {
            let physical = self.flags & PHYSICAL != 0;
            let followed = !physical && metadata::stat(path.as_ptr(), stat) == 0;
            if !followed && metadata::lstat(path.as_ptr(), stat) != 0 {
                return NO_STAT;
            }
            match stat.st_mode & libc::S_IFMT {
                libc::S_IFDIR => DIRECTORY,
                libc::S_IFLNK if physical => LINK,
                libc::S_IFLNK if self.old => NO_STAT,
                libc::S_IFLNK => DANGLING,
                _ => FILE,
            }
        }
    }

    unsafe fn tell(&self, path: &CStr, stat: &libc::stat64, kind: c_int, level: c_int) -> c_int {
        let slash = path.to_bytes().iter().rposition(|byte| *byte == b'/');
        let mut position = Position { base: slash.map_or(0, |at| at as c_int + 1), level };
        // SAFETY: the program's function.
        unsafe { (self.visit)(path.as_ptr(), stat, kind, (&raw mut position).cast()) }
    }

    unsafe fn step(&self, path: &CStr, level: c_int) -> c_int {
        // SAFETY: strings of ours; all zeros is a valid stat.
        unsafe {
            let mut stat: libc::stat64 = std::mem::zeroed();
            let kind = self.look(path, &mut stat);
            if self.flags & ONE_DEVICE != 0 && kind != NO_STAT && stat.st_dev != self.device {
                return 0;
            }
            if kind != DIRECTORY {
                return self.tell(path, &stat, kind, level);
            }
            if self.flags & PHYSICAL == 0 {
                let this = (stat.st_dev, stat.st_ino);
                if self.entered.borrow().contains(&this) {
                    return 0;
                }
                self.entered.borrow_mut().push(this);
            }
            let entries = list(path);
            let first = if entries.is_none() { UNREADABLE } else { DIRECTORY };
            if self.flags & DEPTH_FIRST == 0 || entries.is_none() {
                let said = self.tell(path, &stat, first, level);
                if said != 0 || entries.is_none() {
                    return if self.flags & ACTIONS != 0 && said == SKIP_SUBTREE { 0 } else { said };
                }
            }
            let said = self.below(path, &entries.unwrap_or_default(), level);
            if said != 0 {
                return said;
            }
            if self.flags & DEPTH_FIRST != 0 {
                return self.tell(path, &stat, AFTER_DIRECTORY, level);
            }
            0
        }
    }

    unsafe fn below(&self, path: &CStr, entries: &[Vec<u8>], level: c_int) -> c_int {
        for name in entries {
            let slash: &[u8] = if path.to_bytes().ends_with(b"/") { b"" } else { b"/" };
            let Ok(child) = CString::new([path.to_bytes(), slash, name].concat()) else { continue };
            // SAFETY: strings of ours.
            unsafe {
                if self.flags & CHANGE_DIRECTORY != 0 {
                    names::chdir(path.as_ptr());
                }
                let said = self.step(&child, level + 1);
                if self.flags & ACTIONS != 0 && said == SKIP_SIBLINGS {
                    return 0;
                }
                if said != 0 {
                    return said;
                }
            }
        }
        0
    }
}

/// The names in a directory; `None` if it can't be read.
unsafe fn list(path: &CStr) -> Option<Vec<Vec<u8>>> {
    // SAFETY: a string; streams of the hooks.
    unsafe {
        let stream = directories::opendir(path.as_ptr());
        if stream.is_null() {
            return None;
        }
        let mut names = Vec::new();
        loop {
            let entry = directories::readdir(stream);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((&raw const (*entry).d_name).cast()).to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        directories::closedir(stream);
        Some(names)
    }
}
