//! The two ways to read that the rows compare: through the API, and plain reads of the same frames
//! as files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zazen_client::{Dataset, ReadOptions};
use zazen_core::{Error, ErrorKind, Result, RunSet};

/// Reads `set` through the API; every frame is touched. Returns (frames, bytes).
pub(crate) fn read_through(dataset: &mut Dataset, set: &RunSet) -> Result<(u64, u64)> {
    read_with(dataset, set, &ReadOptions::default())
}

/// The same with `options`.
pub(crate) fn read_with(dataset: &mut Dataset, set: &RunSet, options: &ReadOptions) -> Result<(u64, u64)> {
    let (mut frames, mut bytes, mut sum) = (0, 0, 0u64);
    for frame in dataset.frames(set.clone(), options)? {
        let frame = frame?;
        sum = sum.wrapping_add(u64::from(frame.bytes()[0]));
        frames += 1;
        bytes += frame.bytes().len() as u64;
    }
    std::hint::black_box(sum);
    if frames != set.len() {
        return Err(Error::new(ErrorKind::Io, format!("read {frames} of {} frames", set.len())));
    }
    Ok((frames, bytes))
}

/// Reads whole files one after another into one buffer, on each of `threads` threads.
pub(crate) fn read_plain(files: &[PathBuf], threads: usize) -> Result<()> {
    let share = files.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = files
            .chunks(share.max(1))
            .map(|part| {
                scope.spawn(move || -> Result<()> {
                    let mut buffer = Vec::new();
                    for path in part {
                        read_one(path, &mut buffer)?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| Error::new(ErrorKind::Io, "a plain reader panicked"))?
        })
    })
}

fn read_one(path: &Path, buffer: &mut Vec<u8>) -> Result<()> {
    let fail = |error| Error::io(format!("read {}", path.display()), error);
    let file = File::open(path).map_err(fail)?;
    let length = file.metadata().map_err(fail)?.len() as usize;
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    file.read_exact_at(&mut buffer[..length], 0).map_err(fail)?;
    std::hint::black_box(buffer[0]);
    Ok(())
}

/// The files of a folder, in name order.
pub(crate) fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| Error::io(format!("list {}", folder.display()), error))?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect();
    files.sort();
    if files.is_empty() {
        // A peer that reads nothing would be infinitely fast.
        return Err(Error::new(ErrorKind::NotFound, format!("no files in {}", folder.display())));
    }
    Ok(files)
}
