//! `fts`, the walk of a tree by entries: libc's looks and lists by itself, past the hooks.
//!
//! Where a forwarded path is walked, this walk takes libc's place. It never changes the working
//! directory, so an entry's way to its file is its whole path. Else it is the one that fts(3)
//! describes.
//!
//! Invariant: an entry lives until the walk has left its directory, or the walk is closed.

use crate::far::{Destination, place};
use crate::real::{errno, hooks, set_errno};
use crate::{directories, metadata, state};
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use zazen_forward_api::paths::Text;

// Options.
const FOLLOW_ROOTS: c_int = 0x001;
const LOGICAL: c_int = 0x002;
const NO_STAT: c_int = 0x008;
const ONE_DEVICE: c_int = 0x040;
const SEE_DOTS: c_int = 0x020;
const KNOWN: c_int = 0x0ff;
const NAMES_ONLY: c_int = 0x100;
// Instructions.
const AGAIN: u16 = 1;
const FOLLOW: u16 = 2;
const NONE: u16 = 3;
const SKIP: u16 = 4;
// What an entry is.
const DIRECTORY: u16 = 1;
const CYCLE: u16 = 2;
const DEFAULT: u16 = 3;
const UNREADABLE: u16 = 4;
const DOT: u16 = 5;
const AFTER: u16 = 6;
const ERROR: u16 = 7;
const FILE: u16 = 8;
const BEGIN: u16 = 9;
const NOT_LOOKED: u16 = 10;
const NOT_ASKED: u16 = 11;
const LINK: u16 = 12;
const DANGLING: u16 = 13;

/// `FTSENT`.
#[repr(C)]
pub(crate) struct TreeEntry {
    cycle: *mut TreeEntry,
    parent: *mut TreeEntry,
    link: *mut TreeEntry,
    number: c_long,
    pointer: *mut c_void,
    access_path: *mut c_char,
    path: *mut c_char,
    error: c_int,
    link_fd: c_int,
    path_bytes: u16,
    name_bytes: u16,
    inode: u64,
    device: u64,
    links: u64,
    level: i16,
    info: u16,
    flags: u16,
    instruction: u16,
    stat: *mut libc::stat64,
    name: [c_char; 1],
}

type Compare = Option<unsafe extern "C" fn(*const *const TreeEntry, *const *const TreeEntry) -> c_int>;

/// What this library puts in place of an `FTS`. Programs do not look into one.
#[repr(C)]
struct Walk {
    /// libc has the current entry there, which is never this.
    magic: *const c_void,
    current: *mut TreeEntry,
    children: *mut TreeEntry,
    /// Whether `children` were listed without a look.
    names_only: bool,
    device: u64,
    compare: Compare,
    options: c_int,
    has_failed: bool,
}

static MAGIC: u8 = 0;

unsafe fn ours<'a>(walk: *mut c_void) -> Option<&'a mut Walk> {
    // SAFETY: libc's walk or ours, which begin with a pointer.
    unsafe {
        let walk = walk.cast::<Walk>();
        (!walk.is_null() && std::ptr::eq((*walk).magic.cast(), &raw const MAGIC)).then(|| &mut *walk)
    }
}

unsafe fn is_far(path: *const c_char) -> bool {
    // SAFETY: the program's string.
    let leads_to = unsafe { place(libc::AT_FDCWD, path, &mut Text::new()) };
    matches!(leads_to, Ok(Destination::Near(_) | Destination::Far(..)))
}

/// An entry with its name, its path and room for a stat; NULL if there is no memory.
unsafe fn new_entry(folder: &[u8], name: &[u8], parent: *mut TreeEntry, level: i16) -> *mut TreeEntry {
    let slash: &[u8] = if folder.is_empty() || folder.ends_with(b"/") { b"" } else { b"/" };
    let path_bytes = folder.len() + slash.len() + name.len();
    let stat_at = size_of::<TreeEntry>().next_multiple_of(align_of::<libc::stat64>());
    // The name begins in the entry itself, as programs expect: the rest lies behind.
    let name_at = std::mem::offset_of!(TreeEntry, name);
    let stat_at = (stat_at.max(name_at + name.len() + 1)).next_multiple_of(align_of::<libc::stat64>());
    let path_at = stat_at + size_of::<libc::stat64>();
    // SAFETY: memory of that size, filled here.
    unsafe {
        let memory = libc::calloc(1, path_at + path_bytes + 1).cast::<u8>();
        if memory.is_null() {
            return std::ptr::null_mut();
        }
        std::ptr::copy_nonoverlapping(name.as_ptr(), memory.add(name_at), name.len());
        let mut at = memory.add(path_at);
        for part in [folder, slash, name] {
            std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
            at = at.add(part.len());
        }
        let entry = memory.cast::<TreeEntry>();
        (*entry).parent = parent;
        (*entry).level = level;
        (*entry).instruction = NONE;
        (*entry).link_fd = -1;
        (*entry).stat = memory.add(stat_at).cast();
        (*entry).path = memory.add(path_at).cast();
        (*entry).access_path = (*entry).path;
        // libc's fields are as narrow; beyond them it fails, too.
        (*entry).path_bytes = path_bytes.min(usize::from(u16::MAX)) as u16;
        (*entry).name_bytes = name.len().min(usize::from(u16::MAX)) as u16;
        entry
    }
}

unsafe fn free_list(mut entry: *mut TreeEntry) {
    while !entry.is_null() {
        // SAFETY: entries of ours, each once.
        unsafe {
            let next = (*entry).link;
            libc::free(entry.cast());
            entry = next;
        }
    }
}

/// The name of a root is its path's last part.
unsafe fn keep_last_name(entry: *mut TreeEntry) {
    // SAFETY: an entry of ours, whose name gets shorter.
    unsafe {
        let name: *mut c_char = (&raw mut (*entry).name).cast();
        let bytes = CStr::from_ptr(name).to_bytes();
        let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else { return };
        let rest = bytes.len() - slash - 1;
        if slash == 0 && rest == 0 {
            return;
        }
        std::ptr::copy(name.add(slash + 1), name, rest + 1);
        (*entry).name_bytes = rest as u16;
    }
}

/// Sorts a list as the program says.
unsafe fn sorted(first: *mut TreeEntry, compare: Compare) -> *mut TreeEntry {
    let Some(compare) = compare else { return first };
    let mut all = Vec::new();
    let mut entry = first;
    // SAFETY: entries of ours; the program's function.
    unsafe {
        while !entry.is_null() {
            all.push(entry);
            entry = (*entry).link;
        }
        let compare: unsafe extern "C" fn(*const c_void, *const c_void) -> c_int =
            std::mem::transmute(compare);
        libc::qsort(all.as_mut_ptr().cast(), all.len(), size_of::<*mut TreeEntry>(), Some(compare));
        for pair in all.windows(2) {
            (*pair[0]).link = pair[1];
        }
        if let Some(last) = all.last() {
            (**last).link = std::ptr::null_mut();
        }
    }
    all.first().copied().unwrap_or(std::ptr::null_mut())
}

impl Walk {
    /// Looks at an entry's file: what it is.
    unsafe fn look(&self, entry: *mut TreeEntry, follow: bool) -> u16 {
        // SAFETY: an entry of ours.
        unsafe {
            let entry = &mut *entry;
            let path = entry.access_path;
            if self.options & LOGICAL != 0 || follow {
                if metadata::stat(path, entry.stat) != 0 {
                    let error = errno();
                    if metadata::lstat(path, entry.stat) == 0 {
                        set_errno(0);
                        return DANGLING;
                    }
                    entry.error = error;
                    *entry.stat = std::mem::zeroed();
                    return NOT_LOOKED;
                }
            } else if metadata::lstat(path, entry.stat) != 0 {
                entry.error = errno();
                *entry.stat = std::mem::zeroed();
                return NOT_LOOKED;
            }
            let stat = &*entry.stat;
            match stat.st_mode & libc::S_IFMT {
                libc::S_IFDIR => {
                    (entry.device, entry.inode, entry.links) = (stat.st_dev, stat.st_ino, stat.st_nlink as _);
                    let name = CStr::from_ptr((&raw const entry.name).cast()).to_bytes();
                    if name == b"." || name == b".." {
                        return DOT;
                    }
                    let mut above = entry.parent;
                    while !above.is_null() && (*above).level >= 0 {
                        if ((*above).inode, (*above).device) == (entry.inode, entry.device) {
                            entry.cycle = above;
                            return CYCLE;
                        }
                        above = (*above).parent;
                    }
                    DIRECTORY
                }
                libc::S_IFLNK => LINK,
                libc::S_IFREG => FILE,
                _ => DEFAULT,
            }
        }
    }

    /// What is in the current directory; NULL if nothing is, or if it can't be listed. `reads`: for
    /// the walk itself.
    unsafe fn list(&mut self, reads: bool, names_only: bool) -> *mut TreeEntry {
        let none = std::ptr::null_mut();
        // SAFETY: entries of ours; streams of the hooks.
        unsafe {
            let above = &mut *self.current;
            let stream = directories::opendir(above.access_path);
            if stream.is_null() {
                if reads {
                    above.info = UNREADABLE;
                    above.error = errno();
                }
                return none;
            }
            let folder = CStr::from_ptr(above.path).to_bytes().to_vec();
            let (mut first, mut last): (*mut TreeEntry, *mut TreeEntry) = (none, none);
            loop {
                set_errno(0);
                let found = directories::readdir(stream);
                if found.is_null() {
                    above.error = errno();
                    break;
                }
                let name = CStr::from_ptr((&raw const (*found).d_name).cast()).to_bytes();
                if self.options & SEE_DOTS == 0 && (name == b"." || name == b"..") {
                    continue;
                }
                let entry = new_entry(&folder, name, self.current, above.level + 1);
                if entry.is_null() || folder.len() + name.len() + 1 > usize::from(u16::MAX) {
                    let error = if entry.is_null() { libc::ENOMEM } else { libc::ENAMETOOLONG };
                    libc::free(entry.cast());
                    free_list(first);
                    directories::closedir(stream);
                    above.info = ERROR;
                    above.error = error;
                    self.has_failed = true;
                    set_errno(error);
                    return none;
                }
                let kind = (*found).d_type;
                let plain = !matches!(kind, libc::DT_UNKNOWN | libc::DT_DIR)
                    && (kind != libc::DT_LNK || self.options & LOGICAL == 0);
                (*entry).info = if names_only || (self.options & NO_STAT != 0 && plain) {
                    NOT_ASKED
                } else {
                    self.look(entry, false)
                };
                if last.is_null() {
                    first = entry;
                } else {
                    (*last).link = entry;
                }
                last = entry;
            }
            directories::closedir(stream);
            if first.is_null() {
                if reads {
                    above.info = if above.error == 0 { AFTER } else { ERROR };
                }
                return none;
            }
            sorted(first, self.compare)
        }
    }

    unsafe fn read(&mut self) -> *mut TreeEntry {
        let none = std::ptr::null_mut();
        if self.current.is_null() || self.has_failed {
            return none;
        }
        // SAFETY: entries of ours.
        unsafe {
            let mut entry = self.current;
            let instruction = std::mem::replace(&mut (*entry).instruction, NONE);
            if instruction == AGAIN {
                (*entry).info = self.look(entry, false);
                return entry;
            }
            if instruction == FOLLOW && matches!((*entry).info, LINK | DANGLING) {
                (*entry).info = self.look(entry, true);
                return entry;
            }
            if (*entry).info == DIRECTORY {
                let elsewhere = self.options & ONE_DEVICE != 0 && (*entry).device != self.device;
                if instruction == SKIP || elsewhere {
                    free_list(std::mem::replace(&mut self.children, none));
                    (*entry).info = AFTER;
                    return entry;
                }
                if self.names_only {
                    free_list(std::mem::replace(&mut self.children, none));
                    self.names_only = false;
                }
                if self.children.is_null() {
                    self.children = self.list(true, false);
                }
                if self.children.is_null() {
                    return if self.has_failed { none } else { entry };
                }
                self.current = std::mem::replace(&mut self.children, none);
                return self.current;
            }
            loop {
                let before = entry;
                entry = (*before).link;
                if entry.is_null() {
                    entry = (*before).parent;
                    libc::free(before.cast());
                    self.current = entry;
                    if (*entry).level < 0 {
                        libc::free(entry.cast());
                        self.current = none;
                        set_errno(0);
                        return none;
                    }
                    (*entry).info = if (*entry).error == 0 { AFTER } else { ERROR };
                    return entry;
                }
                libc::free(before.cast());
                self.current = entry;
                if (*entry).level == 0 {
                    self.device = (*entry).device;
                    keep_last_name(entry);
                    return entry;
                }
                if (*entry).instruction == SKIP {
                    continue;
                }
                if (*entry).instruction == FOLLOW {
                    (*entry).info = self.look(entry, true);
                    (*entry).instruction = NONE;
                }
                return entry;
            }
        }
    }
}

/// Begins a walk of the program's paths.
unsafe fn open(paths: *const *const c_char, options: c_int, compare: Compare) -> Result<*mut Walk, c_int> {
    if options & !KNOWN != 0 {
        return Err(libc::EINVAL);
    }
    let none = std::ptr::null_mut();
    // SAFETY: the program's array of strings; entries of ours.
    unsafe {
        let above = new_entry(b"", b"", none, -1);
        let start = new_entry(b"", b"", above, 0);
        let walk = libc::calloc(1, size_of::<Walk>()).cast::<Walk>();
        if above.is_null() || start.is_null() || walk.is_null() {
            for memory in [above.cast(), start.cast(), walk.cast::<c_void>()] {
                libc::free(memory);
            }
            return Err(libc::ENOMEM);
        }
        walk.write(Walk {
            magic: (&raw const MAGIC).cast(),
            current: start,
            children: none,
            names_only: false,
            device: 0,
            compare,
            options,
            has_failed: false,
        });
        let (mut first, mut last): (*mut TreeEntry, *mut TreeEntry) = (none, none);
        let mut at = paths;
        let outcome = loop {
            if (*at).is_null() {
                break Ok(());
            }
            let path = CStr::from_ptr(*at).to_bytes();
            if path.is_empty() {
                break Err(libc::ENOENT);
            }
            let entry = new_entry(b"", path, above, 0);
            if entry.is_null() {
                break Err(libc::ENOMEM);
            }
            (*entry).info = match (*walk).look(entry, options & FOLLOW_ROOTS != 0) {
                // A root is a real directory.
                DOT => DIRECTORY,
                info => info,
            };
            if last.is_null() {
                first = entry;
            } else {
                (*last).link = entry;
            }
            last = entry;
            at = at.add(1);
        };
        if let Err(error) = outcome {
            free_list(first);
            for memory in [above.cast(), start.cast(), walk.cast::<c_void>()] {
                libc::free(memory);
            }
            return Err(error);
        }
        (*start).info = BEGIN;
        (*start).link = sorted(first, compare);
        Ok(walk)
    }
}

hooks! {
    fn fts_open(paths: *const *const c_char, options: c_int, compare: Compare) -> *mut c_void {
        if !state::is_active() || paths.is_null() {
            return next(paths, options, compare);
        }
        let mut at = paths;
        while !(*at).is_null() && !is_far(*at) {
            at = at.add(1);
        }
        if (*at).is_null() {
            return next(paths, options, compare);
        }
        match open(paths, options, compare) {
            Ok(walk) => walk.cast(),
            Err(error) => {
                set_errno(error);
                std::ptr::null_mut()
            }
        }
    }

    fn fts_read(walk: *mut c_void) -> *mut TreeEntry {
        match ours(walk) {
            None => next(walk),
            Some(own) => own.read(),
        }
    }

    fn fts_children(walk: *mut c_void, instruction: c_int) -> *mut TreeEntry {
        let Some(own) = ours(walk) else { return next(walk, instruction) };
        let none = std::ptr::null_mut();
        if instruction != 0 && instruction != NAMES_ONLY {
            set_errno(libc::EINVAL);
            return none;
        }
        set_errno(0);
        if own.has_failed || own.current.is_null() {
            return none;
        }
        match (*own.current).info {
            BEGIN => return (*own.current).link,
            DIRECTORY => {}
            _ => return none,
        }
        free_list(std::mem::replace(&mut own.children, none));
        own.names_only = instruction == NAMES_ONLY;
        own.children = own.list(false, own.names_only);
        own.children
    }

    fn fts_set(walk: *mut c_void, entry: *mut TreeEntry, instruction: c_int) -> c_int {
        if ours(walk).is_none() {
            return next(walk, entry, instruction);
        }
        if !(0..=4).contains(&instruction) {
            set_errno(libc::EINVAL);
            return 1;
        }
        (*entry).instruction = instruction as u16;
        0
    }

    fn fts_close(walk: *mut c_void) -> c_int {
        let Some(own) = ours(walk) else { return next(walk) };
        free_list(own.children);
        // What is left of each directory that the walk is in.
        let mut entry = own.current;
        while !entry.is_null() {
            let parent = (*entry).parent;
            free_list(entry);
            entry = parent;
        }
        libc::free(walk);
        0
    }
}

/// The same functions by their other names: on 64-bit machines, all have large files.
macro_rules! large {
    ($($name:ident = $hook:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: what the caller of the libc function promises.
            unsafe { $hook($($arg),*) }
        }
    )*};
}

large! {
    fts64_open = fts_open(paths: *const *const c_char, options: c_int, compare: Compare) -> *mut c_void;
    fts64_read = fts_read(walk: *mut c_void) -> *mut TreeEntry;
    fts64_children = fts_children(walk: *mut c_void, instruction: c_int) -> *mut TreeEntry;
    fts64_set = fts_set(walk: *mut c_void, entry: *mut TreeEntry, instruction: c_int) -> c_int;
    fts64_close = fts_close(walk: *mut c_void) -> c_int;
}
