//! A frame's number, and what a node knows about a frame.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::FRAME_NO_MAX;
use std::fmt;

/// The number of a frame within its dataset: 0 ..= 2⁴⁰.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNo(u64);

impl FrameNo {
    /// Frame `number`; fails with [`ErrorKind::TooLarge`] beyond 2⁴⁰.
    pub fn new(number: u64) -> Result<FrameNo> {
        if number > FRAME_NO_MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("frame number {number} is beyond the limit of 2^40 ({FRAME_NO_MAX})"),
            ));
        }
        Ok(FrameNo(number))
    }

    /// The number itself.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FrameNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a cached frame came to its node (Zazen paper §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Pushed here by a writer, or loaded here on purpose; meant to be on one node only.
    Native,
    /// Brought here by a read miss.
    Alien,
}

/// What a source looked like when it was copied. If the source looks different now, the copy is
/// stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validator {
    /// Size of the source file in bytes. If the frame is a piece, this is the size of the whole
    /// file.
    pub size: u64,
    /// Modification time of the source in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Time of the source's last change of any kind (ctime), in nanoseconds since the epoch; 0: not
    /// known. Programs can set the modification time, but not this time.
    pub ctime_ns: i64,
    /// The source's inode; 0: not known (a file system without lasting inode numbers).
    pub inode: u64,
    /// When the source was looked at, it was younger than one tick of its file system's clock. It
    /// may have changed since then without looking different, so no source agrees with such a copy.
    pub unsettled: bool,
}

/// On a file system that stores nanoseconds, two changes within this time may leave the same time:
/// the kernel stamps files with the time of its last tick.
pub const TICK_NS: i64 = 20_000_000;
/// The same for a file system that stores whole seconds, or pairs of seconds.
pub const COARSE_TICK_NS: i64 = 2_000_000_000;

impl Validator {
    /// The validator of a source with these times. `now_ns` is this machine's clock, read before
    /// the source was looked at.
    pub fn seen(size: u64, mtime_ns: i64, ctime_ns: i64, inode: u64, now_ns: i64) -> Validator {
        let whole = |time: i64| time.rem_euclid(1_000_000_000) == 0;
        let tick_ns = if whole(mtime_ns) && whole(ctime_ns) { COARSE_TICK_NS } else { TICK_NS };
        let unsettled = mtime_ns.max(ctime_ns) > now_ns.saturating_sub(tick_ns);
        Validator { size, mtime_ns, ctime_ns, inode, unsettled }
    }

    /// Whether a copy with this validator is a copy of the source that looks like `now`. A field
    /// that only one of them knows is not compared.
    pub fn agrees_with(&self, now: &Validator) -> bool {
        let alike = |one: u64, other: u64| one == other || one == 0 || other == 0;
        !self.unsettled
            && (self.size, self.mtime_ns) == (now.size, now.mtime_ns)
            && alike(self.ctime_ns as u64, now.ctime_ns as u64)
            && alike(self.inode, now.inode)
    }

    /// As [`Validator::agrees_with`], for two looks at one source. Here `unsettled` does not count.
    pub fn looks_like(&self, other: &Validator) -> bool {
        Validator { unsettled: false, ..*self }.agrees_with(other)
    }

    /// The same validator as settled: the writer says that the file is complete.
    pub fn settled(self) -> Validator {
        Validator { unsettled: false, ..self }
    }
}

/// What a node knows about a frame that it holds or is about to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameMeta {
    /// The frame's number.
    pub number: FrameNo,
    /// Its length in bytes.
    pub length: u64,
    /// CRC-64/NVME of its bytes.
    pub checksum: u64,
    /// What its source looked like. `None` if the writer gave no validator; then the node records
    /// what the source looks like when the frame is first read.
    pub validator: Option<Validator>,
    /// Owner of the source.
    pub uid: u32,
    /// Group of the source.
    pub gid: u32,
    /// Permission bits of the source (0o7777).
    pub mode: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validators_compare_what_both_know() {
        let good = Validator { size: 9, mtime_ns: 7, ctime_ns: 8, inode: 3, unsettled: false };
        let check = |now: Validator, expected| {
            assert_eq!(good.agrees_with(&now), expected, "{now:?}");
            assert_eq!(now.agrees_with(&good), expected && !now.unsettled, "{now:?}");
        };
        check(good, true);
        check(Validator { size: 8, ..good }, false);
        check(Validator { mtime_ns: 6, ..good }, false);
        check(Validator { ctime_ns: 9, ..good }, false);
        check(Validator { inode: 4, ..good }, false);
        check(Validator { ctime_ns: 0, inode: 0, ..good }, true);
        // A source that is young now was not younger when it was copied.
        check(Validator { unsettled: true, ..good }, true);
        assert!(Validator { unsettled: true, ..good }.looks_like(&good));
    }

    #[test]
    fn young_sources_are_not_settled() {
        fn check(mtime_ns: i64, ctime_ns: i64, age_ns: i64, expected: bool) {
            let seen = Validator::seen(1, mtime_ns, ctime_ns, 1, mtime_ns.max(ctime_ns) + age_ns);
            assert_eq!(seen.unsettled, expected, "{mtime_ns} {ctime_ns} {age_ns}");
        }
        let second = 1_000_000_000;
        check(5 * second + 1, 5 * second + 1, TICK_NS, false);
        check(5 * second + 1, 5 * second + 1, TICK_NS - 1, true);
        check(5 * second, 5 * second, TICK_NS, true);
        check(5 * second, 5 * second, COARSE_TICK_NS, false);
        check(5 * second, 5 * second, COARSE_TICK_NS - 1, true);
        // `cp -p` or a user set the modification time. The change time still shows how fine the
        // clock is and how young the file is.
        check(5 * second, 9 * second + 1, TICK_NS, false);
        check(second, 9 * second + 1, TICK_NS - 1, true);
        check(5 * second + 1, 5 * second + 1, -second, true);
        assert!(!Validator::seen(1, i64::MIN, i64::MIN, 0, 0).unsettled);
    }
}
