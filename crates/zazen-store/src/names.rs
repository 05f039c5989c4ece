//! The names file of a dataset: sources that no template describes, end to end, named by their
//! offset.

use crate::open_files::{KeptFile, OpenFiles};
use crate::own_file::{HeadedFile, create_headed, open_headed};
use crate::record::{FileKind, NameEntry};
use std::sync::Arc;
use zazen_core::{RelPath, Result, Source};
use zazen_env::{Disk, DiskFile, DiskPath};

/// Bytes read at once: some hundred entries, which mostly are wanted in a row.
const WINDOW_BYTES: usize = 64 << 10;

/// The file and its length; shared by readers as it is.
pub(crate) struct Names<F> {
    file: Option<Arc<KeptFile<F>>>,
    id: u128,
    len: u64,
}

impl<F> Clone for Names<F> {
    fn clone(&self) -> Names<F> {
        Names { file: self.file.clone(), id: self.id, len: self.len }
    }
}

impl<F: DiskFile> Names<F> {
    pub(crate) fn empty() -> Names<F> {
        Names { file: None, id: 0, len: 0 }
    }

    pub(crate) fn open<D: Disk<File = F>>(
        disk: &D,
        files: &Arc<OpenFiles<F>>,
        path: &DiskPath,
    ) -> Result<Names<F>> {
        Ok(open_headed(disk, files, path, FileKind::Names)?.map_or_else(Names::empty, Names::of))
    }

    fn of(headed: HeadedFile<F>) -> Names<F> {
        Names { file: Some(headed.file), id: headed.id, len: headed.len }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.len
    }

    /// Writes `source` behind the last entry and returns the names file as it is then, and the
    /// entry's offset.
    pub(crate) fn append<D: Disk<File = F>>(
        &self,
        disk: &D,
        files: &Arc<OpenFiles<F>>,
        path: &DiskPath,
        folder: &DiskPath,
        source: &Source,
    ) -> Result<(Names<F>, u64)> {
        let mut names = self.clone();
        if names.file.is_none() {
            names = Names::of(create_headed(disk, files, path, folder, FileKind::Names)?);
        }
        let entry =
            NameEntry { path: source.path.as_str().to_owned(), offset: source.offset, length: source.length };
        let encoded = entry.encode(names.id);
        let offset = names.len;
        if let Some(file) = &names.file {
            file.file()?.write_all_at(&encoded, offset)?;
        }
        names.len += encoded.len() as u64;
        Ok((names, offset))
    }

    /// Keeps the file open for its readers: it is about to be removed.
    pub(crate) fn pin(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), KeptFile::pin)
    }

    pub(crate) fn reader(&self) -> NamesReader<F> {
        NamesReader { names: self.clone(), window: Vec::new(), start: 0 }
    }
}

/// Reads entries, a window at a time.
pub(crate) struct NamesReader<F> {
    names: Names<F>,
    window: Vec<u8>,
    start: u64,
}

impl<F: DiskFile> NamesReader<F> {
    /// The source at `offset`; `None` if there is no good entry.
    pub(crate) fn read(&mut self, offset: u64) -> Result<Option<Source>> {
        let longest = NameEntry::encoded_bytes(zazen_core::limits::PATH_BYTES_MAX) as u64;
        let end = (offset + longest).min(self.names.len);
        if offset < self.start || end > self.start + self.window.len() as u64 {
            let Some(file) = &self.names.file else { return Ok(None) };
            self.window.resize(WINDOW_BYTES, 0);
            let count = file.file()?.read_full_at(&mut self.window, offset)?;
            self.window.truncate(count);
            self.start = offset;
        }
        let Some(bytes) = self.window.get((offset - self.start) as usize..) else { return Ok(None) };
        let Some(entry) = NameEntry::decode(bytes, self.names.id) else { return Ok(None) };
        Ok(RelPath::new(&entry.path).ok().map(|path| Source {
            path,
            offset: entry.offset,
            length: entry.length,
        }))
    }
}
