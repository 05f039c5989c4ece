//! As Apple's and LTP's fsx: random reads, writes, truncations, mappings, holes and copies of one
//! file, compared with an array in memory. With several paths, which lead to the same file through
//! different mounts, each operation goes through a random one of them.

use super::Random;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The longest file, where nothing else is said.
pub const BYTES_MAX: u64 = 256 << 10;
/// The longest read or write.
const IO_MAX: u64 = 64 << 10;

/// What to do.
#[derive(Clone, Debug)]
pub struct Work {
    /// Names of the one file, on one mount each.
    pub paths: Vec<PathBuf>,
    /// Determines the operations.
    pub seed: u64,
    /// How many.
    pub operations: u64,
    /// The longest file.
    pub bytes_max: u64,
    /// Also map the file into memory (through one mount only, mappings are coherent).
    pub map: bool,
}

struct Run {
    files: Vec<File>,
    expected: Vec<u8>,
    random: Random,
    log: Vec<String>,
    bytes_max: u64,
}

/// Does the work. The error says which operation of which seed went wrong, and the last ones.
pub fn run(work: &Work) -> Result<(), String> {
    let open = |path: &PathBuf| {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        file.map_err(|error| format!("open {}: {error}", path.display()))
    };
    let files = work.paths.iter().map(open).collect::<Result<Vec<File>, String>>()?;
    files[0].set_len(0).map_err(|error| error.to_string())?;
    let (random, bytes_max) = (Random::new(work.seed), work.bytes_max.max(IO_MAX + 1));
    let mut run = Run { files, expected: Vec::new(), random, log: Vec::new(), bytes_max };
    for number in 0..work.operations {
        // Also the way of a file that is opened and closed again and again.
        if run.random.below(1000) == 0 {
            let which = run.random.below(run.files.len() as u64) as usize;
            run.files[which] = open(&work.paths[which])?;
            run.log.push(format!("{number}: reopen {which}"));
        }
        if let Err(error) = run.step(number, work.map) {
            let last = run.log.len().saturating_sub(20);
            let log = run.log[last..].join("\n");
            return Err(format!("seed {} operation {number}: {error}\n{log}", work.seed));
        }
    }
    Ok(())
}

impl Run {
    fn step(&mut self, number: u64, map: bool) -> Result<(), String> {
        let which = self.random.below(self.files.len() as u64) as usize;
        let size = self.expected.len() as u64;
        let kind = self.random.below(if map { 10 } else { 8 });
        let offset = self.random.below(self.bytes_max);
        let bytes = 1 + self.random.below(IO_MAX.min(self.bytes_max - offset));
        self.log.push(format!("{number}: kind {kind} through {which} at {offset} for {bytes} (size {size})"));
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let file = &self.files[which];
        match kind {
            0 | 1 => {
                let mut buffer = vec![0; bytes as usize];
                let got = read_all(file, &mut buffer, offset).map_err(|error| failed("read", error))?;
                let start = offset.min(size) as usize;
                let end = (offset + bytes).min(size) as usize;
                compare(&buffer[..got], &self.expected[start..end], offset)?;
            }
            2 | 3 => {
                let data = pattern(number, bytes);
                file.write_all_at(&data, offset).map_err(|error| failed("write", error))?;
                self.put(offset, &data);
            }
            4 => {
                file.set_len(offset).map_err(|error| failed("truncate", error))?;
                self.expected.resize(offset as usize, 0);
            }
            5 => {
                // FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
                // SAFETY: numbers and an open descriptor only.
                let done = unsafe { libc::fallocate(file.as_raw_fd(), 3, offset as i64, bytes as i64) };
                if done != 0 {
                    let error = std::io::Error::last_os_error();
                    if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
                        return Err(failed("punch a hole", error));
                    }
                } else {
                    let (start, end) = (offset.min(size) as usize, (offset + bytes).min(size) as usize);
                    self.expected[start..end].fill(0);
                }
            }
            6 => {
                let to = self.random.below(self.bytes_max - bytes);
                if offset + bytes <= size && (to + bytes <= offset || offset + bytes <= to) {
                    let copied = copy(file, offset, to, bytes).map_err(|error| failed("copy", error))?;
                    // A kernel copies up to the length that it keeps, which another mount may have
                    // changed a moment ago.
                    if copied == 0 && self.files.len() == 1 {
                        return Err("copied nothing".into());
                    }
                    if copied > 0 {
                        let data = self.expected[offset as usize..(offset + copied) as usize].to_vec();
                        self.put(to, &data);
                    }
                }
            }
            7 => {
                let known = file.metadata().map_err(|error| failed("stat", error))?.len();
                if self.files.len() == 1 && known != size {
                    return Err(format!("stat says {known} bytes, it has {size}"));
                }
                if self.random.below(20) == 0 {
                    file.sync_all().map_err(|error| failed("fsync", error))?;
                }
            }
            8 => {
                if offset + bytes <= size {
                    let mut buffer = vec![0; bytes as usize];
                    mapped(file, size, |memory| {
                        buffer.copy_from_slice(&memory[offset as usize..(offset + bytes) as usize]);
                    })?;
                    compare(&buffer, &self.expected[offset as usize..(offset + bytes) as usize], offset)?;
                }
            }
            _ => {
                if offset + bytes <= size {
                    let data = pattern(number, bytes);
                    mapped(file, size, |memory| {
                        memory[offset as usize..(offset + bytes) as usize].copy_from_slice(&data);
                    })?;
                    self.put(offset, &data);
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.expected.len() < end {
            self.expected.resize(end, 0);
        }
        self.expected[offset as usize..end].copy_from_slice(data);
    }
}

fn pattern(number: u64, bytes: u64) -> Vec<u8> {
    let mut random = Random::new(number + 7);
    let mut data = Vec::with_capacity(bytes as usize + 8);
    while (data.len() as u64) < bytes {
        data.extend_from_slice(&random.next().to_le_bytes());
    }
    data.truncate(bytes as usize);
    data
}

fn read_all(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64)? {
            0 => break,
            count => got += count,
        }
    }
    Ok(got)
}

fn copy(file: &File, from: u64, to: u64, bytes: u64) -> std::io::Result<u64> {
    let (mut from, mut to) = (from as i64, to as i64);
    let fd = file.as_raw_fd();
    // SAFETY: both offsets live until the call returns.
    let done = unsafe { libc::copy_file_range(fd, &mut from, fd, &mut to, bytes as usize, 0) };
    if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(done as u64) }
}

fn mapped(file: &File, size: u64, act: impl FnOnce(&mut [u8])) -> Result<(), String> {
    let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: a new mapping of `size` bytes; only this function knows it, and no other writes the
    // file meanwhile.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), size as usize, protection, libc::MAP_SHARED, fd, 0);
        if at == libc::MAP_FAILED {
            return Err(format!("mmap: {}", std::io::Error::last_os_error()));
        }
        act(std::slice::from_raw_parts_mut(at.cast(), size as usize));
        libc::msync(at, size as usize, libc::MS_SYNC);
        libc::munmap(at, size as usize);
    }
    Ok(())
}

fn compare(got: &[u8], expected: &[u8], offset: u64) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("got {} bytes at {offset}, expected {}", got.len(), expected.len()));
    }
    match got.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => {
            let wrong = got.iter().zip(expected).filter(|(a, b)| a != b).count();
            let (is, be) = (got[at], expected[at]);
            Err(format!("byte {} is {is:#x}, expected {be:#x}; {wrong} bytes differ", offset + at as u64))
        }
    }
}
