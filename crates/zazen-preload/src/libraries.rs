//! Programs and libraries below a prefix. The loader knows nothing of prefixes.
//!
//! If the daemon is on this machine, this kernel has its files too. Then the loader gets the file's
//! own path, so `$ORIGIN` and everything else that depends on the file's place works. From another
//! node, a library is a copy in memory; the libraries that it needs must be on this machine.

use crate::far::{Destination, PxOpened, far, far_path, place};
use crate::list::List;
use crate::real::{self, system_call};
use crate::table::{self, FarFile};
use crate::{data, state};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::AtomicPtr;
use zazen_forward_api::paths::Text;
use zazen_forward_api::variables;

/// The path of a far file in this kernel, if the daemon is on this machine and the file there is
/// the same.
pub(crate) fn twin(dir: c_int, path: *const c_char) -> Option<CString> {
    // `zazen run` says where it is only for a daemon of this machine.
    state::variable(variables::RUN)?;
    let mut name = Text::new();
    far_path(dir, path, &mut name).ok()?;
    let mut there = crate::far::PxStat::default();
    let basic = libc::STATX_BASIC_STATS;
    far!(px_stat(dir, path, 0, basic, (&raw mut there).cast())).ok()?;
    // SAFETY: all zeros is a valid stat.
    let mut here: libc::stat64 = unsafe { std::mem::zeroed() };
    let at = libc::AT_FDCWD as usize;
    let asked = [at, name.as_ptr() as usize, (&raw mut here) as usize, 0, 0, 0];
    system_call(libc::SYS_newfstatat, asked).ok()?;
    let device = libc::makedev(there.devices[2], there.devices[3]);
    let same = here.st_ino == there.ino && here.st_dev == device && here.st_mode == there.mode;
    if same { CString::new(name.as_bytes()).ok() } else { None }
}

/// A copy of a far library in memory.
struct Copy {
    /// Device, inode number and time of change: the same file has the same copy.
    file: [u64; 4],
    name: CString,
}

static COPIES: List<Copy> = List::new();

/// The name of a copy of a far file. The copy stays for good: the loader tells libraries apart by
/// name.
fn copy(dir: c_int, path: *const c_char) -> Result<CString, c_int> {
    let mut opened = PxOpened::default();
    far!(px_open(dir, path, libc::O_RDONLY, 0, 0, (&raw mut opened).cast()))?;
    let entry = FarFile::new(opened.id, opened.mode);
    let outcome = copy_of(entry);
    let _ = far!(px_close(opened.id, 1));
    outcome
}

fn copy_of(entry: FarFile) -> Result<CString, c_int> {
    if entry.kind() != libc::S_IFREG {
        return Err(libc::EACCES);
    }
    let mut stat = crate::far::PxStat::default();
    let (empty, flags) = (crate::far::EMPTY, libc::AT_EMPTY_PATH);
    far!(px_stat(entry.dir(), empty, flags, libc::STATX_BASIC_STATS, (&raw mut stat).cast()))?;
    let device = libc::makedev(stat.devices[2], stat.devices[3]);
    let file = [device, stat.ino, stat.seconds[2] as u64, u64::from(stat.nanoseconds[2])];
    if let Some(known) = COPIES.find(|known| known.file == file) {
        return Ok(known.name.clone());
    }
    let name = c"zazen-library".as_ptr() as usize;
    let fd = system_call(libc::SYS_memfd_create, [name, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0])?;
    if let Err(error) = fill(fd, entry) {
        table::close_kernel(fd as c_int);
        return Err(error);
    }
    // Out of the way of programs that close what they did not open.
    let high = table::fcntl_kernel(fd as c_int, libc::F_DUPFD_CLOEXEC, 900);
    let kept = high.unwrap_or(fd as c_int);
    if kept != fd as c_int {
        table::close_kernel(fd as c_int);
    }
    let name = CString::new(format!("/proc/self/fd/{kept}")).map_err(|_| libc::EINVAL)?;
    let (copy, is_ours) = COPIES.find_or_add(|known| known.file == file, || Copy { file, name });
    if !is_ours {
        // Another thread was faster. The loader must see one name only.
        table::close_kernel(kept);
    }
    Ok(copy.name.clone())
}

/// Writes all bytes of a far file to a descriptor of this kernel.
fn fill(fd: usize, entry: FarFile) -> Result<(), c_int> {
    let mut piece = vec![0_u8; 1 << 20];
    let mut at = 0;
    loop {
        let got = data::read_far(entry, piece.as_mut_ptr().cast(), piece.len(), at, 0)? as usize;
        if got == 0 {
            return Ok(());
        }
        let mut done = 0;
        while done < got {
            let from = piece[done..].as_ptr() as usize;
            done += system_call(libc::SYS_write, [fd, from, got - done, 0, 0, 0])?;
        }
        at += got as i64;
    }
}

/// What the loader is given for a path: the path itself where it is not far, or can't be had.
unsafe extern "C" fn for_loader(path: *const c_char) -> *const c_char {
    if !state::is_active() || path.is_null() {
        return path;
    }
    // SAFETY: the program's string.
    unsafe {
        // A bare name is searched for.
        if !CStr::from_ptr(path).to_bytes().contains(&b'/') {
            return path;
        }
        let mut text = Text::new();
        let before = real::errno();
        let found = match place(libc::AT_FDCWD, path, &mut text) {
            Ok(Destination::Near(there)) => Some(CStr::from_ptr(there).to_owned()),
            Ok(Destination::Far(dir, there)) => twin(dir, there).or_else(|| copy(dir, there).ok()),
            _ => None,
        };
        real::set_errno(before);
        // The loader keeps names of its own; there are as many of these as libraries.
        found.map_or(path, |name| name.into_raw().cast_const())
    }
}

unsafe extern "C" fn real_dlopen() -> *mut c_void {
    static SLOT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    real::next(&SLOT, c"dlopen")
}

/// dlopen finds bare names by who calls it, so libc's is jumped to with its caller's return
/// address.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "sub rsp, 24",
        "mov [rsp], rsi",
        "call {path}",
        "mov [rsp + 8], rax",
        "call {function}",
        "mov rdi, [rsp + 8]",
        "mov rsi, [rsp]",
        "add rsp, 24",
        "jmp rax",
        path = sym for_loader,
        function = sym real_dlopen,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x1, [sp, #16]",
        "bl {path}",
        "str x0, [sp, #24]",
        "bl {function}",
        "mov x16, x0",
        "ldr x0, [sp, #24]",
        "ldr x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        path = sym for_loader,
        function = sym real_dlopen,
    );
}

/// `LD_LIBRARY_PATH` for a program that is started: behind each folder below a prefix comes the
/// same folder as this kernel has it. `None`: nothing to change.
pub(crate) fn search_path(value: &[u8]) -> Option<CString> {
    let folders: Vec<&[u8]> = value.split(|byte| *byte == b':' || *byte == b';').collect();
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut changed = false;
    for folder in &folders {
        all.push(folder.to_vec());
        let Ok(name) = CString::new(*folder) else { continue };
        let mut text = Text::new();
        // SAFETY: a string of ours.
        let real = match unsafe { place(libc::AT_FDCWD, name.as_ptr(), &mut text) } {
            // SAFETY: a string in `text`.
            Ok(Destination::Near(there)) => Some(unsafe { CStr::from_ptr(there) }.to_owned()),
            Ok(Destination::Far(dir, there)) => twin(dir, there),
            _ => None,
        };
        if let Some(real) = real
            && !folders.contains(&real.as_bytes())
        {
            all.push(real.into_bytes());
            changed = true;
        }
    }
    let setting = [&b"LD_LIBRARY_PATH="[..], &all.join(&b':')].concat();
    CString::new(setting).ok().filter(|_| changed)
}
