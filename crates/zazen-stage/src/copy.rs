//! Copies one file.

use crate::scan::part_of;
use crate::side::{Kind, Meta, OpenFile, Side, WholeFiles};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use zazen_wire::checksum::FrameDigest;

/// Bytes that are read and written at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// It was copied.
    Now,
    /// It was there already.
    Before,
    /// Another process copies it.
    Elsewhere,
    /// The run was stopped.
    Stopped,
}

/// How to copy.
pub(crate) struct Way<'a> {
    pub(crate) from: &'a dyn Side,
    pub(crate) to: &'a dyn Side,
    /// Compare bytes where length and time are equal.
    pub(crate) compare: bool,
    /// Read what was written, and compare its checksum.
    pub(crate) verify: bool,
    /// Called with bytes that are done; whether to stop.
    pub(crate) progress: &'a (dyn Fn(u64) -> bool + Sync),
}

/// Whether the file at the destination is the source, as far as length and time say.
pub(crate) fn is_same(source: &Meta, target: &Meta) -> bool {
    source.kind == target.kind && source.bytes == target.bytes && source.modified_ns == target.modified_ns
}

fn changed() -> Error {
    Error::other("the source changed while it was copied; run the command again when nobody writes it")
}

fn replaced() -> Error {
    Error::other(
        "somebody else replaced the file while it was written; see who writes at the destination, and \
         run the command again",
    )
}

impl Way<'_> {
    /// Copies the file `source`, which looked as `meta` when it was listed, to `target`.
    pub(crate) fn copy(&self, source: &Path, target: &Path, meta: &Meta) -> Result<Copied> {
        let there = self.to.meta(target)?;
        if there.as_ref().is_some_and(|there| there.kind == Kind::Directory) {
            return Err(Error::from_raw_os_error(libc::EISDIR));
        }
        if there.is_some_and(|there| is_same(meta, &there))
            && (!self.compare || self.equal(source, target, meta)?)
        {
            (self.progress)(meta.bytes);
            return Ok(Copied::Before);
        }
        let from = self.from.open(source)?;
        if from.identity()? != meta.identity {
            return Err(changed());
        }
        if let Some(whole) = self.to.whole_files() {
            return self.send(whole, &*from, source, target, meta);
        }
        let part = part_of(target);
        let Some(mut file) = self.to.open_part(&part, meta.uid)? else { return Ok(Copied::Elsewhere) };
        // Whoever had the lock before may have finished the file meanwhile.
        if !self.is_at(&*file, &part)? {
            return Ok(Copied::Elsewhere);
        }
        let Some(sum) = self.fill(&*from, &*file, meta)? else { return Ok(Copied::Stopped) };
        self.check_unchanged(source, meta)?;
        self.to_be_sure(&*file, meta, sum, &part)?;
        for (name, value) in from.xattrs()? {
            file.set_xattr(&name, &value)?;
        }
        // What was written must not change the time after it was set.
        file.end_writing()?;
        file.set_meta(meta)?;
        if !self.is_at(&*file, &part)? {
            return Err(replaced());
        }
        self.to.rename(&part, target)?;
        if !self.is_at(&*file, target)? {
            return Err(replaced());
        }
        Ok(Copied::Now)
    }

    /// Copies a file to where it goes as a whole.
    fn send(
        &self,
        whole: &dyn WholeFiles,
        from: &dyn OpenFile,
        source: &Path,
        target: &Path,
        meta: &Meta,
    ) -> Result<Copied> {
        let mut file = whole.begin(target, meta.bytes, meta.modified_ns)?;
        let mut digest = FrameDigest::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < meta.bytes {
            let wanted = CHUNK_BYTES.min(usize::try_from(meta.bytes - at).unwrap_or(CHUNK_BYTES));
            if from.read_at(&mut chunk[..wanted], at)? < wanted {
                return Err(changed());
            }
            digest.update(&chunk[..wanted]);
            file.add(&chunk[..wanted])?;
            at += wanted as u64;
            if (self.progress)(wanted as u64) {
                return Ok(Copied::Stopped);
            }
        }
        self.check_unchanged(source, meta)?;
        file.finish()?;
        let sum = digest.finish();
        let is_right = |there: &Meta| is_same(meta, there);
        if !self.to.meta(target)?.as_ref().is_some_and(is_right) {
            return Err(replaced());
        }
        if self.verify && digest_of(&*self.to.open(target)?, meta.bytes)? != Some(sum) {
            let why = "the object does not have the bytes that were sent; see who else writes there, and \
                       run the command with --compare";
            return Err(Error::new(ErrorKind::InvalidData, why));
        }
        Ok(Copied::Now)
    }

    /// The source must be what it was when it was listed.
    fn check_unchanged(&self, source: &Path, meta: &Meta) -> Result<()> {
        let now = self.from.meta(source)?;
        let same = now.is_some_and(|now| {
            is_same(meta, &now) && now.changed_ns == meta.changed_ns && now.identity == meta.identity
        });
        if same { Ok(()) } else { Err(changed()) }
    }

    /// Whether `path` at the destination names the open file.
    fn is_at(&self, file: &dyn OpenFile, path: &Path) -> Result<bool> {
        let identity = file.identity()?;
        Ok(self.to.meta(path)?.is_some_and(|there| there.identity == identity))
    }

    /// Fills the part; the checksum of the source's bytes. `None` if the run was stopped.
    fn fill(&self, from: &dyn OpenFile, part: &dyn OpenFile, meta: &Meta) -> Result<Option<u64>> {
        let before = part.length()?;
        if before > meta.bytes {
            part.set_length(meta.bytes)?;
        }
        let mut digest = FrameDigest::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut there = Vec::new();
        let mut at = 0;
        let mut data = from.data_from(0, meta.bytes)?;
        while at < meta.bytes {
            let wanted = CHUNK_BYTES.min(usize::try_from(meta.bytes - at).unwrap_or(CHUNK_BYTES));
            let end = at + wanted as u64;
            while data.is_some_and(|(_, stop)| stop <= at) {
                data = from.data_from(at, meta.bytes)?;
            }
            let has_data = data.is_some_and(|(start, _)| start < end);
            if has_data {
                if from.read_at(&mut chunk[..wanted], at)? < wanted {
                    return Err(changed());
                }
            } else {
                chunk[..wanted].fill(0);
            }
            digest.update(&chunk[..wanted]);
            let old = usize::try_from(before.saturating_sub(at)).unwrap_or(wanted).min(wanted);
            there.resize(old, 0);
            // A part of an earlier run keeps what is right in it.
            let right = part.read_at(&mut there, at)? == old && there == chunk[..old];
            if !right {
                self.write(from, part, &chunk[..wanted], at, false)?;
            } else if old < wanted && has_data {
                self.write(from, part, &chunk[old..wanted], at + old as u64, true)?;
            }
            at = end;
            if (self.progress)(wanted as u64) {
                return Ok(None);
            }
        }
        part.set_length(meta.bytes)?;
        Ok(Some(digest.finish()))
    }

    /// Writes a chunk. `sparse`: the part has nothing there, so holes of the source stay holes.
    fn write(
        &self,
        from: &dyn OpenFile,
        part: &dyn OpenFile,
        bytes: &[u8],
        offset: u64,
        sparse: bool,
    ) -> Result<()> {
        if !sparse {
            return part.write_all_at(bytes, offset);
        }
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while let Some((start, stop)) = from.data_from(at, end)? {
            let (start, stop) = (start.max(at), stop.min(end));
            part.write_all_at(&bytes[(start - offset) as usize..(stop - offset) as usize], start)?;
            at = stop;
        }
        Ok(())
    }

    /// Reads what was written.
    fn to_be_sure(&self, part: &dyn OpenFile, meta: &Meta, sum: u64, path: &Path) -> Result<()> {
        if part.length()? != meta.bytes || (self.verify && digest_of(part, meta.bytes)? != Some(sum)) {
            self.to.remove(path)?;
            return Err(Error::new(
                ErrorKind::InvalidData,
                "what was written does not come back the same; look at the disk of the destination",
            ));
        }
        Ok(())
    }

    fn equal(&self, source: &Path, target: &Path, meta: &Meta) -> Result<bool> {
        let from = digest_of(&*self.from.open(source)?, meta.bytes)?;
        Ok(from.is_some() && from == digest_of(&*self.to.open(target)?, meta.bytes)?)
    }
}

/// The checksum of the first `length` bytes; `None` if there are fewer.
fn digest_of(file: &dyn OpenFile, length: u64) -> Result<Option<u64>> {
    let mut digest = FrameDigest::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < length {
        let wanted = CHUNK_BYTES.min(usize::try_from(length - at).unwrap_or(CHUNK_BYTES));
        if file.read_at(&mut chunk[..wanted], at)? < wanted {
            return Ok(None);
        }
        digest.update(&chunk[..wanted]);
        at += wanted as u64;
    }
    Ok(Some(digest.finish()))
}
