//! One file in blocks of equal size: how byte ranges of any file become frames.
//!
//! A pattern `FILE{n*1048576}` means the file's blocks of 1 MiB: block i is the bytes from
//! i · 1048576 on, the last one may be shorter. All files of a directory share one series in the
//! cache, so block 0 of a file has a number that follows from the file's name
//! ([`Blocks::first`]). If two files' numbers overlap, their blocks take each other's place in the
//! cache: that costs time. A copy still counts only for the file and the bytes that it came from.
//!
//! Invariant: a value of this type describes one version of its file. Bytes of another version are
//! an error for whoever opened this one ([`Blocks::check_version`]).

use crate::error::{Error, ErrorKind, Result};
use crate::fnv::spread_64;
use crate::frame::{FrameNo, Validator};
use crate::limits::check_frame_bytes;
use crate::path::RelPath;
use crate::runset::RunSet;
use crate::source::Source;

/// The smallest block.
const BLOCK_BYTES_MIN: u64 = 4096;
/// The largest block.
const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// The most blocks of one file. With them, numbers stay within the limit for frame numbers.
const BLOCKS_MAX: u64 = 1 << 39;

/// One version of a file in blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The file, relative to the dataset.
    pub path: RelPath,
    /// Bytes of each block but the last.
    pub block_bytes: u64,
    /// What the file looked like when it was opened.
    pub version: Validator,
}

impl Blocks {
    /// The file and the block size that a pattern like `field.h5{n*1048576}` names; `None` if it is
    /// a pattern of another kind.
    ///
    /// Fails with `InvalidArgument` if the block size or the file's path is invalid.
    pub fn parse_pattern(pattern: &str) -> Option<Result<(RelPath, u64)>> {
        let (path, size) = pattern.strip_suffix('}')?.rsplit_once("{n*")?;
        let parsed = || {
            let refuse =
                |why: &str| Error::new(ErrorKind::InvalidArgument, format!("pattern {pattern:?}: {why}"));
            let path = RelPath::new(path).map_err(|error| refuse(error.context()))?;
            if path.is_root() {
                return Err(refuse("names no file before {n*BYTES}"));
            }
            let block_bytes = size.parse().map_err(|_| refuse("the block size is not a number of bytes"))?;
            check_block_bytes(block_bytes).map_err(|error| refuse(error.context()))?;
            Ok((path, block_bytes))
        };
        Some(parsed())
    }

    /// The pattern that opens these blocks.
    pub fn pattern(&self) -> String {
        format!("{}{{n*{}}}", self.path, self.block_bytes)
    }

    /// The number of block 0. It follows from the file's path alone, so it stays when the file
    /// grows, and all nodes agree.
    pub fn first(&self) -> u64 {
        spread_64(self.path.as_str().as_bytes()) & (BLOCKS_MAX - 1)
    }

    /// How many blocks the file has.
    pub fn count(&self) -> u64 {
        self.version.size.div_ceil(self.block_bytes.max(1))
    }

    /// The bytes that block `number` is, if the file has this block.
    pub fn source(&self, number: FrameNo) -> Option<Source> {
        let index = number.get().checked_sub(self.first()).filter(|index| *index < self.count())?;
        let offset = index.checked_mul(self.block_bytes)?;
        let length = self.block_bytes.min(self.version.size.checked_sub(offset)?);
        Some(Source { path: self.path.clone(), offset, length: Some(length) })
    }

    /// The numbers of all blocks.
    pub fn extent(&self) -> RunSet {
        match self.count() {
            0 => RunSet::new(),
            count => RunSet::range(self.first(), self.first() + count - 1),
        }
    }

    /// Fails unless all limits hold.
    pub fn validate(&self) -> Result<()> {
        check_block_bytes(self.block_bytes)?;
        let refuse = |kind, why: &str| Err(Error::new(kind, format!("blocks of {}: {why}", self.path)));
        if self.path.is_root() {
            return refuse(ErrorKind::InvalidArgument, "no file is named");
        }
        if self.count() > BLOCKS_MAX || i64::try_from(self.version.size).is_err() {
            return refuse(ErrorKind::TooLarge, "the file is too large; give larger blocks");
        }
        Ok(())
    }

    /// Fails with `Stale` unless a file or a copy that looks like `found` is of this version.
    pub fn check_version(&self, found: &Validator) -> Result<()> {
        if self.version.looks_like(found) {
            return Ok(());
        }
        let (path, was, now) = (&self.path, self.version.size, found.size);
        Err(Error::new(
            ErrorKind::Stale,
            format!(
                "{path} was changed or replaced after it was opened ({was} bytes then, {now} now); \
                 open it again"
            ),
        ))
    }
}

fn check_block_bytes(block_bytes: u64) -> Result<()> {
    check_frame_bytes(block_bytes)?;
    match (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("a block of {block_bytes} bytes; give {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use proptest::prelude::*;

    fn blocks(path: &str, block_bytes: u64, size: u64) -> Blocks {
        let version = Validator { size, mtime_ns: 5, ctime_ns: 6, inode: 7, unsettled: false };
        Blocks { path: RelPath::new(path).unwrap(), block_bytes, version }
    }

    #[test]
    fn patterns_of_blocks() {
        fn check(pattern: &str, expected: Option<Option<(&str, u64)>>) {
            let found = Blocks::parse_pattern(pattern).map(|parsed| parsed.ok());
            let expected =
                expected.map(|inner| inner.map(|(path, size)| (RelPath::new(path).unwrap(), size)));
            assert_eq!(found, expected, "{pattern}");
        }
        check("field.h5{n*1048576}", Some(Some(("field.h5", 1 << 20))));
        check("a/b {x}.h5{n*4096}", Some(Some(("a/b {x}.h5", 4096))));
        check("c/0/0{n*1073741824}", Some(Some(("c/0/0", 1 << 30))));
        for wrong in
            ["x{n*4095}", "x{n*1073741825}", "x{n*}", "x{n*-1}", "{n*4096}", "../x{n*4096}", "x{n*1e6}"]
        {
            check(wrong, Some(None));
        }
        for other in ["frame-{n}.dcd", "f{n:07}", "x", "x{n*4096}y"] {
            check(other, None);
        }
    }

    #[test]
    fn a_number_stays_when_the_file_grows() {
        let (small, grown) = (blocks("f", 4096, 5000), blocks("f", 4096, 50_000));
        assert_eq!(small.first(), grown.first());
        assert_ne!(small.first(), blocks("g", 4096, 5000).first());
        assert_eq!(blocks("f", 4096, 0).extent(), RunSet::new());
    }

    /// Files that are numbered have numbers of blocks far apart, though their names are alike.
    #[test]
    fn names_that_are_alike_do_not_overlap() {
        let names = (0..2000).map(|file| format!("run-{file}.h5"));
        let mut firsts: Vec<u64> = names.map(|name| blocks(&name, 4096, 1).first()).collect();
        firsts.sort_unstable();
        let near = firsts.windows(2).filter(|pair| pair[1] - pair[0] < 10_000).count();
        // By chance: 2000 · 2000 / 2 pairs · 2 · 10⁴ / 2³⁹ = 0.07.
        assert!(near <= 1, "{near} pairs of files overlap");
    }

    #[test]
    fn another_version_is_stale() {
        let opened = blocks("f", 4096, 5000);
        let same = Validator { unsettled: true, ..opened.version };
        opened.check_version(&same).unwrap();
        for other in [
            Validator { size: 5001, ..same },
            Validator { mtime_ns: 4, ..same },
            Validator { ctime_ns: 7, ..same },
            Validator { inode: 8, ..same },
        ] {
            let error = opened.check_version(&other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Stale);
            assert!(error.to_string().contains("f was changed or replaced"), "{error}");
        }
    }

    proptest! {
        /// The blocks cover the file, each byte once, in order.
        #[test]
        fn blocks_cover_the_file(size in 0u64..3_000_000, block_bytes in 4096u64..300_000) {
            let blocks = blocks("a/b", block_bytes, size);
            blocks.validate().unwrap();
            let layout = Layout::Blocks(blocks.clone());
            let mut end = 0;
            for number in blocks.extent().iter() {
                let source = layout.source(FrameNo::new(number).unwrap()).unwrap();
                prop_assert_eq!(source.offset, end);
                let length = source.length.unwrap();
                prop_assert!(length > 0 && length <= block_bytes);
                end += length;
            }
            prop_assert_eq!(end, size);
            for beyond in [blocks.first().checked_sub(1), Some(blocks.first() + blocks.count())] {
                let number = beyond.and_then(|number| FrameNo::new(number).ok());
                prop_assert_eq!(number.and_then(|number| blocks.source(number)), None);
            }
        }
    }
}
