//! fork, exec and their relatives: what a new process, or a new program in this one, takes over.
//!
//! fork: the parent asks the far side to keep a copy of its descriptions. The child claims the copy
//! with a session of its own. exec: the environment says which placeholder stands for which
//! description. It names a placeholder by its inode, which dup and spawn do not change. The new
//! program looks which placeholders it has.
//!
//! Invariant: every program that is started gets this library's settings in its environment.

use crate::far::{self, Destination, HELLO_EXEC, HELLO_FORK, far, place};
use crate::real::{give, hooks, set_errno, system_call};
use crate::table::{self, FarFile};
use crate::{cwd, data, events, heard, libraries, near, signals, state, supervised, transport};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use zazen_forward_api::paths::Text;
use zazen_forward_api::variables;

const PRELOAD: &CStr = c"LD_PRELOAD";

/// What every program that is started gets: as this one got it.
static mut INHERITED: Vec<CString> = Vec::new();

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The token of a fork in progress, from the parent's side of it.
static TOKEN: AtomicU64 = AtomicU64::new(0);

/// Called once, when the library is loaded.
pub(crate) fn begin() {
    supervised::begin();
    let settings = [PRELOAD, variables::FORWARD, variables::SOCKET, variables::OPTIONS, variables::RUN];
    for name in settings.into_iter().chain([variables::NEAR, variables::ESCAPES]) {
        if let Some(value) = state::variable(name) {
            let text = [name.to_bytes(), b"=", value].concat();
            if let Ok(text) = CString::new(text) {
                // SAFETY: there is one thread; nobody else writes it.
                unsafe { (*(&raw mut INHERITED)).push(text) };
            }
        }
    }
    // SAFETY: functions that live for ever.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    // SAFETY: a function that lives for ever.
    unsafe { libc::atexit(at_exit) };
    data::refresh_limit();
    if let Some(handed) = state::variable(variables::HANDED) {
        let handed = handed.to_vec();
        // SAFETY: a name; there is one thread.
        unsafe { libc::unsetenv(variables::HANDED.as_ptr()) };
        take_over(&handed);
    }
}

/// The program returns from main(), or calls exit(3).
extern "C" fn at_exit() {
    table::look_for_escapes();
    // What it has closed is closed at the far side, too, where that moves times of access.
    heard::hear();
}

pub(crate) extern "C" fn before_fork() {
    heard::note_start();
    let mut token = 0;
    transport::settle();
    if table::any() && far!(px_fork(&raw mut token)).is_err() {
        token = 0;
    }
    TOKEN.store(token, Ordering::Release);
}

extern "C" fn after_fork() {}

pub(crate) extern "C" fn in_child() {
    signals::after_fork();
    transport::forget();
    heard::after_fork();
    cwd::after_fork();
    near::after_fork();
    events::after_fork();
    let token = TOKEN.load(Ordering::Acquire);
    if token != 0 {
        let mut hello = far::new_hello(HELLO_FORK, transport::key());
        (hello.token, hello.keep_all) = (token, 1);
        let _ = transport::begin_with(hello, &[]);
    }
}

/// One description in the environment.
struct Handed {
    inode: u64,
    id: u32,
    mode: u32,
}

fn hex(bytes: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok()
}

/// `KIND,KEY,TOKEN,CWD;INODE,ID,MODE;…`, all hexadecimal.
fn parse(text: &[u8]) -> Option<([u64; 4], Vec<Handed>)> {
    let mut parts = text.split(|byte| *byte == b';');
    let mut head = [0; 4];
    for (field, slot) in parts.next()?.split(|byte| *byte == b',').zip(&mut head) {
        *slot = hex(field)?;
    }
    let mut all = Vec::new();
    for part in parts {
        let mut fields = part.split(|byte| *byte == b',').filter_map(hex);
        let (inode, id, mode) = (fields.next()?, fields.next()?, fields.next()?);
        all.push(Handed { inode, id: id as u32, mode: mode as u32 });
    }
    Some((head, all))
}

/// Takes over what the program before, or the one that spawned this, had open.
fn take_over(text: &[u8]) {
    let Some(([kind, key, token, cwd], handed)) = parse(text) else { return };
    if !handed.is_empty() {
        state::note_locks();
    }
    let mut keep = Vec::new();
    let mut found = Vec::new();
    for fd in open_descriptors() {
        let Some(inode) = table::placeholder_inode(fd) else { continue };
        if let Some(handed) = handed.iter().find(|handed| handed.inode == inode) {
            keep.push(handed.id);
            found.push((fd, FarFile::new(handed.id, handed.mode)));
        }
    }
    let far_cwd = (cwd != 0).then(|| FarFile::new(cwd as u32, libc::S_IFDIR));
    keep.extend(far_cwd.map(FarFile::id));
    keep.sort_unstable();
    keep.dedup();
    // Also with nothing to keep: what the far side holds for us is to be dropped.
    if kind as u32 == HELLO_EXEC {
        transport::adopt(key);
    }
    let mut hello = far::new_hello(kind as u32, transport::key());
    hello.token = token;
    if transport::begin_with(hello, &keep).is_err() {
        return;
    }
    for (fd, entry) in &found {
        table::set(*fd, *entry);
    }
    if let Some(cwd) = far_cwd {
        // One that was removed has no name any more.
        let mut name = Text::new();
        let _ = far::name_of(cwd, &mut name);
        cwd::set_far(Some((cwd, name.as_bytes())));
    }
}

/// Numbers of this process's descriptors, past every hook.
fn open_descriptors() -> Vec<c_int> {
    let mut all = Vec::new();
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let path = c"/proc/self/fd".as_ptr() as usize;
    let opened = system_call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags as usize, 0, 0, 0]);
    let Ok(listing) = opened else { return (0..1024).collect() };
    let mut buffer = [0_u64; 512];
    while let Ok(got @ 1..) =
        system_call(libc::SYS_getdents64, [listing, buffer.as_mut_ptr() as usize, 4096, 0, 0, 0])
    {
        let mut at = 0;
        while at < got {
            // SAFETY: the kernel's entries, whole ones.
            let (name, length) = unsafe {
                let entry = buffer.as_ptr().cast::<u8>().add(at).cast::<libc::dirent64>();
                let name = CStr::from_ptr((&raw const (*entry).d_name).cast());
                (name.to_bytes(), (&raw const (*entry).d_reclen).read() as usize)
            };
            let number = std::str::from_utf8(name).ok().and_then(|name| name.parse::<c_int>().ok());
            all.extend(number.filter(|fd| *fd != listing as c_int));
            at += length;
        }
    }
    table::close_kernel(listing as c_int);
    all
}

/// What a started program needs to know of what is open here.
fn describe(kind: u32, token: u64) -> CString {
    use std::fmt::Write;
    let cwd = cwd::far().map_or(0, FarFile::id);
    let mut text = variables::HANDED.to_string_lossy().into_owned();
    let _ = write!(text, "={kind:x},{:x},{token:x},{cwd:x}", transport::key());
    let mut told: Vec<u32> = Vec::new();
    for (fd, entry) in table::each() {
        if told.contains(&entry.id()) {
            continue;
        }
        if let Some(inode) = table::placeholder_inode(fd) {
            told.push(entry.id());
            let _ = write!(text, ";{inode:x},{:x},{:x}", entry.id(), entry.kind());
        }
    }
    CString::new(text).unwrap_or_default()
}

/// An environment for a program: the given one, with this library's settings.
struct Environment {
    pointers: Vec<*const c_char>,
    _handed: Option<CString>,
    _search: Option<CString>,
}

impl Environment {
    /// # Safety
    ///
    /// `given` is an environment, or NULL; it must outlive this.
    unsafe fn new(given: *const *const c_char, handed: Option<CString>) -> Environment {
        let mut pointers = Vec::new();
        let mut at = given;
        // SAFETY: ends with NULL; strings live as long as the caller says.
        unsafe {
            while !at.is_null() && !(*at).is_null() {
                let rest = CStr::from_ptr(*at).to_bytes().strip_prefix(variables::HANDED.to_bytes());
                if rest.is_none_or(|rest| rest.first() != Some(&b'=')) {
                    pointers.push(*at);
                }
                at = at.add(1);
            }
            for setting in &*(&raw const INHERITED) {
                let name = setting.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
                let there = pointers.iter().any(|known| {
                    CStr::from_ptr(*known)
                        .to_bytes()
                        .strip_prefix(name)
                        .is_some_and(|rest| rest.starts_with(b"="))
                });
                if !there {
                    pointers.push(setting.as_ptr());
                }
            }
        }
        let mut search = None;
        for setting in &mut pointers {
            // SAFETY: as above.
            let bytes = unsafe { CStr::from_ptr(*setting) }.to_bytes();
            if let Some(value) = bytes.strip_prefix(b"LD_LIBRARY_PATH=") {
                search = libraries::search_path(value);
                *setting = search.as_ref().map_or(*setting, |search| search.as_ptr());
            }
        }
        pointers.extend(handed.as_ref().map(|handed| handed.as_ptr()));
        pointers.push(std::ptr::null());
        Environment { pointers, _handed: handed, _search: search }
    }

    fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// Whether a new program in this process would have anything to take over.
fn hands_on() -> bool {
    table::any()
}

pub(crate) type Arguments = *const *const c_char;

/// A far program as this kernel can start it.
pub(crate) enum Program {
    /// A copy in memory.
    Copy(c_int),
    /// The same file as this kernel has it.
    Here(CString),
    /// A script, its interpreter and that one's argument.
    Script(CString, Option<CString>),
}

/// Fetches a far program.
fn fetch(dir: c_int, path: *const c_char) -> Result<Program, c_int> {
    far!(px_access(dir, path, libc::X_OK, libc::AT_EACCESS))?;
    let mut opened = far::PxOpened::default();
    far!(px_open(dir, path, libc::O_RDONLY, 0, 0, (&raw mut opened).cast()))?;
    let entry = FarFile::new(opened.id, opened.mode);
    let program = if entry.kind() == libc::S_IFREG { program_of(entry) } else { Err(libc::EACCES) };
    let _ = far!(px_close(opened.id, 1));
    program
}

/// Not a copy where the file can be executed itself: then `$ORIGIN` holds.
pub(crate) fn program_of(entry: FarFile) -> Result<Program, c_int> {
    let mut head = [0_u8; 2];
    let got = data::read_far(entry, head.as_mut_ptr().cast(), head.len(), 0, 0)? as usize;
    if &head[..got] != b"#!"
        && let Some(here) = libraries::twin(entry.dir(), far::EMPTY)
    {
        return Ok(Program::Here(here));
    }
    copy_program(entry)
}

/// The interpreter of a near script, and its argument; `None` for any other program. The kernel
/// would look for the interpreter by its name here, and tell it the script's name there.
fn near_script(path: *const c_char) -> Result<Option<(CString, Option<CString>)>, c_int> {
    let here = libc::AT_FDCWD as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    let Ok(fd) = system_call(libc::SYS_openat, [here, path as usize, flags, 0, 0, 0]) else {
        // The kernel says what is wrong with it; a program need not be readable.
        return Ok(None);
    };
    let mut head = [0_u8; 4096];
    let got = system_call(libc::SYS_read, [fd, head.as_mut_ptr() as usize, head.len(), 0, 0, 0]);
    table::close_kernel(fd as c_int);
    let Some(line) = got.ok().and_then(|got| head[..got].strip_prefix(b"#!")) else { return Ok(None) };
    let asked = [here, path as usize, libc::X_OK as usize, libc::AT_EACCESS as usize, 0, 0];
    system_call(libc::SYS_faccessat2, asked)?;
    match script(line.split(|byte| *byte == b'\n').next().unwrap_or_default())? {
        Program::Script(interpreter, argument) => Ok(Some((interpreter, argument))),
        Program::Copy(_) | Program::Here(_) => Ok(None),
    }
}

fn copy_program(entry: FarFile) -> Result<Program, c_int> {
    let mut piece = vec![0_u8; 1 << 20];
    let got = data::read_far(entry, piece.as_mut_ptr().cast(), piece.len(), 0, 0)? as usize;
    if let Some(line) = piece[..got].strip_prefix(b"#!") {
        return script(line.split(|byte| *byte == b'\n').next().unwrap_or_default());
    }
    let name = c"zazen-program".as_ptr() as usize;
    let fd = system_call(libc::SYS_memfd_create, [name, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0])?;
    let (mut at, mut got) = (0, got);
    while got > 0 {
        let mut done = 0;
        while done < got {
            let from = piece[done..].as_ptr() as usize;
            done += system_call(libc::SYS_write, [fd, from, got - done, 0, 0, 0])?;
        }
        at += got as i64;
        got = data::read_far(entry, piece.as_mut_ptr().cast(), piece.len(), at, 0)? as usize;
    }
    Ok(Program::Copy(fd as c_int))
}

fn script(line: &[u8]) -> Result<Program, c_int> {
    let line = line.trim_ascii();
    let (interpreter, argument) = match line.iter().position(|byte| *byte == b' ' || *byte == b'\t') {
        Some(at) => (&line[..at], Some(line[at..].trim_ascii())),
        None => (line, None),
    };
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| libc::ENOEXEC);
    if interpreter.is_empty() {
        return Err(libc::ENOEXEC);
    }
    Ok(Program::Script(text(interpreter)?, argument.map(text).transpose()?))
}

/// The arguments of a script's interpreter.
pub(crate) unsafe fn script_arguments(
    interpreter: &CStr,
    argument: Option<&CString>,
    path: *const c_char,
    arguments: Arguments,
) -> Vec<*const c_char> {
    let mut all = vec![interpreter.as_ptr()];
    all.extend(argument.map(|argument| argument.as_ptr()));
    all.push(path);
    // SAFETY: the program's array, which ends with NULL.
    unsafe {
        let mut at = arguments;
        while !at.is_null() && !(*at).is_null() {
            at = at.add(1);
            all.push(*at);
        }
        if all.last().is_some_and(|last| !last.is_null()) {
            all.push(std::ptr::null());
        }
    }
    all
}

hooks! {
    fn execve(path: *const c_char, arguments: Arguments, environment: Arguments) -> c_int {
        if !state::is_active() {
            return next(path, arguments, environment);
        }
        let mut text = Text::new();
        let marked = supervised::is_marked(environment);
        let (dir, far_path) = match place(libc::AT_FDCWD, path, &mut text) {
            Ok(Destination::Local(path) | Destination::Near(path)) if marked => {
                // A search in PATH asks for files that are not there.
                let here = libc::AT_FDCWD as usize;
                let asked = [here, path as usize, libc::X_OK as usize, 0, 0, 0];
                if let Err(error) = system_call(libc::SYS_faccessat, asked) {
                    return give(Err(error));
                }
                supervised::shed();
                let (environment, _preload) = supervised::plain_environment(environment);
                return next(path, arguments, environment.as_ptr());
            }
            Ok(Destination::Local(path)) if supervised::bypasses(path) => {
                return match supervised::Substitute::new(path, arguments) {
                    Ok(other) => announced(environment, |environment| {
                        next(other.program(), other.arguments(), environment)
                    }),
                    Err(error) => give(Err(error)),
                };
            }
            Ok(Destination::Local(path)) => {
                return announced(environment, |environment| next(path, arguments, environment));
            }
            Ok(Destination::Near(here)) => {
                return match near_script(here) {
                    Err(error) => give(Err(error)),
                    Ok(Some((interpreter, argument))) => {
                        let all = script_arguments(&interpreter, argument.as_ref(), path, arguments);
                        execute_interpreter(&interpreter, all.as_ptr(), environment)
                    }
                    Ok(None) if supervised::bypasses(here) => {
                        match supervised::Substitute::new(path, arguments) {
                            Ok(other) => announced(environment, |environment| {
                                next(other.program(), other.arguments(), environment)
                            }),
                            Err(error) => give(Err(error)),
                        }
                    }
                    Ok(None) => announced(environment, |environment| next(here, arguments, environment)),
                };
            }
            Ok(Destination::Far(dir, path)) => (dir, path),
            Err(error) => return give(Err(error)),
        };
        match fetch(dir, far_path) {
            Err(error) => give(Err(error)),
            Ok(Program::Here(here)) if marked => {
                supervised::shed();
                let (environment, _preload) = supervised::plain_environment(environment);
                next(here.as_ptr(), arguments, environment.as_ptr())
            }
            Ok(Program::Here(here)) if supervised::bypasses(here.as_ptr()) => {
                match supervised::Substitute::new(path, arguments) {
                    Ok(other) => announced(environment, |environment| {
                        next(other.program(), other.arguments(), environment)
                    }),
                    Err(error) => give(Err(error)),
                }
            }
            Ok(Program::Here(here)) => {
                announced(environment, |environment| next(here.as_ptr(), arguments, environment))
            }
            Ok(Program::Copy(fd)) if marked => {
                supervised::shed();
                let (environment, _preload) = supervised::plain_environment(environment);
                give(execute_copy(fd, arguments, environment.as_ptr()))
            }
            Ok(Program::Copy(fd)) if copy_bypasses(fd) => {
                table::close_kernel(fd);
                match supervised::Substitute::new(path, arguments) {
                    Ok(other) => announced(environment, |environment| {
                        next(other.program(), other.arguments(), environment)
                    }),
                    Err(error) => give(Err(error)),
                }
            }
            Ok(Program::Copy(fd)) => announced(environment, |environment| {
                give(execute_copy(fd, arguments, environment))
            }),
            Ok(Program::Script(interpreter, argument)) => {
                let all = script_arguments(&interpreter, argument.as_ref(), path, arguments);
                announced(environment, |environment| next(interpreter.as_ptr(), all.as_ptr(), environment))
            }
        }
    }

    fn execv(path: *const c_char, arguments: Arguments) -> c_int {
        if !state::is_active() {
            return next(path, arguments);
        }
        execve(path, arguments, environ as Arguments)
    }

    fn execvp(file: *const c_char, arguments: Arguments) -> c_int {
        if !state::is_active() {
            return next(file, arguments);
        }
        search(file, arguments, environ as Arguments)
    }

    fn execvpe(file: *const c_char, arguments: Arguments, environment: Arguments) -> c_int {
        if !state::is_active() {
            return next(file, arguments, environment);
        }
        search(file, arguments, environment)
    }

    fn vfork() -> libc::pid_t {
        // A child that shares this memory would change this table.
        libc::fork()
    }

    #[allow(non_snake_case)]
    fn _Fork() -> libc::pid_t {
        // A child has a session of its own, which fork's handlers make.
        libc::fork()
    }

    fn posix_spawn(
        pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, environment: Arguments,
    ) -> c_int {
        if !state::is_active() {
            return next(pid, path, actions, attributes, arguments, environment);
        }
        let mut text = Text::new();
        let environment = spawned(environment);
        match place(libc::AT_FDCWD, path, &mut text) {
            Ok(Destination::Local(path)) if supervised::bypasses(path) => {
                match supervised::Substitute::new(path, arguments) {
                    Ok(other) => {
                        let (path, arguments) = (other.program(), other.arguments());
                        next(pid, path, actions, attributes, arguments, environment.as_ptr())
                    }
                    Err(error) => error,
                }
            }
            Ok(Destination::Local(path)) => {
                next(pid, path, actions, attributes, arguments, environment.as_ptr())
            }
            Ok(Destination::Near(here)) => match near_script(here) {
                Err(error) => error,
                Ok(Some((interpreter, argument))) => {
                    let all = script_arguments(&interpreter, argument.as_ref(), path, arguments);
                    match place(libc::AT_FDCWD, interpreter.as_ptr(), &mut Text::new()) {
                        Ok(Destination::Local(found) | Destination::Near(found)) => {
                            next(pid, found, actions, attributes, all.as_ptr(), environment.as_ptr())
                        }
                        Ok(Destination::Far(..)) => libc::ENOENT,
                        Err(error) => error,
                    }
                }
                Ok(None) if supervised::bypasses(here) => match supervised::Substitute::new(path, arguments) {
                    Ok(other) => {
                        let (path, arguments) = (other.program(), other.arguments());
                        next(pid, path, actions, attributes, arguments, environment.as_ptr())
                    }
                    Err(error) => error,
                },
                Ok(None) => next(pid, here, actions, attributes, arguments, environment.as_ptr()),
            },
            Ok(Destination::Far(dir, far_path)) => match fetch(dir, far_path) {
                Err(error) => error,
                Ok(Program::Here(here)) if !supervised::bypasses(here.as_ptr()) => {
                    next(pid, here.as_ptr(), actions, attributes, arguments, environment.as_ptr())
                }
                Ok(Program::Here(_)) => match supervised::Substitute::new(path, arguments) {
                    Ok(other) => {
                        let (path, arguments) = (other.program(), other.arguments());
                        next(pid, path, actions, attributes, arguments, environment.as_ptr())
                    }
                    Err(error) => error,
                },
                Ok(Program::Copy(fd)) if copy_bypasses(fd) => {
                    table::close_kernel(fd);
                    match supervised::Substitute::new(path, arguments) {
                        Ok(other) => {
                            let (path, arguments) = (other.program(), other.arguments());
                            next(pid, path, actions, attributes, arguments, environment.as_ptr())
                        }
                        Err(error) => error,
                    }
                }
                Ok(Program::Copy(fd)) => {
                    // Its name is looked up in the child, which has the descriptor until it
                    // executes.
                    let name = format!("/proc/self/fd/{fd}\0");
                    let name = name.as_ptr().cast();
                    let outcome = next(pid, name, actions, attributes, arguments, environment.as_ptr());
                    table::close_kernel(fd);
                    outcome
                }
                Ok(Program::Script(interpreter, argument)) => {
                    let all = script_arguments(&interpreter, argument.as_ref(), path, arguments);
                    let name = interpreter.as_ptr();
                    next(pid, name, actions, attributes, all.as_ptr(), environment.as_ptr())
                }
            },
            Err(error) => error,
        }
    }

    fn posix_spawnp(
        pid: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, environment: Arguments,
    ) -> c_int {
        if !state::is_active() {
            return next(pid, file, actions, attributes, arguments, environment);
        }
        if CStr::from_ptr(file).to_bytes().contains(&b'/') {
            return posix_spawn(pid, file, actions, attributes, arguments, environment);
        }
        // Searched here, so that far folders of PATH count.
        let name = CStr::from_ptr(file).to_bytes();
        let paths = state::variable(c"PATH").unwrap_or(b"/bin:/usr/bin").to_vec();
        for folder in paths.split(|byte| *byte == b':') {
            let folder: &[u8] = if folder.is_empty() { b"." } else { folder };
            let Ok(full) = CString::new([folder, b"/", name].concat()) else { continue };
            if crate::metadata::euidaccess(full.as_ptr(), libc::X_OK) == 0 {
                return posix_spawn(pid, full.as_ptr(), actions, attributes, arguments, environment);
            }
        }
        let environment = spawned(environment);
        next(pid, file, actions, attributes, arguments, environment.as_ptr())
    }

    fn posix_spawn_file_actions_addopen(
        actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t,
    ) -> c_int {
        match place(libc::AT_FDCWD, path, &mut Text::new()) {
            Ok(Destination::Local(path) | Destination::Near(path)) => next(actions, fd, path, flags, mode),
            // Opened now, by this process: the child has no hooks before it executes.
            Ok(Destination::Far(dir, path)) => {
                match crate::open::open_far(dir, path, flags | libc::O_CLOEXEC, mode) {
                    Ok(opened) => libc::posix_spawn_file_actions_adddup2(actions.cast(), opened, fd),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        }
    }

    fn system(command: *const c_char) -> c_int {
        if !state::is_active() || command.is_null() {
            return next(command);
        }
        with_environment(|| next(command))
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        if !state::is_active() {
            return next(command, mode);
        }
        with_environment(|| next(command, mode))
    }
}

/// Executes a script's interpreter, which may be below a prefix itself; returns only if that fails.
pub(crate) unsafe fn execute_interpreter(
    interpreter: &CStr,
    arguments: Arguments,
    environment: Arguments,
) -> c_int {
    thread_local! {
        static DEPTH: Cell<u32> = const { Cell::new(0) };
    }
    // An interpreter may be a script: the kernel bounds the chain, and so does this.
    if DEPTH.get() >= INTERPRETERS_MAX {
        return give(Err(libc::ELOOP));
    }
    DEPTH.set(DEPTH.get() + 1);
    // SAFETY: strings and arrays of the caller's.
    let outcome = unsafe { execve(interpreter.as_ptr(), arguments, environment) };
    DEPTH.set(DEPTH.get() - 1);
    outcome
}

/// Scripts that interpret scripts, as the kernel bounds them.
const INTERPRETERS_MAX: u32 = 5;

/// Executes a copy in memory; returns only if that fails.
fn execute_copy(fd: c_int, arguments: Arguments, environment: Arguments) -> Result<c_int, c_int> {
    let (flags, empty) = (libc::AT_EMPTY_PATH as usize, c"".as_ptr() as usize);
    let call = [fd as usize, empty, arguments as usize, environment as usize, flags, 0];
    let outcome = system_call(libc::SYS_execveat, call);
    table::close_kernel(fd);
    outcome.map(|_| 0)
}

/// Whether a copy of a far program bypasses this library.
pub(crate) fn copy_bypasses(fd: c_int) -> bool {
    CString::new(format!("/proc/self/fd/{fd}")).is_ok_and(|name| supervised::bypasses(name.as_ptr()))
}

/// Runs an exec with the settings in its environment and the far side told; it returns only on
/// failure.
pub(crate) unsafe fn announced(environment: Arguments, exec: impl FnOnce(Arguments) -> c_int) -> c_int {
    let handed = hands_on();
    if handed {
        let _ = far!(px_exec(1));
    }
    let text = handed.then(|| describe(HELLO_EXEC, 0));
    // SAFETY: the program's environment.
    let environment = unsafe { Environment::new(environment, text) };
    let outcome = exec(environment.as_ptr());
    let error = crate::real::errno();
    if handed {
        let _ = far!(px_exec(0));
    }
    set_errno(error);
    outcome
}

/// The environment of a program that is started beside this one.
unsafe fn spawned(environment: Arguments) -> Environment {
    heard::note_start();
    let mut token = 0;
    let handed = table::any() && far!(px_fork(&raw mut token)).is_ok();
    let text = handed.then(|| describe(HELLO_FORK, token));
    // SAFETY: the program's environment.
    unsafe { Environment::new(environment, text) }
}

/// For functions of libc that start programs by themselves, with this process's environment.
unsafe fn with_environment<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: libc's variable; it is put back before anybody could free what stands in it.
    unsafe {
        let before = environ;
        let environment = spawned(before as Arguments);
        environ = environment.as_ptr().cast_mut().cast();
        let result = body();
        environ = before;
        result
    }
}

/// execvp: PATH is searched here, so that each attempt is a hook's.
unsafe fn search(file: *const c_char, arguments: Arguments, environment: Arguments) -> c_int {
    // SAFETY: the program's strings and arrays.
    unsafe {
        let name = CStr::from_ptr(file).to_bytes();
        if name.is_empty() {
            return give(Err(libc::ENOENT));
        }
        if name.contains(&b'/') {
            return execute_or_shell(file, arguments, environment);
        }
        let paths = state::variable(c"PATH").unwrap_or(b"/bin:/usr/bin").to_vec();
        let mut denied = false;
        for folder in paths.split(|byte| *byte == b':') {
            let folder: &[u8] = if folder.is_empty() { b"." } else { folder };
            let Ok(full) = CString::new([folder, b"/", name].concat()) else { continue };
            execute_or_shell(full.as_ptr(), arguments, environment);
            match crate::real::errno() {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                _ => return -1,
            }
        }
        give(Err(if denied { libc::EACCES } else { libc::ENOENT }))
    }
}

/// execve, and /bin/sh for a script that doesn't say what reads it.
unsafe fn execute_or_shell(path: *const c_char, arguments: Arguments, environment: Arguments) -> c_int {
    // SAFETY: the program's strings and arrays.
    unsafe {
        let outcome = execve(path, arguments, environment);
        if crate::real::errno() != libc::ENOEXEC {
            return outcome;
        }
        let all = script_arguments(c"/bin/sh", None, path, arguments);
        execve(c"/bin/sh".as_ptr(), all.as_ptr(), environment)
    }
}

/// For variadic.c.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn zazen_preload_execve(
    path: *const c_char,
    arguments: Arguments,
    environment: Arguments,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { execve(path, arguments, environment) }
}

/// For variadic.c.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn zazen_preload_execvpe(
    file: *const c_char,
    arguments: Arguments,
    environment: Arguments,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { execvpe(file, arguments, environment) }
}
