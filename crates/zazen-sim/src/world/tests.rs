//! Whole runs against closed forms, and laws that every run keeps to.

use super::*;
use crate::daemon::Discipline;
use crate::program::Program;
use crate::time::{SECOND_PS, seconds};
use crate::workloads;
use std::ops::ControlFlow;

/// A cluster in which only what a test sets takes time.
fn bare() -> Cluster {
    let mut cluster = Cluster::commodity();
    cluster.disk.node_deviation = 0.0;
    cluster.disk.request_sigma = 0.0;
    cluster.disk.slow_fraction = 0.0;
    cluster.disk.dirty_bytes_max = 0;
    cluster.disk.latency_us = 0.0;
    cluster.disk.write_bytes_per_s = 100e6;
    cluster.disk.read_bytes_per_s = 200e6;
    cluster.fuse.request_us = 0.0;
    cluster
}

/// The program of a workload.
fn named(name: &str, nodes: u32) -> Program {
    match (workloads::named(name).unwrap().work)(nodes) {
        Work::Program(program) => program,
        other => panic!("{other:?}"),
    }
}

fn job(nodes: u32, program: Program) -> Job {
    Job {
        name: "test".to_owned(),
        nodes,
        ranks_per_node: 1,
        network: "torus".to_owned(),
        fidelity: Fidelity::Path,
        seed: 1,
        cluster: bare(),
        work: Work::Program(program),
    }
}

fn outcome(job: &Job) -> Outcome {
    run(job, &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
}

#[test]
fn local_writes_take_bytes_over_bandwidth() {
    let program =
        Program::new().repeat(3, 0, |program| program.then("write", Op::Write(100_000_000, At::Local)));
    let mut job = job(27, program);
    let found = outcome(&job);
    assert!(found.makespan_ps.abs_diff(3 * SECOND_PS) < 1_000);
    assert_eq!((found.bytes, found.messages, found.unfinished), (27 * 300_000_000, 0, 0));
    assert!((found.efficiency() - 1.0).abs() < 1e-9);
    // Two ranks of a node share its disk.
    job.ranks_per_node = 2;
    assert!(outcome(&job).makespan_ps.abs_diff(6 * SECOND_PS) < 1_000);
}

/// A remote operation takes a request, the service and a reply, each as LogGP says.
#[test]
fn a_remote_operation_takes_its_closed_form() {
    let mut job =
        job(2, Program::new().then("insert", Op::Meta(MetaOp::Insert, MetadataNode::Directory { parts: 1 })));
    job.fidelity = Fidelity::LogGp;
    job.network = "star".to_owned();
    let found = outcome(&job);
    let network = &job.cluster.network;
    let message_us =
        2.0 * network.overhead_us + network.latency_us + 511.0 / network.interface_bytes_per_s * 1e6;
    let expected_us = 2.0 * message_us + 60.0;
    assert_eq!(found.metadata_ops, 2);
    // The server's own rank is served first; the other one does not meet it, with four workers.
    assert!((found.phases[0].times.max() as f64 / 1e6 - expected_us).abs() < 1e-3, "{:?}", found.phases[0]);
    assert!((found.phases[0].times.min() as f64 / 1e6 - 60.0).abs() < 1e-3);
}

/// One server: N clients get what the server can do, whatever N.
#[test]
fn one_server_saturates() {
    let program = named("metadata-one-server", 64);
    let mut job = job(64, program);
    job.cluster.daemon.workers = 1;
    let rate = outcome(&job).metadata_ops_per_s();
    assert!((rate * 60e-6 - 1.0).abs() < 0.01, "{rate}");
    // Shared among its requests it does no more and no less, but all wait for all.
    let mut shared = job.clone();
    shared.cluster.daemon.discipline = Discipline::Sharing;
    let (in_turn, shared) = (outcome(&job), outcome(&shared));
    assert!((shared.metadata_ops_per_s() * 60e-6 - 1.0).abs() < 0.01, "{}", shared.metadata_ops_per_s());
    let first = |found: &Outcome| found.phases[0].times.min();
    assert!(first(&shared) > 10 * first(&in_turn), "{} {}", first(&shared), first(&in_turn));
    job.work = Work::Program(named("metadata", 64));
    assert!(outcome(&job).metadata_ops_per_s() > 15.0 * rate);
}

/// T (1 + δ B / b): a part δ of the data comes from the shared store at b per node.
#[test]
fn misses_cost_what_the_closed_form_says() {
    for (missing, shared) in [(0.25, 16e9), (0.5, 3.2e9), (0.125, 0.64e9)] {
        let part = (missing * 65_536.0) as u32;
        let program = Program::new().then("read", Op::Read(1_000_000_000, At::Missing(part)));
        let mut job = job(64, program);
        job.cluster.shared.bytes_per_s = shared;
        job.cluster.shared.latency_us = 0.0;
        let found = seconds(outcome(&job).makespan_ps);
        // All nodes read from the store at the same time: each has its 64th.
        let local = 5.0 * (1.0 - missing);
        let expected = local + missing * 1e9 / (shared / 64.0);
        assert!((found / expected - 1.0).abs() < 1e-6, "{missing}: {found}, not {expected}");
    }
}

/// The paper's IOR on GPFS: all ranks together get the 37 GB/s that §4.5 reports for it, as writers
/// and as readers; on their own disks they get what the disks give.
#[test]
fn collective_ior_gets_what_the_store_or_the_disks_give() {
    let nodes = 4096;
    let rates = |name: &str| {
        let mut job = job(nodes, named(name, nodes));
        job.cluster = Cluster::intrepid();
        job.cluster.disk.node_deviation = 0.0;
        let found = outcome(&job);
        // Operations on the file itself and barriers come between the phases' steps.
        let of = |name: &str| {
            let phase = found.phases.iter().find(|phase| phase.name == name).unwrap();
            phase.bytes_per_s()
        };
        [of("write"), of("read")]
    };
    for rate in rates("ior-collective-shared") {
        assert!((rate / 37e9 - 1.0).abs() < 0.02, "{rate}");
    }
    let disk = Cluster::intrepid().disk;
    let disks = [disk.write_bytes_per_s, disk.read_bytes_per_s];
    for (rate, disk) in rates("ior-collective").into_iter().zip(disks) {
        assert!((rate / (disk * f64::from(nodes)) - 1.0).abs() < 0.05, "{rate} {disk}");
    }
}

/// Ten times: the slowest of all ranks computes, then all write 1 GB at 100 MB/s; at last all read
/// it at 200 MB/s. The slowest of 64 draws with σ = 0.02 takes about 1.05 times the median.
#[test]
fn checkpoint_and_restart_take_their_closed_form() {
    let found = outcome(&job(64, named("checkpoint", 64)));
    let phase = |name: &str| found.phases.iter().find(|phase| phase.name == name).unwrap();
    assert_eq!((phase("write").bytes, phase("restart").bytes), (640 * 1_000_000_000, 64 * 1_000_000_000));
    assert!((seconds(phase("write").times.max()) - 10.0).abs() < 0.01);
    assert!((seconds(phase("restart").times.max()) - 5.0).abs() < 0.01);
    let computing = seconds(found.makespan_ps) - 100.0 - 5.0;
    assert!((computing / 600.0 - 1.05).abs() < 0.02, "{computing}");
}

#[test]
fn a_barrier_waits_for_the_slowest_and_costs_log_p_rounds() {
    let mut job = job(
        64,
        Program::new()
            .then("compute", Op::Compute(Spread::Exponential { mean_us: 1000.0 }))
            .then("barrier", Op::Barrier),
    );
    job.fidelity = Fidelity::LogGp;
    let found = outcome(&job);
    let slowest = found.phases[0].times.max();
    let round_ps = ps((job.cluster.network.latency_us + 2.0 * job.cluster.network.overhead_us) * 1e-6);
    assert_eq!(found.makespan_ps, slowest + 6 * round_ps);
    assert_eq!(found.ends.min(), found.ends.max());
}

/// The same seed gives the same events; another seed, others.
#[test]
fn a_seed_gives_one_trace() {
    for fidelity in Fidelity::ALL {
        let mut job = job(125, named("read-random", 125));
        job.fidelity = fidelity;
        let (one, two) = (outcome(&job), outcome(&job));
        assert_eq!(
            (one.trace_hash, one.events, one.makespan_ps),
            (two.trace_hash, two.events, two.makespan_ps)
        );
        job.seed = 2;
        assert_ne!(outcome(&job).trace_hash, one.trace_hash);
    }
}

/// The same on every machine, in every build: no float, hash table or clock of the machine's may
/// decide. Where a change of the model changes these, `record::VERSION` goes up with them.
#[test]
fn golden_traces() {
    let of = |name: &str, fidelity: Fidelity, network: &str| {
        let mut job = job(100, Program::new());
        (job.fidelity, job.network) = (fidelity, network.to_owned());
        job.cluster = Cluster::commodity();
        job.work = (workloads::named(name).unwrap().work)(100);
        if matches!(job.work, Work::Program(_) | Work::View(_)) {
            job.cluster.failures.mtbf_hours = 1.0;
        }
        format!("{name} {} {network} {:016x}", fidelity.name(), outcome(&job).trace_hash)
    };
    let found = [
        of("fusionfs", Fidelity::Hop, "torus"),
        of("read-random", Fidelity::Flow, "fat-tree"),
        of("analysis", Fidelity::Path, "dragonfly"),
        of("push-evict", Fidelity::LogGp, "star"),
        of("namespace-shared", Fidelity::Path, "torus"),
        of("view", Fidelity::Hop, "torus"),
    ];
    let expected: &[&str] = &[
        "fusionfs hop torus c89b859f6320a206",
        "read-random flow fat-tree 60d3d4fc117922c9",
        "analysis path dragonfly 4de7a7db34276877",
        "push-evict loggp star d46abc4ad060d018",
        "namespace-shared path torus c300d563efaa62a8",
        "view hop torus 9c897108c46387ae",
    ];
    assert_eq!(found, expected, "{found:#?}");
}

/// Every byte that a program moves is moved once, at every fidelity and network; what crosses the
/// network is what is remote, and a request for each.
#[test]
fn bytes_are_conserved() {
    for network in ["star", "torus", "fat-tree", "dragonfly"] {
        for fidelity in Fidelity::ALL {
            let mut job = job(50, named("read-remote", 50));
            job.network = network.to_owned();
            job.fidelity = fidelity;
            let found = outcome(&job);
            assert_eq!(found.bytes, 50 * 256_000_000);
            let reads = &found.phases[1];
            assert_eq!((reads.times.count(), reads.bytes), (50, found.bytes));
            let small = found.message_bytes - found.bytes;
            assert_eq!(small % 512, 0);
            assert!((50 * 512..=50 * 3 * 512).contains(&small), "{network}: {small}");
            assert_eq!(found.unfinished, 0);
        }
    }
}

/// Path and hop differ in who waits for whom, not in how long the job takes: the disks decide.
#[test]
fn fidelities_agree_on_the_fusionfs_job() {
    let mut job = job(512, named("fusionfs", 512));
    job.cluster = Cluster::intrepid();
    let spans = Fidelity::ALL.map(|fidelity| {
        job.fidelity = fidelity;
        seconds(outcome(&job).makespan_ps)
    });
    assert!(spans.iter().all(|span| (span / spans[1] - 1.0).abs() < 1e-3), "{spans:?}");
}

/// Half of the nodes are dead: with a replica, every living rank is served after asking again.
#[test]
fn dead_nodes_cost_time_and_replicas_save_the_job() {
    let mut job = job(100, named("metadata", 100));
    job.cluster.failures.dead_fraction = 0.2;
    job.cluster.daemon.replicas = 12;
    let found = outcome(&job);
    assert!(found.retries > 1_000, "{}", found.retries);
    assert_eq!(found.unfinished, 0);
    let living = found.ends.count();
    assert!((70..90).contains(&living));
    assert_eq!(found.metadata_ops, living * 1_000);
    // Without replicas, names on dead nodes are out of reach.
    job.cluster.daemon.replicas = 0;
    assert_eq!(u64::from(outcome(&job).unfinished), living);
}

/// Failures come at the rate that they should, and ranks go on after repairs.
#[test]
fn failed_nodes_come_back() {
    let compute = |program: Program| program.then("compute", Op::Compute(Spread::Constant(60e6)));
    let mut job = job(200, Program::new().repeat(60, 0, compute));
    job.cluster.failures.mtbf_hours = 1.0;
    job.cluster.failures.repair_s = 30.0;
    let found = outcome(&job);
    assert_eq!((found.ends.count(), found.unfinished), (200, 0));
    assert!(seconds(found.makespan_ps) > 3_600.0 && seconds(found.makespan_ps) < 4_200.0);
}

/// Ranks that nobody answers end the run, and so do those that wait for them, however long other
/// nodes fail and come back.
#[test]
fn ranks_that_give_up_end_the_run_while_nodes_fail() {
    let program = named("checkpoint", 64);
    let mut job = job(64, program);
    // A node stays away for longer than a rank asks.
    job.cluster.failures.mtbf_hours = 0.2;
    job.cluster.failures.repair_s = 600.0;
    let found = outcome(&job);
    assert_eq!((found.ends.count(), found.unfinished), (0, 64));
    // Nobody waits for others: who meets no node that is away goes on to the end.
    let program = Program::new().repeat(60, 0, |program| {
        let program = program.then("compute", Op::Compute(Spread::Constant(60e6)));
        program.then("insert", Op::Meta(MetaOp::Insert, MetadataNode::Hashed))
    });
    job.work = Work::Program(program);
    job.cluster.failures.mtbf_hours = 5.0;
    let found = outcome(&job);
    assert!(found.ends.count() > 0);
    assert!(
        found.unfinished > 0 && found.ends.count() + u64::from(found.unfinished) == 64,
        "{}",
        found.unfinished
    );
}

/// Loops count as often as they run, and bytes that go elsewhere take the disks no time.
#[test]
fn efficiency_is_the_disks_part_of_the_time() {
    let write = |program: Program| program.then("write", Op::Write(10_000_000, At::Local));
    let program = Program::new().repeat(100, 0, write);
    let program = program.then("read", Op::Read(10_000_000, At::Local));
    let efficiency = |program: &Program| outcome(&job(1, program.clone())).efficiency();
    assert!((efficiency(&program) - 1.0).abs() < 1e-9, "{}", efficiency(&program));
    // As long again as the disk takes, from memory.
    let all_s = 10.0 + 0.05;
    let cached = (all_s * bare().disk.memory_bytes_per_s) as u64;
    let program = program.then("cached", Op::Read(cached, At::Cached));
    assert!((efficiency(&program) - 0.5).abs() < 1e-6, "{}", efficiency(&program));
}

#[test]
fn a_run_can_be_stopped_and_refuses_what_cannot_be() {
    let mut job = job(2_000, named("metadata", 2_000));
    assert!(run(&job, &mut |_| ControlFlow::Break(())).unwrap().is_none());
    let check = |job: &Job, expected: &str| {
        let message = run(job, &mut |_| ControlFlow::Continue(())).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    job.network = "torus:3x3x3".to_owned();
    check(&job, "room for 27 nodes, and 2000");
    job.nodes = 0;
    check(&job, "nodes: 0");
    job.nodes = 27;
    job.cluster.disk.write_bytes_per_s = -5.0;
    check(&job, "disk.write_bytes_per_s = -5");
    job.cluster = bare();
    job.cluster.disk.write_bytes_per_s = 1_000.0;
    job.work = Work::Program(Program::new().then("write", Op::Write(1 << 50, At::Local)));
    check(&job, "106 days");
    job.work = Work::Program(Program::new());
    check(&job, "no steps");
}

/// What was estimated is near to what the tables take.
#[test]
fn memory_is_foreseen() {
    let mut job = job(1_000_000, named("fusionfs", 1));
    let path = memory_bytes(&job).unwrap();
    assert!((150_000_000..400_000_000).contains(&path), "{path}");
    job.fidelity = Fidelity::LogGp;
    assert!(memory_bytes(&job).unwrap() < path);
}

/// Times beyond what a run may reach end it with a reason, and never wrap around.
#[test]
fn absurd_sizes_end_the_run() {
    for (at, fidelity) in
        [(At::Random, Fidelity::Hop), (At::Next, Fidelity::Flow), (At::Shared, Fidelity::Path)]
    {
        for at in [at, At::Next] {
            let program = Program::new().repeat(9, 0, |program| program.then("read", Op::Read(1 << 60, at)));
            let mut job = job(16, program);
            job.fidelity = fidelity;
            job.cluster.disk.read_bytes_per_s = 1_000.0;
            job.cluster.shared.bytes_per_s = 1_000.0;
            let found = run(&job, &mut |_| ControlFlow::Continue(()));
            assert_eq!(found.unwrap_err().kind(), ErrorKind::TooLarge);
        }
    }
}

#[test]
fn a_cluster_without_a_living_node_is_refused() {
    let mut job = job(1, Program::new().then("barrier", Op::Barrier));
    job.cluster.failures.dead_fraction = 0.99;
    let dead = (0..50).find_map(|seed| {
        job.seed = seed;
        run(&job, &mut |_| ControlFlow::Continue(())).err()
    });
    assert!(dead.unwrap().to_string().contains("dead from the beginning"));
}
