use super::*;
use crate::cluster::Cluster;
use crate::daemon::Discipline;
use crate::network::Fidelity;
use crate::work::Work;
use std::ops::ControlFlow;

fn job(nodes: u32, plan: Names) -> Job {
    Job {
        name: "names".to_owned(),
        nodes,
        ranks_per_node: 1,
        network: "torus".to_owned(),
        fidelity: Fidelity::Path,
        seed: 3,
        cluster: Cluster::commodity(),
        work: Work::Names(plan),
    }
}

fn outcome(job: &Job) -> Outcome {
    crate::world::run(job, &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
}

fn extra(outcome: &Outcome, name: &str) -> u64 {
    outcome.extra.iter().find(|extra| extra.0 == name).unwrap().1 as u64
}

/// Every file of every rank is an entry of the shipped partitions, and so is each rank's directory.
#[test]
fn every_name_is_there_once() {
    for fidelity in Fidelity::ALL {
        let plan = Names { files: 5, is_shared: false, split_entries: 1 << 14 };
        let mut one = Job { fidelity, ..job(40, plan) };
        if fidelity == Fidelity::Hop {
            one.cluster.daemon.discipline = Discipline::Sharing;
        }
        let found = outcome(&one);
        assert_eq!((extra(&found, "entries"), found.metadata_ops, found.unfinished), (240, 240, 0));
        assert!(extra(&found, "nodes_used") > 10);
    }
}

/// A directory that all share is split by the shipped code, and its buckets lie on several nodes:
/// no name is lost on the way. The buckets are entries of nobody.
#[test]
fn a_shared_directory_is_split() {
    let plan = Names { files: 20, is_shared: true, split_entries: 64 };
    let found = outcome(&job(60, plan.clone()));
    assert_eq!((extra(&found, "entries"), found.metadata_ops), (1200, 1200));
    assert!(extra(&found, "partitions_used") > 8 && extra(&found, "entries_of_the_fullest_partition") < 400);
    let whole = outcome(&job(60, Names { split_entries: u32::MAX, ..plan }));
    assert_eq!(extra(&whole, "partitions_used"), 1);
    assert!(whole.makespan_ps > found.makespan_ps, "one node serves all");
}

/// The decisions follow from job and seed alone.
#[test]
fn decisions_repeat() {
    let one = job(30, Names { files: 8, is_shared: true, split_entries: 50 });
    assert_eq!(extra(&outcome(&one), "decision_hash"), extra(&outcome(&one), "decision_hash"));
    assert_eq!(outcome(&one).trace_hash, outcome(&one).trace_hash);
}

/// What a daemon does when it starts again: it applies the records of its log. The tables that come
/// out are those of the partitions in the engine, bit for bit.
#[test]
fn a_daemons_replay_of_the_records_gives_the_same_tables() {
    let settings =
        Settings { partitions: 16, root_mode: 0o777, split_entries: 1 << 14, ..Settings::default() };
    let mut live = Partition::new(PartitionNo(0), settings.clone());
    let mut replayed = Partition::new(PartitionNo(0), settings);
    let mut actions = Vec::new();
    live.step(0, Input::Resumed { epoch: Epoch(1) }, &mut actions);
    for number in 1..200_u64 {
        let create = Create::file(InodeId::ROOT, name(format!("file{}", number % 150)).unwrap());
        let request = Request {
            client: 1,
            number,
            oldest: number,
            node: NodeNo(1),
            incarnation: Incarnation(1),
            epoch: Epoch(1),
            credentials: Credentials { uid: 1000, gid: 1000, groups: Vec::new() },
            operation: Operation::Create(create),
            place: None,
            knows_chunks: Some(true),
        };
        live.step(number as i64, Input::Request { token: number, request }, &mut actions);
    }
    for action in &actions {
        if let Action::Log(record) = action {
            replayed.apply(record).unwrap();
        }
    }
    assert_eq!((live.digest(), live.entries()), (replayed.digest(), 150));
}
