//! The same decisions, made three times: by the simulator's engine, by the fault simulation, and as
//! the product makes them, on a real disk that is opened again in between, or by ranks that are
//! threads. Puts into a cache, the assignment of frames to ranks, and the placement of a
//! namespace's partitions: hashed in their order, they are equal.

// Helpers of tests: the exceptions in clippy.toml cover #[test] functions only.

use std::sync::Arc;
use zazen_assign::threads;
use zazen_core::{ErrorKind, FrameMeta, FrameNo, Origin, RelPath, Source};
use zazen_env::{Disk, RealDisk, SimDisk};
use zazen_namespace::map::Genesis;
use zazen_namespace::partition::Settings;
use zazen_sim::Cluster;
use zazen_sim::assignment;
use zazen_sim::cache::Caches;
use zazen_sim::keepers::Keepers;
use zazen_sim::trace::Trace;
use zazen_sim::work::Assign;
use zazen_store::contract::series_in;
use zazen_store::{Store, StoreConfig};
use zazen_vopr::{begin_node, run_namespace};
use zazen_wire::checksum::frame_checksum;

const FRAME: u64 = 1 << 20;
/// Frames of the earlier job, and puts of the running one.
const OLD: u64 = 8;
const PUTS: u64 = 24;

/// Puts into one cache: how many evictions there were before, and whether the last was granted.
trait Cache {
    /// Whether the put was granted, and evictions so far.
    fn put(&mut self, number: u64) -> (bool, u64);
}

/// All decisions of a job, in their order.
fn decisions(cache: &mut impl Cache) -> (u64, Vec<(bool, u64)>) {
    let mut trace = Trace::default();
    let all: Vec<(bool, u64)> = (0..PUTS).map(|number| cache.put(number)).collect();
    all.iter().for_each(|(granted, evictions)| trace.word(u64::from(*granted) << 63 | evictions));
    (trace.digest(), all)
}

struct Engine(Caches);

impl Cache for Engine {
    fn put(&mut self, _: u64) -> (bool, u64) {
        (self.0.put(0, FRAME), self.0.evicted().0)
    }
}

/// A store. It can be opened anew, as a daemon does that was stopped.
struct Stored<D: Disk> {
    open: Box<dyn Fn(u64) -> Arc<Store<D>>>,
    store: Option<Arc<Store<D>>>,
    budget: u64,
    /// Before which put it is opened anew.
    again_at: Option<u64>,
    had_old: bool,
    evictions: u64,
}

impl<D: Disk> Stored<D> {
    /// A store in which an earlier job left its frames, with room for `more` bytes besides.
    fn new(open: Box<dyn Fn(u64) -> Arc<Store<D>>>, more: u64, again_at: Option<u64>) -> Stored<D> {
        let roomy = open(1 << 40);
        (0..OLD).for_each(|number| put(&roomy, "old", number).unwrap());
        let budget = roomy.space().used + more;
        drop(roomy);
        let store = Some(open(budget));
        Stored { open, store, budget, again_at, had_old: true, evictions: 0 }
    }

    fn store(&self) -> &Arc<Store<D>> {
        self.store.as_ref().unwrap()
    }
}

fn put<D: Disk>(store: &Arc<Store<D>>, dataset: &str, number: u64) -> zazen_core::Result<()> {
    let bytes = vec![number as u8; FRAME as usize];
    let source = Source { path: RelPath::new(&format!("f{number}")).unwrap(), offset: 0, length: None };
    let meta = FrameMeta {
        number: FrameNo::new(number).unwrap(),
        length: FRAME,
        checksum: frame_checksum(&bytes),
        validator: None,
        uid: 0,
        gid: 0,
        mode: 0o644,
    };
    let mut put = store.put(&series_in(dataset), &source, &meta, Origin::Native)?;
    put.write(&bytes)?;
    put.commit().map(drop)
}

impl<D: Disk> Cache for Stored<D> {
    fn put(&mut self, number: u64) -> (bool, u64) {
        if self.again_at == Some(number) {
            // The one that was is gone before the next one opens.
            self.store = None;
            self.store = Some((self.open)(self.budget));
        }
        let granted = match put(self.store(), "new", number) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NoSpace => false,
            Err(error) => panic!("{error}"),
        };
        let has_old = !self.store().holdings(&series_in("old")).0.is_empty();
        self.evictions += u64::from(self.had_old && !has_old);
        self.had_old = has_old;
        (granted, self.evictions)
    }
}

fn config(budget_bytes: u64) -> StoreConfig {
    StoreConfig { budget_bytes, free_floor_bytes: 0, packed_bytes_max: 16 << 10 }
}

#[test]
fn the_engine_the_fault_simulation_and_a_daemons_replay_decide_alike() {
    let mut seen = Vec::new();
    for (round, frames) in [0, 1, 3, 7, 12, 30].into_iter().enumerate() {
        // Half a frame, so that the few pages of logs tip no decision.
        let more = frames * FRAME + FRAME / 2;
        let disk = SimDisk::new(round as u64, 1 << 40);
        let on_simulated = Box::new(move |budget| Store::open(disk.clone(), config(budget)).unwrap().0);
        let mut simulated = Stored::new(on_simulated, more, None);
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let on_real =
            Box::new(move |budget| Store::open(RealDisk::new(&root).unwrap(), config(budget)).unwrap().0);
        let mut real = Stored::new(on_real, more, Some(5 + round as u64));
        let old_bytes = simulated.budget - more;
        let mut engine = Engine(Caches::new(1, simulated.budget, old_bytes));
        let found = [decisions(&mut engine), decisions(&mut simulated), decisions(&mut real)];
        assert_eq!(found[1], found[0], "the fault simulation against the engine, {frames} frames");
        assert_eq!(found[2], found[0], "the daemon's store against the engine, {frames} frames");
        seen.push(found[0].clone());
    }
    // The rounds differ, and between them there are evictions, grants and refusals.
    seen.dedup();
    assert_eq!(seen.len(), 6, "{seen:?}");
    let all: Vec<(bool, u64)> = seen.into_iter().flat_map(|(_, decisions)| decisions).collect();
    assert!(all.contains(&(true, 0)) && all.contains(&(true, 1)) && all.contains(&(false, 1)), "{all:?}");
}

/// Who reads what: machines in lockstep, machines of a simulated job, and ranks that are threads.
#[test]
fn the_engine_the_fault_simulation_and_ranks_assign_alike() {
    let mut seen = Vec::new();
    for ranks in [1, 2, 3, 8, 33] {
        for (in_turns, dead_nodes) in [(false, 0), (true, 0), (false, ranks / 3), (true, ranks / 2)] {
            let plan = Assign { frames_each: 20, in_turns, dead_nodes };
            let engine = assignment::run(&Cluster::commodity(), &plan, ranks).unwrap();
            assert!(engine.is_real);
            let inputs = assignment::inputs(&plan, ranks).unwrap();
            let simulated = zazen_vopr::assign(inputs.clone()).unwrap();
            let body = |rank: &threads::ThreadRank| {
                use zazen_assign::Collectives;
                zazen_assign::assign(inputs[rank.rank()].clone(), rank)
            };
            let run: zazen_core::Result<Vec<_>> = threads::run(ranks as usize, body).into_iter().collect();
            let what = format!("{ranks} ranks, {plan:?}");
            assert_eq!(assignment::digest(&simulated), engine.digest, "{what}");
            assert_eq!(assignment::digest(&run.unwrap()), engine.digest, "{what}");
            seen.push(engine.digest);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 10, "the plans differ: {seen:?}");
}

fn hash(primaries: impl IntoIterator<Item = u32>) -> u64 {
    let mut trace = Trace::default();
    primaries.into_iter().for_each(|node| trace.word(u64::from(node)));
    trace.digest()
}

/// By partition, as the engine places a namespace of so many nodes.
fn engine_places(nodes: u32, partitions: u32) -> u64 {
    let settings = shipped::partition::Settings { partitions, ..Default::default() };
    let mut keepers = Keepers::new(nodes, &settings).unwrap();
    assert!(keepers.is_shipped());
    hash((0..partitions).map(|number| keepers.primary(shipped::PartitionNo(number))))
}

/// Who answers for which partition: the engine, a node on a simulated disk that is killed and
/// opened again, and a node on a real one, which reads its files again.
#[test]
fn the_engine_the_fault_simulation_and_a_daemons_replay_place_alike() {
    for (nodes, partitions) in [(1, 4), (2, 8), (5, 16), (64, 256), (300, 1024)] {
        let genesis = Genesis {
            namespace: 7,
            settings: Settings { partitions, ..Settings::default() },
            replicas: 1,
            synchronous: 0,
            // One that is its own majority knows the map as soon as it is opened.
            stewards: 1,
            addresses: (0..nodes).map(|node| format!("n{node}")).collect(),
        };
        let expected = engine_places(nodes, partitions);
        let disk = SimDisk::new(u64::from(nodes), 1 << 40);
        assert_eq!(hash(begin_node(&disk, &genesis).unwrap()), expected, "{nodes} nodes");
        assert_eq!(hash(begin_node(&disk.kill(), &genesis).unwrap()), expected, "{nodes} nodes, again");
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let disk = RealDisk::new(folder.path()).unwrap();
            assert_eq!(hash(begin_node(&disk, &genesis).unwrap()), expected, "{nodes} nodes");
        }
    }
}

/// After all faults of a seed the partitions are where the engine has them from the beginning.
#[test]
fn a_namespace_that_had_faults_ends_where_the_engine_begins() {
    let mut compared = 0;
    for seed in 0..40 {
        let Some(placement) = run_namespace(seed, None).placement else { continue };
        let nodes = placement.iter().max().unwrap() + 1;
        let partitions = placement.len() as u32;
        // A node may keep no partition: the namespace has at least as many nodes as answer.
        let matches = |nodes| engine_places(nodes, partitions) == hash(placement.iter().copied());
        assert!((nodes..nodes + 4).any(matches), "seed {seed}: {placement:?}");
        compared += 1;
    }
    assert!(compared > 5, "{compared}");
}
