//! Files that Zazen keeps beside the frames: binary ones with a header, and small texts that are
//! replaced whole.

use crate::open_files::{KeptFile, OpenFiles};
use crate::record::{FILE_HEADER_BYTES, FileHeader, FileKind};
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, RelPath, Result};
use zazen_env::{Disk, DiskFile, DiskPath};
use zazen_wire::checksum::crc32c;

/// The store's folder of unfinished files; emptied at every open.
pub(crate) fn temporary_dir() -> DiskPath {
    DiskPath::own(&RelPath::default(), "tmp")
}

/// Number `serial` of the unfinished files.
pub(crate) fn temporary(serial: u64) -> DiskPath {
    temporary_dir().child(&serial.to_string())
}

/// An opened file with a header.
pub(crate) struct HeadedFile<F> {
    pub(crate) file: Arc<KeptFile<F>>,
    pub(crate) id: u128,
    pub(crate) len: u64,
}

/// Makes a file with a header; both are durable before it returns, so that a crash leaves no file
/// that only looks like somebody else's.
pub(crate) fn create_headed<D: Disk>(
    disk: &D,
    files: &Arc<OpenFiles<D::File>>,
    path: &DiskPath,
    folder: &DiskPath,
    kind: FileKind,
) -> Result<HeadedFile<D::File>> {
    let header = FileHeader { kind, id: files.new_id()? };
    let file = disk.open_append(path)?;
    file.truncate(0)?;
    file.write_all_at(&header.encode(), 0)?;
    file.sync()?;
    disk.sync_dir(folder)?;
    let file = files.keep(path.clone(), Some((kind, header.id)), file);
    Ok(HeadedFile { file, id: header.id, len: FILE_HEADER_BYTES as u64 })
}

/// Opens a file with a header; `None` if there is none, or if it is one that never got its header.
pub(crate) fn open_headed<D: Disk>(
    disk: &D,
    files: &Arc<OpenFiles<D::File>>,
    path: &DiskPath,
    kind: FileKind,
) -> Result<Option<HeadedFile<D::File>>> {
    let file = match disk.open(path, true) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut head = [0; FILE_HEADER_BYTES];
    let count = file.read_full_at(&mut head, 0)?;
    if count < head.len() || head.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let header = FileHeader::decode(&head, kind).map_err(|error| error.within(path))?;
    let len = file.len()?;
    let file = files.keep(path.clone(), Some((kind, header.id)), file);
    Ok(Some(HeadedFile { file, id: header.id, len }))
}

/// Renames what can't be read to `PATH.aside-N`, and says so.
pub(crate) fn set_aside<D: Disk>(disk: &D, path: &DiskPath, why: &Error) -> Result<String> {
    for number in 1.. {
        let aside = path.with_suffix(&format!(".aside-{number}"));
        match disk.rename_new(path, &aside) {
            Ok(()) => {
                let text = format!(
                    "{why}; kept as {}, and the cache goes on without it (its frames are fetched again)",
                    disk.root().join(aside.as_str()).display()
                );
                tracing::error!("{text}");
                return Ok(text);
            }
            Err(error) if error.kind() == ErrorKind::Conflict && number < 100 => continue,
            Err(error) => return Err(error),
        }
    }
    Ok(String::new())
}

/// Replaces a text durably: either the old or the new one is there after a crash. Its last line
/// carries a CRC-32C of the others.
pub(crate) fn write_text<D: Disk>(
    disk: &D,
    path: &DiskPath,
    folder: &DiskPath,
    temporary: &DiskPath,
    text: &str,
) -> Result<()> {
    let written = disk.create(temporary).and_then(|file| {
        file.write_all_at(seal(text).as_bytes(), 0)?;
        file.sync()
    });
    let replaced = written.and_then(|()| disk.rename(temporary, path)).and_then(|()| disk.sync_dir(folder));
    if replaced.is_err() {
        let _ = disk.remove(temporary);
    }
    replaced
}

/// The text with a last line that carries the CRC-32C of the others.
pub(crate) fn seal(text: &str) -> String {
    format!("{text}crc {:08x}\n", crc32c(text.as_bytes()))
}

/// Reads a text back; `None` if there is none, `Corrupt` if it isn't what was written.
pub(crate) fn read_text<D: Disk>(disk: &D, path: &DiskPath) -> Result<Option<String>> {
    const BYTES_MAX: u64 = 256 << 20;
    let file = match disk.open(path, false) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut bytes = vec![0; file.len()?.min(BYTES_MAX) as usize];
    let count = file.read_full_at(&mut bytes, 0)?;
    bytes.truncate(count);
    let unsealed = String::from_utf8(bytes).ok().and_then(|mut text| {
        let at = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
        let good = text[at..] == format!("crc {:08x}\n", crc32c(&text.as_bytes()[..at]));
        text.truncate(at);
        good.then_some(text)
    });
    match unsealed {
        Some(text) => Ok(Some(text)),
        None => Err(Error::new(ErrorKind::Corrupt, format!("{path}: its CRC-32C does not match"))),
    }
}

/// What [`write_root_text`] wrote last under `name`, before the store is opened or after; `None` if
/// there is nothing. A damaged copy is made up for by the other; `Corrupt` if both are.
pub fn read_root_text<D: Disk>(disk: &D, name: &str) -> Result<Option<String>> {
    let mut damaged = None;
    for path in copies(name) {
        match read_text(disk, &path) {
            Ok(Some(text)) => {
                if let Some(error) = &damaged {
                    tracing::warn!("{error}; its second copy is good, and replaces it at this start");
                }
                return Ok(Some(text));
            }
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => damaged = Some(error),
            Err(error) => return Err(error),
        }
    }
    damaged.map_or(Ok(None), Err)
}

/// Keeps `text`, which ends with a line's end, under `name` in the root's own folder: twice, sealed
/// by checksums, each copy durably replaced before the next is begun. For the program around a
/// store, which holds the root's lock.
pub fn write_root_text<D: Disk>(disk: &D, name: &str, text: &str) -> Result<()> {
    let root = RelPath::default();
    let unfinished = temporary_dir().child(name);
    // A crash may have left one; it is emptied with its folder at each start, but not before this
    // one.
    ignore_absent(disk.remove(&unfinished))?;
    copies(name)
        .iter()
        .try_for_each(|path| write_text(disk, path, &DiskPath::own_dir(&root), &unfinished, text))
}

fn copies(name: &str) -> [DiskPath; 2] {
    let first = DiskPath::own(&RelPath::default(), name);
    let second = first.with_suffix(".copy");
    [first, second]
}

/// A path as one word of a text file.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '%' | ' ' | '\n' | '\r' | '\t' => quoted.push_str(&format!("%{:02x}", character as u32)),
            _ => quoted.push(character),
        }
    }
    if quoted.is_empty() { "%".to_owned() } else { quoted }
}

/// The path that [`quote`] made a word of; `None` for a word that it does not make.
pub(crate) fn unquote(word: &str) -> Option<String> {
    if word == "%" {
        return Some(String::new());
    }
    let mut parts = word.split('%');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = (part.get(..2)?, part.get(2..)?);
        text.push(char::from(u8::from_str_radix(code, 16).ok()?));
        text.push_str(rest);
    }
    Some(text)
}

/// Removing or renaming what is not there is no error.
pub(crate) fn ignore_absent(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zazen_env::SimDisk;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
        #[test]
        fn quoting_round_trips(text in "[a-z% \n\té/]{0,20}") {
            let word = quote(&text);
            prop_assert!(!word.is_empty() && !word.contains([' ', '\n', '\t']));
            prop_assert_eq!(unquote(&word), Some(text));
        }
    }

    #[test]
    fn a_text_is_the_old_or_the_new_one_after_any_crash() {
        let folder = DiskPath::own_dir(&RelPath::default());
        let path = folder.child("text");
        for step in 1..12 {
            for seed in 0..20 {
                let disk = SimDisk::new(seed, 1 << 20);
                write_text(&disk, &path, &folder, &temporary(1), "old\n").unwrap();
                disk.crash_at(disk.steps() + step);
                let ended = write_text(&disk, &path, &folder, &temporary(2), "new\n").is_ok();
                let found = read_text(&disk.power_fail(), &path).unwrap().unwrap();
                assert!(
                    found == "new\n" || found == "old\n" && !ended,
                    "step {step}, seed {seed}: {found:?}"
                );
            }
        }
    }
}
