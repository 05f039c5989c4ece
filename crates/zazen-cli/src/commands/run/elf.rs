//! Whether a program can be forwarded: not run with another's rights; and dynamically linked, or
//! supervised.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::plain_file::open_plain;
use zazen_forward_api::elf;

const SET_UID_OR_GID: u32 = 0o6000;

/// Refuses (`Unsupported`) what the loader would start without the library, and what no filter is
/// for.
pub(crate) fn can_be_run(program: &Path, supervised: bool) -> Result<()> {
    let refuse =
        |why: &str| Err(Error::new(ErrorKind::Unsupported, format!("program {}: {why}", program.display())));
    let Ok(mut file) = open_plain(program) else { return Ok(()) };
    if file.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & SET_UID_OR_GID != 0) {
        return refuse(
            "is set-user-id or set-group-id: such a program would not have these rights; run a copy without \
             the bit",
        );
    }
    let mut head = [0; elf::HEAD_BYTES];
    let Ok(got) = file.read(&mut head) else { return Ok(()) };
    let head = &head[..got];
    if head.starts_with(b"\x7fELF") && !elf::is_program(head) {
        return refuse("is a 32-bit program; only 64-bit ones can be forwarded");
    }
    // A script: what its interpreter is will be seen by exec.
    if supervised || !elf::bypasses_libraries(head) {
        return Ok(());
    }
    refuse(
        "is statically linked, or makes its system calls itself: there is no libc call to forward; add \
         --seccomp, or use a dynamically linked build",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_can_be_run() {
        can_be_run(&std::env::current_exe().unwrap(), false).unwrap();
        can_be_run(Path::new("/etc/passwd"), false).unwrap();
        // exec refuses a FIFO; nothing is waited for before that.
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        can_be_run(&fifo, false).unwrap();
    }

    #[test]
    fn a_program_without_an_interpreter_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("static");
        let mut elf = vec![0; 64 + 56];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, 1);
        std::fs::write(&path, &elf).unwrap();
        assert_eq!(can_be_run(&path, false).unwrap_err().kind(), ErrorKind::Unsupported);
        can_be_run(&path, true).unwrap();
        elf[64] = 3; // PT_INTERP
        std::fs::write(&path, &elf).unwrap();
        can_be_run(&path, false).unwrap();
    }
}
