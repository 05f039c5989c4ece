//! The records of the last scans, for `zazen explain`. They are kept as they came, in a message's
//! bytes: decoded, a record takes about six times as much.
//!
//! Invariants: memory is bounded for each user and in all. If a user's records are too many, that
//! user's oldest goes; if all are too many, the oldest of all goes. The kernel says whose a record
//! is. The daemon does not believe what a record says about anybody else.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::scan_record::{KeptRecord, ScanRecord};
use zazen_wire::Message;

/// Bytes kept for one user.
const USER_BYTES_MAX: usize = 2 << 20;
/// Bytes kept for all.
const BYTES_MAX: usize = 16 << 20;
/// Bytes of records in one answer.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// No scan takes longer: nine years, in nanoseconds.
const WALL_NS_MAX: u64 = 1 << 58;
/// How much longer the parts of a scan's time may be than the whole, because clocks are read one
/// after another.
const ROUNDING_NS: u64 = 10_000_000;

/// Refuses a record that no reader writes: it is shown to its user's administrators.
pub fn check(record: &ScanRecord) -> Result<()> {
    let refuse = |text: String| Err(Error::new(ErrorKind::Protocol, format!("a scan's record: {text}")));
    let ScanRecord { dataset, series, node, host, job, .. } = record;
    let texts = [dataset, series, node, host, job].into_iter();
    let mut texts = texts.chain(record.absent.iter().map(|absent| &absent.wanted));
    if let Some(text) = texts.find(|text| text.contains(|c: char| c.is_control())) {
        return refuse(format!("control characters in {text:?}"));
    }
    let spent: u128 = record.spent_ns.iter().map(|ns| u128::from(*ns)).sum();
    let wall = record.wall_ns;
    if wall > WALL_NS_MAX || spent > u128::from(wall + wall / 64 + ROUNDING_NS) {
        return refuse(format!("it spent {spent} ns within {wall} ns"));
    }
    let counts = [record.near_frames, record.far_frames, record.failed_frames].into_iter();
    match counts.chain(record.absent.iter().map(|absent| absent.count)).max() {
        Some(most) if most > FRAME_NO_MAX + 1 => refuse(format!("{most} frames; no dataset has as many")),
        _ => Ok(()),
    }
}

/// What is kept.
#[derive(Default)]
pub struct ScanRecords(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    kept: VecDeque<Kept>,
    bytes: usize,
}

/// A record, and by what it is found.
struct Kept {
    uid: u32,
    dataset: Box<str>,
    series: Box<str>,
    record: Box<[u8]>,
}

impl Kept {
    fn bytes(&self) -> usize {
        size_of::<Kept>() + self.dataset.len() + self.series.len() + self.record.len()
    }
}

impl Inner {
    fn drop_at(&mut self, at: usize) {
        if let Some(kept) = self.kept.remove(at) {
            self.bytes -= kept.bytes();
        }
    }
}

impl ScanRecords {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a record of the user `uid`.
    pub fn keep(&self, uid: u32, record: ScanRecord) {
        let encoded = record.encode().into_boxed_slice();
        let ScanRecord { dataset, series, .. } = record;
        let kept = Kept { uid, dataset: dataset.into(), series: series.into(), record: encoded };
        let bytes = kept.bytes();
        let mut inner = self.inner();
        let own = |inner: &Inner| -> usize {
            inner.kept.iter().filter(|kept| kept.uid == uid).map(Kept::bytes).sum()
        };
        while own(&inner) + bytes > USER_BYTES_MAX {
            let Some(oldest) = inner.kept.iter().position(|kept| kept.uid == uid) else { return };
            inner.drop_at(oldest);
        }
        while inner.bytes + bytes > BYTES_MAX {
            inner.drop_at(0);
        }
        inner.bytes += bytes;
        inner.kept.push_back(kept);
    }

    /// The last records for whose user, dataset and series `is_meant` holds, the latest first.
    pub fn last(&self, is_meant: impl Fn(u32, &str, &str) -> bool) -> Result<Vec<KeptRecord>> {
        let mut left = ANSWER_BYTES_MAX;
        let inner = self.inner();
        let meant = inner.kept.iter().rev().filter(|kept| is_meant(kept.uid, &kept.dataset, &kept.series));
        let fits = meant.take_while(|kept| {
            let fits = kept.bytes() <= left;
            left = left.saturating_sub(kept.bytes());
            fits
        });
        fits.map(|kept| Ok(KeptRecord { uid: kept.uid, record: ScanRecord::decode(&kept.record)? })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::RunSet;
    use zazen_frames::absence::Absence;
    use zazen_frames::scan_record::{Absent, Part};

    fn record(rank: u32, bytes: usize) -> ScanRecord {
        let absent = Absent {
            why: Absence::NeverHere,
            at_ms: 0,
            wanted: "x".repeat(bytes.min(4000)),
            count: 1,
            set: RunSet::range(1, 1),
        };
        ScanRecord {
            dataset: "/d".into(),
            series: "d".into(),
            node: "n0".into(),
            node_id: 1,
            host: "h".into(),
            job: String::new(),
            pid: 1,
            rank,
            ranks: 4,
            assigned: true,
            whole: true,
            began_ms: 5,
            wall_ns: 9,
            spent_ns: vec![1; Part::ALL.len()],
            near_frames: 1,
            near_bytes: 1,
            far_frames: 0,
            far_bytes: 0,
            failed_frames: 0,
            store_rate: 0,
            store_rate_best: 0,
            absent: vec![absent; bytes / 4000],
        }
    }

    #[test]
    fn what_no_reader_writes_is_refused() {
        let good = ScanRecord { wall_ns: 1_000_000_000, ..record(0, 4000) };
        check(&good).unwrap();
        let mut long = good.clone();
        long.spent_ns[2] = 1_200_000_000;
        let mut wanted = good.clone();
        wanted.absent[0].wanted = "/a\x1b[31m".into();
        let mut count = good.clone();
        count.absent[0].count = u64::MAX;
        let endless = ScanRecord { wall_ns: u64::MAX, spent_ns: vec![u64::MAX; 7], ..good.clone() };
        let host = ScanRecord { host: "h\u{9b}2J".into(), ..good.clone() };
        let dataset = ScanRecord { dataset: "/d\nx".into(), ..good };
        for bad in [long, wanted, count, endless, host, dataset] {
            assert_eq!(check(&bad).unwrap_err().kind(), ErrorKind::Protocol);
        }
    }

    #[test]
    fn one_user_does_not_displace_another() {
        let records = ScanRecords::default();
        records.keep(7, record(99, 0));
        for rank in 0..100 {
            records.keep(8, record(rank, 200_000));
        }
        let of = |uid| {
            let found = records.last(|owner, dataset, series| (owner, dataset, series) == (uid, "/d", "d"));
            found.unwrap().into_iter().map(|kept| kept.record.rank)
        };
        assert_eq!(of(7).collect::<Vec<_>>(), [99]);
        let eights: Vec<u32> = of(8).collect();
        assert!(eights.len() < 12 && eights[..2] == [99, 98], "{eights:?}");
    }

    #[test]
    fn memory_is_bounded() {
        let records = ScanRecords::default();
        for uid in 0..2000 {
            records.keep(uid, record(0, 40_000));
        }
        let inner = records.inner();
        assert!(inner.bytes <= BYTES_MAX);
        assert_eq!(inner.bytes, inner.kept.iter().map(Kept::bytes).sum::<usize>());
        assert_eq!(inner.kept.back().map(|kept| kept.uid), Some(1999));
    }

    /// A daemon grew by a megabyte a minute: a record with many reasons, decoded, takes more than
    /// its message.
    #[test]
    fn what_is_counted_is_what_is_kept() {
        let records = ScanRecords::default();
        let reason = |number: u64| Absent {
            why: Absence::Evicted,
            at_ms: number,
            wanted: "/lustre/run/large".into(),
            count: 3,
            set: [number, number + 5, number + 7].into_iter().collect(),
        };
        let many = ScanRecord { absent: (0..44).map(reason).collect(), ..record(3, 0) };
        records.keep(7, many.clone());
        assert_eq!(records.last(|_, _, _| true).unwrap(), [KeptRecord { uid: 7, record: many.clone() }]);
        let inner = records.inner();
        let message = many.encode().len();
        assert!(inner.kept.iter().all(|kept| kept.record.len() == message));
        let decoded: usize = many.absent.iter().map(|one| size_of_val(one) + one.set.heap_bytes()).sum();
        assert!(inner.bytes < message + 256 && decoded > 2 * message, "{decoded} bytes, {message} encoded");
    }
}
