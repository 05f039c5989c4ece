//! Whether a program can be preloaded: dynamically linked, and not run with another's rights.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use zazen_core::{Error, ErrorKind, Result};

const PT_INTERP: u32 = 3;
const SET_UID_OR_GID: u32 = 0o6000;

/// Refuses (`Unsupported`) what the loader would start without the library.
pub(crate) fn can_be_preloaded(program: &Path) -> Result<()> {
    let refuse =
        |why: &str| Err(Error::new(ErrorKind::Unsupported, format!("program {}: {why}", program.display())));
    let Ok(mut file) = File::open(program) else { return Ok(()) };
    if file.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & SET_UID_OR_GID != 0) {
        return refuse(
            "is set-user-id or set-group-id: the loader preloads nothing into such; run a copy without the bit",
        );
    }
    let mut head = [0; 64];
    if file.read_exact(&mut head).is_err() || &head[..4] != b"\x7fELF" {
        // A script: what its interpreter is will be seen by exec.
        return Ok(());
    }
    if head[4] != 2 {
        return refuse("is a 32-bit program; the preload library is a 64-bit one");
    }
    let number = |at: usize, bytes: usize| {
        head[at..at + bytes].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let (start, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    for index in 0..count {
        let mut kind = [0; 4];
        if file.read_exact_at(&mut kind, start + index * size).is_err() {
            return Ok(());
        }
        if u32::from_le_bytes(kind) == PT_INTERP {
            return Ok(());
        }
    }
    refuse("is statically linked: there is no libc call to forward; use a dynamically linked build of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_can_be_preloaded() {
        can_be_preloaded(&std::env::current_exe().unwrap()).unwrap();
        can_be_preloaded(Path::new("/etc/passwd")).unwrap();
    }

    #[test]
    fn a_program_without_an_interpreter_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("static");
        let mut elf = vec![0; 64 + 56];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, 1);
        std::fs::write(&path, &elf).unwrap();
        assert_eq!(can_be_preloaded(&path).unwrap_err().kind(), ErrorKind::Unsupported);
        elf[64] = PT_INTERP as u8;
        std::fs::write(&path, &elf).unwrap();
        can_be_preloaded(&path).unwrap();
    }
}
