//! A trajectory as a daemon tells it: its files, how many frames each has, what is wrong with it.
//! Where the frames are stays with the daemon.

use crate::codec::{Reader, Writer, clip};
use std::sync::Arc;
use zazen_core::trajectory::{Format, HEADER_BYTES_MAX, Trouble};
use zazen_core::{Result, Trajectory, TrajectoryFile};

/// A file on the wire: record length, path length, two counts, header length, validator, trouble.
const FILE_BYTES_MIN: usize = 4 + 4 + 2 * 8 + 4 + 4 * 8 + 1 + 1;
/// The longest reason that is told.
const WHY_BYTES_MAX: usize = 4096;

impl Writer {
    /// A trajectory, without the places of its frames.
    pub fn trajectory(&mut self, trajectory: &Trajectory) {
        self.text(trajectory.format.name());
        self.u64(trajectory.n_atoms);
        self.bool(trajectory.single);
        self.list(&trajectory.files, |writer, file| {
            writer.record(|writer| {
                writer.rel_path(&file.path);
                writer.u64(file.first);
                writer.u64(file.count);
                writer.blob(&file.header);
                writer.validator(&file.seen);
                writer.bool(file.trouble.is_some());
                if let Some(trouble) = &file.trouble {
                    writer.u64(trouble.offset);
                    writer.bool(trouble.unfinished);
                    writer.text(clip(&trouble.why, WHY_BYTES_MAX));
                }
            });
        });
    }
}

impl Reader<'_> {
    /// A trajectory.
    pub fn trajectory(&mut self) -> Result<Trajectory> {
        let name = self.text(16)?;
        let Some(format) = Format::named(&name) else {
            return Err(self.malformed(format_args!("unknown trajectory format {name}")));
        };
        let (n_atoms, single) = (self.u64()?, self.bool()?);
        let files = self.list(FILE_BYTES_MIN, |reader| {
            reader.record("TrajectoryFile", |reader| {
                let (path, first, count) = (reader.rel_path()?, reader.u64()?, reader.u64()?);
                let header = Arc::from(reader.blob(HEADER_BYTES_MAX)?);
                let seen = reader.validator()?;
                let trouble = match reader.bool()? {
                    false => None,
                    true => {
                        let (offset, unfinished) = (reader.u64()?, reader.bool()?);
                        Some(Trouble { offset, unfinished, why: reader.text(WHY_BYTES_MAX)? })
                    }
                };
                Ok(TrajectoryFile { path, first, count, table: None, header, seen, trouble, samples: None })
            })
        })?;
        Ok(Trajectory { format, n_atoms, single, files })
    }
}
