//! Which records belong to one job.

use zazen_frames::scan_record::ScanRecord;

/// Ranks of one job begin within this time of each other, or read at the same time.
const TOGETHER_MS: u64 = 5_000;

/// The scans of `records` by job, the latest job first; within a job by rank.
///
/// Records belong together if they tell the same number of ranks and the same batch job, each rank
/// once, and their times overlap or begin close together.
pub fn jobs(mut records: Vec<ScanRecord>) -> Vec<Vec<ScanRecord>> {
    records.sort_by_key(|record| std::cmp::Reverse((record.began_ms, record.rank)));
    let mut jobs: Vec<Vec<ScanRecord>> = Vec::new();
    for record in records {
        let home = jobs.iter_mut().find(|job| belongs(job, &record));
        match home {
            Some(job) => job.push(record),
            None => jobs.push(vec![record]),
        }
    }
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
