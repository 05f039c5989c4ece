//! Opens files whose names come from people. Nothing is waited for: neither the writer of a FIFO
//! nor whoever has a lease.

use rustix::fs::{FileType, Mode, OFlags, fcntl_setfl, fstat, fstatfs, open};
use std::fs::File;
use std::io::{Error, Read, Result};
use std::path::Path;

/// What the kernel calls the file system of pipes that have no name.
const PIPES: u64 = 0x5049_5045;

/// Opens the plain file `path` to read it. Whatever else has the name is an error.
pub fn open_plain(path: &Path) -> Result<File> {
    let file = open_at_once(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::other("is not a plain file")),
    }
}

/// Opens what a user gives a command to read: a file, a device, or a pipe of the shell, as from
/// `<(COMMAND)`. A FIFO is an error: it may have no writer.
pub fn open_given(path: &Path) -> Result<File> {
    let file = open_at_once(path)?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::Fifo
        && fstatfs(&file)?.f_type as u64 & 0xffff_ffff != PIPES
    {
        return Err(Error::other("is a FIFO, which may have no writer; give a file, or a pipe: <(COMMAND)"));
    }
    // From here on, reading waits for what a pipe brings.
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// The bytes of a file, up to `bytes_max` of them; an error if it has more.
pub fn read_within(file: File, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(Error::other(format!("has more than {bytes_max} bytes; is it the right file?"))),
        false => Ok(bytes),
    }
}

fn open_at_once(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_fifo_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        assert!(open_plain(&fifo).unwrap_err().to_string().contains("is not a plain file"));
        assert!(open_given(&fifo).unwrap_err().to_string().contains("is a FIFO"));
        assert!(open_plain(folder.path()).is_err());
        std::fs::write(folder.path().join("file"), "text").unwrap();
        let file = open_plain(&folder.path().join("file")).unwrap();
        assert_eq!(read_within(file, 4).unwrap(), b"text");
        let file = open_given(&folder.path().join("file")).unwrap();
        assert!(read_within(file, 3).unwrap_err().to_string().contains("more than 3 bytes"));
    }

    #[test]
    fn a_pipe_of_the_shell_is_waited_for() {
        let (end, mut other) = std::io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", end.as_raw_fd());
        let file = open_given(Path::new(&path)).unwrap();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            std::io::Write::write_all(&mut other, b"late").unwrap();
        });
        drop(end);
        assert_eq!(read_within(file, 10).unwrap(), b"late");
        writer.join().unwrap();
    }
}
