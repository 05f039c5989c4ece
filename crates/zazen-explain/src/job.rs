//! Which records belong to one job.

use zazen_frames::scan_record::{KeptRecord, ScanRecord};

/// Ranks of one job begin within this time of each other, or read at the same time.
const TOGETHER_MS: u64 = 5_000;

/// The scans of `records` by job, the latest job first; within a job by rank.
///
/// Records belong together if they are of one user, tell the same number of ranks and the same
/// batch job, each rank once, and their times overlap or begin close together. Whose a record is
/// the kernel told, so no user can put a rank into the job of another.
pub fn jobs(mut records: Vec<KeptRecord>) -> Vec<Vec<ScanRecord>> {
    records.sort_by_key(|kept| std::cmp::Reverse((kept.record.began_ms, kept.record.rank)));
    let mut jobs: Vec<(u32, Vec<ScanRecord>)> = Vec::new();
    for KeptRecord { uid, record } in records {
        let home = jobs.iter_mut().find(|(owner, job)| *owner == uid && belongs(job, &record));
        match home {
            Some((_, job)) => job.push(record),
            None => jobs.push((uid, vec![record])),
        }
    }
    let mut jobs: Vec<_> = jobs.into_iter().map(|(_, job)| job).collect();
    jobs.iter_mut().for_each(|job| job.sort_by_key(|record| record.rank));
    jobs.sort_by_key(|job| std::cmp::Reverse(job.iter().map(|record| record.began_ms).max()));
    jobs
}

fn belongs(job: &[ScanRecord], record: &ScanRecord) -> bool {
    let alike = |other: &ScanRecord| {
        (other.ranks, &other.job, other.assigned) == (record.ranks, &record.job, record.assigned)
    };
    let end = |record: &ScanRecord| record.began_ms.saturating_add(record.wall_ns / 1_000_000);
    let meets = |other: &ScanRecord| {
        other.began_ms.abs_diff(record.began_ms) <= TOGETHER_MS
            || (record.began_ms <= end(other) && other.began_ms <= end(record))
    };
    record.ranks > 1
        && job.iter().all(|other| alike(other) && other.rank != record.rank)
        && job.iter().any(meets)
}
