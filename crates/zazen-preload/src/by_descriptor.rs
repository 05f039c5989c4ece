//! Programs that are started by a descriptor, or by a name relative to one.

use crate::process::{Arguments, Program, announced, copy_bypasses, execute_interpreter, execve};
use crate::process::{program_of, script_arguments};
use crate::real::{give, hooks};
use crate::{far, fault, near, state, table};
use std::ffi::{CString, c_char, c_int};
use zazen_forward_api::paths::Text;

hooks! {
    fn fexecve(fd: c_int, arguments: Arguments, environment: Arguments) -> c_int {
        if !state::is_active() {
            return next(fd, arguments, environment);
        }
        let Some(entry) = table::entry(fd) else {
            if copy_bypasses(fd) {
                let mut name = Text::new();
                near::kernel_name(fd, &mut name);
                return execve(name.as_ptr(), arguments, environment);
            }
            return announced(environment, |environment| next(fd, arguments, environment));
        };
        let mut name = Text::new();
        match program_of(entry) {
            Ok(Program::Copy(copy)) if copy_bypasses(copy) => {
                table::close_kernel(copy);
                match far::name_of(entry, &mut name) {
                    Ok(()) => execve(name.as_ptr(), arguments, environment),
                    Err(error) => give(Err(error)),
                }
            }
            Ok(Program::Copy(copy)) => announced(environment, |environment| {
                let outcome = next(copy, arguments, environment);
                table::close_kernel(copy);
                outcome
            }),
            Ok(Program::Here(here)) => execve(here.as_ptr(), arguments, environment),
            // Its interpreter opens it by its number, which must be there then.
            Ok(Program::Script(..))
                if table::fcntl_kernel(fd, libc::F_GETFD, 0).unwrap_or(0) & libc::FD_CLOEXEC != 0 =>
            {
                give(Err(libc::ENOENT))
            }
            Ok(Program::Script(interpreter, argument)) => {
                let Ok(name) = CString::new(format!("/dev/fd/{fd}")) else { return give(Err(libc::ENOENT)) };
                let all = script_arguments(&interpreter, argument.as_ref(), name.as_ptr(), arguments);
                execute_interpreter(&interpreter, all.as_ptr(), environment)
            }
            Err(error) => give(Err(error)),
        }
    }

    fn execveat(
        dir: c_int, path: *const c_char, arguments: Arguments, environment: Arguments, flags: c_int,
    ) -> c_int {
        if !state::is_active() {
            return next(dir, path, arguments, environment, flags);
        }
        let Some(bytes) = fault::string(path) else { return give(Err(libc::EFAULT)) };
        let bytes = bytes.to_bytes();
        if flags & libc::AT_EMPTY_PATH != 0 && bytes.is_empty() {
            return if dir == libc::AT_FDCWD {
                give(Err(libc::EACCES))
            } else {
                fexecve(dir, arguments, environment)
            };
        }
        if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
            let mut link = 0;
            if crate::names::readlinkat(dir, path, (&raw mut link).cast(), 1) >= 0 {
                return give(Err(libc::ELOOP));
            }
        }
        if bytes.is_empty() || bytes.starts_with(b"/") || dir == libc::AT_FDCWD {
            return execve(path, arguments, environment);
        }
        let mut name = Text::new();
        match table::entry(dir) {
            Some(entry) if entry.kind() != libc::S_IFDIR => return give(Err(libc::ENOTDIR)),
            Some(entry) => {
                if let Err(error) = far::name_of(entry, &mut name) {
                    return give(Err(error));
                }
            }
            None => {
                if let Err(error) = table::fcntl_kernel(dir, libc::F_GETFD, 0) {
                    return give(Err(error));
                }
                near::kernel_name(dir, &mut name);
            }
        }
        if !name.push(b"/") || !name.push(bytes) {
            return give(Err(libc::ENAMETOOLONG));
        }
        execve(name.as_ptr(), arguments, environment)
    }
}
