//! Programs that bypass this library: it cannot be loaded into them, or they make their system
//! calls themselves. If a forwarded program starts such a program, `zazen run --seccomp` is started
//! instead and runs it under a supervisor. If that is not possible, the start fails, because the
//! program would see this machine's files.
//!
//! The process that becomes such a program gets real descriptors in place of its forwarded ones,
//! and tells the supervisor its working directory.

use crate::far::far;
use crate::real::system_call;
use crate::{cwd, fault, state, streams, table};
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use zazen_forward_api::elf;
use zazen_forward_api::paths::Text;
use zazen_forward_api::variables;

/// The path of the program `zazen`, as `zazen run` gave it.
static mut RUN: Option<CString> = None;

/// Called once, when the library is loaded.
pub(crate) fn begin() {
    let run = state::variable(variables::RUN).and_then(|path| CString::new(path).ok());
    // SAFETY: there is one thread; nobody else writes it.
    unsafe { RUN = run };
}

fn head_of(path: &CStr, head: &mut [u8]) -> Option<usize> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
    let fd = system_call(libc::SYS_openat, arguments).ok()?;
    let got = system_call(libc::SYS_read, [fd, head.as_mut_ptr() as usize, head.len(), 0, 0, 0]);
    table::close_kernel(fd as c_int);
    got.ok()
}

/// Whether a program of this machine, or the interpreter of a script, bypasses this library.
pub(crate) fn bypasses(path: *const c_char) -> bool {
    let Some(path) = fault::string(path) else { return false };
    let mut head = [0; elf::HEAD_BYTES];
    let Some(got) = head_of(path, &mut head) else { return false };
    if let Some(interpreter) = elf::interpreter(&head[..got]) {
        let Ok(interpreter) = CString::new(interpreter) else { return false };
        return head_of(&interpreter, &mut head).is_some_and(|got| is_alone(&interpreter, &head[..got]));
    }
    is_alone(path, &head[..got])
}

/// The dynamic loader has no interpreter, but loads libraries into what it is told to run.
fn is_alone(path: &CStr, head: &[u8]) -> bool {
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    elf::bypasses_libraries(head) && !name.starts_with(b"ld-") && !name.starts_with(b"ld.so")
}

/// What to start instead of a program, and its arguments.
pub(crate) struct Substitute {
    strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Substitute {
    /// For a program that [`bypasses`] this library; EACCES, and a message, where it can't be
    /// supervised.
    ///
    /// # Safety
    ///
    /// `path` is a string; `arguments` an array of such that ends with NULL, or NULL. They must
    /// outlive the result.
    pub(crate) unsafe fn new(
        path: *const c_char,
        arguments: *const *const c_char,
    ) -> Result<Substitute, c_int> {
        // SAFETY: written before there was a second thread.
        let Some(run) = (unsafe { (*(&raw const RUN)).as_ref() }) else {
            // SAFETY: the caller's.
            return Err(refuse(unsafe { CStr::from_ptr(path) }));
        };
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| libc::EINVAL);
        let mut strings = vec![run.clone(), text(b"run")?, text(b"--seccomp")?, text(b"--socket")?];
        strings.push(text(state::socket())?);
        for prefix in state::all_prefixes() {
            strings.push(text(b"--forward")?);
            strings.push(text(&[prefix.local, b"=", prefix.far].concat())?);
        }
        strings.push(text(b"--program-name")?);
        // SAFETY: the caller's strings.
        unsafe {
            let first = if arguments.is_null() { std::ptr::null() } else { *arguments };
            strings.push(text(CStr::from_ptr(if first.is_null() { path } else { first }).to_bytes())?);
            strings.push(text(b"--")?);
            let path = CStr::from_ptr(path).to_bytes();
            // Without a slash it would be looked for in PATH.
            let here: &[u8] = if path.contains(&b'/') { b"" } else { b"./" };
            strings.push(text(&[here, path].concat())?);
            let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
            let mut at = arguments;
            while !at.is_null() && !(*at).is_null() {
                at = at.add(1);
                pointers.push(*at);
            }
            if pointers.last().is_some_and(|last| !last.is_null()) {
                pointers.push(std::ptr::null());
            }
            Ok(Substitute { strings, pointers })
        }
    }

    pub(crate) fn program(&self) -> *const c_char {
        self.strings[0].as_ptr()
    }

    pub(crate) fn arguments(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

fn refuse(path: &CStr) -> c_int {
    let name = OsStr::from_bytes(path.to_bytes());
    let words = format!(
        "zazen: program {} is statically linked, or makes its system calls itself: files of another \
         node cannot be forwarded to it; use a dynamically linked build\n",
        name.display()
    );
    streams::write_all(2, words.as_ptr().cast(), words.len());
    libc::EACCES
}

/// Whether this is the environment of a program that a supervisor takes charge of.
///
/// # Safety
///
/// `environment` is an environment, or NULL.
pub(crate) unsafe fn is_marked(environment: *const *const c_char) -> bool {
    let mut at = environment;
    // SAFETY: the caller's array, which ends with NULL.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let rest = CStr::from_ptr(*at).to_bytes().strip_prefix(variables::SUPERVISED.to_bytes());
            if rest.is_some_and(|rest| rest.starts_with(b"=")) {
                return true;
            }
            at = at.add(1);
        }
    }
    false
}

/// Makes this process one that needs no library: its forwarded descriptors become real ones, and
/// the supervisor learns of its working directory. It is about to execute.
pub(crate) fn shed() {
    for (fd, entry) in table::each() {
        let closes = table::fcntl_kernel(fd, libc::F_GETFD, 0).unwrap_or(0) & libc::FD_CLOEXEC != 0;
        let mut real = -1;
        // What can't be handed over stays a placeholder, whose use fails.
        if !closes && far!(px_give(entry.id(), &raw mut real)).is_ok() {
            let _ = system_call(libc::SYS_dup3, [real as usize, fd as usize, 0, 0, 0, 0]);
            table::close_kernel(real);
        }
    }
    let mut name = Text::new();
    if cwd::name(&mut name) || cwd::is_near() {
        // The supervisor answers this call.
        let _ = system_call(libc::SYS_chdir, [name.as_ptr() as usize, 0, 0, 0, 0, 0]);
    }
}

/// The environment without this library's settings.
///
/// # Safety
///
/// `environment` is an environment, or NULL; it must outlive the result's pointers.
pub(crate) unsafe fn plain_environment(
    environment: *const *const c_char,
) -> (Vec<*const c_char>, Option<CString>) {
    let ours = [
        variables::FORWARD,
        variables::SOCKET,
        variables::OPTIONS,
        variables::HANDED,
        variables::RUN,
        variables::NEAR,
        variables::SUPERVISED,
    ];
    let mut preload = None;
    let mut pointers = Vec::new();
    let mut at = environment;
    // SAFETY: the caller's array, which ends with NULL.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let setting = CStr::from_ptr(*at).to_bytes();
            let (name, value) = setting
                .iter()
                .position(|byte| *byte == b'=')
                .map_or((setting, &b""[..]), |equals| (&setting[..equals], &setting[equals + 1..]));
            if name == b"LD_PRELOAD" {
                preload = without_this(value);
            } else if !ours.iter().any(|own| own.to_bytes() == name) {
                pointers.push(*at);
            }
            at = at.add(1);
        }
    }
    pointers.extend(preload.as_ref().map(|preload| preload.as_ptr()));
    pointers.push(std::ptr::null());
    (pointers, preload)
}

/// `LD_PRELOAD=…` without this library, unless nothing else is in it.
fn without_this(value: &[u8]) -> Option<CString> {
    // SAFETY: an address of this library's; all zeros is a valid answer.
    let own = unsafe {
        let mut told: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr(without_this as *const () as *const _, &raw mut told) != 0;
        if found && !told.dli_fname.is_null() { CStr::from_ptr(told.dli_fname).to_bytes() } else { b"" }
    };
    let others: Vec<&[u8]> = value
        .split(|byte| *byte == b':' || *byte == b' ')
        .filter(|name| !name.is_empty() && *name != own)
        .collect();
    let setting = [&b"LD_PRELOAD="[..], &others.join(&b':')].concat();
    CString::new(setting).ok().filter(|_| !others.is_empty())
}
