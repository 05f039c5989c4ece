//! Recorded runs, simulated again: whose calls share which link, disk or store.
//!
//! A call's bytes are a flow over the resources that they go through: the sender's link out, the
//! receiver's link in, a node's disk, the backing store. Flows share each resource max-min fairly.
//! So a call takes longer where others are under way at the same time, as it does on real links. A
//! call whose bytes cross nothing that is shared takes what its operation took in training.
//!
//! What comes from the recording: which calls each client makes, their bytes, and the pauses in
//! which the client itself does something. What calls take, and so when each begins, is simulated.
//!
//! A connection's next call begins a pause after its last one has ended. Pushes are another matter:
//! a writer keeps a window of frames under way, whatever connections they take. So a push begins a
//! pause after as many of its writer's pushes have ended as when it was recorded. Then as many are
//! under way at a time as there were, though links share their bytes less evenly than flows here.

use crate::cluster::Cluster;
use crate::daemon::{Daemons, Discipline, Turn};
use crate::disk::Disks;
use crate::maxmin::{Crossing, max_min};
use crate::random::{Random, Stream};
use crate::spread::Spread;
use crate::time::{Rate, SECOND_PS, TIME_MAX_PS};
use std::collections::{BTreeMap, BTreeSet};
use zazen_spans::Span;

/// Operations that write what comes with them to the node's disk.
pub const WRITES: [&str; 3] = ["frames.push", "frames.push_many", "namespace.write"];
/// Operations that read what they answer with from the node's disk.
pub const READS: [&str; 3] = ["frames.get_block", "frames.read_many", "namespace.read"];

/// Operations of which a client has a window under way.
const WINDOWED: [&str; 2] = ["frames.push", "frames.push_many"];

/// What flows share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource<'a> {
    /// A host's link, from it.
    Out(&'a str),
    /// A host's link, to it.
    In(&'a str),
    /// A node's disk.
    Disk(&'a str),
    /// The backing store, which all nodes share.
    Store,
}

impl Resource<'_> {
    /// Bytes per second.
    pub fn rate(self, cluster: &Cluster) -> f64 {
        match self {
            Resource::Out(_) | Resource::In(_) => cluster.network.interface_bytes_per_s,
            Resource::Disk(_) => cluster.disk.read_bytes_per_s,
            Resource::Store => cluster.shared.bytes_per_s,
        }
    }
}

/// The bytes of a call, and what they cross; nothing if no resource is shared.
pub fn route(span: &Span) -> (u64, Vec<Resource<'_>>) {
    let (node, client) = (span.node.as_str(), span.client_host());
    let mut bytes = 0;
    let mut crossed = BTreeSet::new();
    if client != node && span.bytes_in > 0 {
        bytes = bytes.max(span.bytes_in);
        crossed.extend([Resource::Out(client), Resource::In(node)]);
    }
    if client != node && span.bytes_out > 0 {
        bytes = bytes.max(span.bytes_out);
        crossed.extend([Resource::Out(node), Resource::In(client)]);
    }
    if span.bytes_moved > 0 {
        bytes = bytes.max(span.bytes_moved);
        match span.op.as_str() {
            "frames.fetch" => crossed.extend([Resource::Store, Resource::In(node)]),
            _ => crossed.extend([Resource::Disk(node)]),
        }
    }
    (bytes, crossed.into_iter().collect())
}

/// A run as it was simulated.
pub struct Replayed {
    /// What each call took, in the order of the run's spans.
    pub times_ps: Vec<u64>,
    /// From the first call's beginning to the last one's end.
    pub end_ps: u64,
    /// Of that time: pauses before the calls that led to the one that ended last, which the
    /// recording gives.
    pub paused_ps: u64,
}

/// What leads to a call: when it ends, the call begins after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The run's beginning.
    Start,
    /// This call's end.
    After(usize),
    /// The end of so many calls of this window.
    Ended(usize, usize),
}

/// What leads to each call, and the pause then, in nanoseconds.
fn causes(run: &[&Span], lanes: &[Vec<usize>]) -> Vec<(Cause, u64)> {
    let begin_ns = run.iter().map(|span| span.start_ns).min().unwrap_or(0);
    let mut causes: Vec<(Cause, u64)> =
        run.iter().map(|span| (Cause::Start, span.start_ns - begin_ns)).collect();
    for lane in lanes {
        for (before, call) in lane.iter().zip(lane.iter().skip(1)) {
            let pause_ns = run[*call].start_ns.saturating_sub(run[*before].end_ns());
            causes[*call] = (Cause::After(*before), pause_ns);
        }
    }
    for (window, calls) in windows(run).into_iter().enumerate() {
        let mut ends: Vec<u64> = calls.iter().map(|call| run[*call].end_ns()).collect();
        ends.sort_unstable();
        for call in calls {
            let start_ns = run[call].start_ns;
            let ended = ends.partition_point(|end_ns| *end_ns <= start_ns);
            causes[call] = match ended.checked_sub(1) {
                Some(last) => (Cause::Ended(window, ended), start_ns - ends[last]),
                None => (Cause::Start, start_ns - begin_ns),
            };
        }
    }
    causes
}

/// The pushes of each writer.
fn windows(run: &[&Span]) -> Vec<Vec<usize>> {
    let mut of_client: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (call, span) in run.iter().enumerate().filter(|(_, span)| WINDOWED.contains(&span.op.as_str())) {
        of_client.entry((span.client_host(), &span.peer)).or_default().push(call);
    }
    of_client.into_values().collect()
}

/// The calls of each connection, in their order. Calls of one connection that overlap came over
/// several lanes; each lane is one for itself.
pub fn lanes(run: &[&Span]) -> Vec<Vec<usize>> {
    let mut of_connection: BTreeMap<(&str, u64), Vec<usize>> = BTreeMap::new();
    for (index, span) in run.iter().enumerate() {
        of_connection.entry((&span.node, span.connection)).or_default().push(index);
    }
    let mut all = Vec::new();
    for mut calls in of_connection.into_values() {
        calls.sort_unstable_by_key(|index| (run[*index].start_ns, *index));
        let mut lanes: Vec<Vec<usize>> = Vec::new();
        for call in calls {
            let end_of = |lane: &Vec<usize>| lane.last().map_or(0, |last| run[*last].end_ns());
            let free = lanes.iter_mut().filter(|lane| end_of(lane) <= run[call].start_ns);
            match free.max_by_key(|lane| end_of(lane)) {
                Some(lane) => lane.push(call),
                None => lanes.push(vec![call]),
            }
        }
        all.append(&mut lanes);
    }
    all
}

/// A call whose bytes are under way.
struct Flow {
    call: usize,
    left: f64,
    bytes_per_s: f64,
    links: Vec<u32>,
}

/// What happens next, by its time: a call begins, has its bytes sent, or ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Begin,
    Send,
    End,
}

/// Simulates the calls of a run. `run` is in any order; its nodes are those that were recorded.
pub fn replay(cluster: &Cluster, run: &[&Span], seed: u64) -> Replayed {
    World::new(cluster, run, seed).run()
}

struct World<'a> {
    cluster: &'a Cluster,
    run: &'a [&'a Span],
    random: Random,
    /// What begins when a call ends, and when a window's count of ended calls is reached.
    after: Vec<Vec<usize>>,
    windows: BTreeMap<(usize, usize), Vec<usize>>,
    /// By call: its window, and by window: how many of its calls have ended.
    window: Vec<Option<usize>>,
    ended: Vec<usize>,
    /// By call: the pause before it, and by call: all pauses that led to it.
    pause_ps: Vec<u64>,
    paused_ps: Vec<u64>,
    nodes: BTreeMap<&'a str, u32>,
    daemons: Daemons<Turn>,
    disks: Disks,
    links: BTreeMap<Resource<'a>, u32>,
    rates: Vec<f64>,
    flows: Vec<Flow>,
    flows_at_ps: u64,
    steps: BTreeSet<(u64, Step, usize)>,
    begun_ps: Vec<u64>,
    times_ps: Vec<u64>,
    end: (u64, u64),
}

impl<'a> World<'a> {
    fn new(cluster: &'a Cluster, run: &'a [&'a Span], seed: u64) -> World<'a> {
        let lanes = lanes(run);
        let mut window = vec![None; run.len()];
        let all = windows(run);
        for (number, calls) in all.iter().enumerate() {
            calls.iter().for_each(|call| window[*call] = Some(number));
        }
        let (mut after, mut windows) = (vec![Vec::new(); run.len()], BTreeMap::new());
        let (mut steps, mut pause_ps) = (BTreeSet::new(), vec![0; run.len()]);
        for (call, (cause, pause_ns)) in causes(run, &lanes).into_iter().enumerate() {
            pause_ps[call] = pause_ns.saturating_mul(1000);
            match cause {
                Cause::Start => _ = steps.insert((pause_ps[call], Step::Begin, call)),
                Cause::After(before) => after[before].push(call),
                Cause::Ended(window, count) => {
                    windows.entry((window, count)).or_insert_with(Vec::new).push(call);
                }
            }
        }
        let mut nodes = BTreeMap::new();
        for span in run {
            let next = nodes.len() as u32;
            nodes.entry(span.node.as_str()).or_insert(next);
        }
        let count = nodes.len() as u32;
        // A lane is a thread of the daemon's.
        let workers = cluster.daemon.workers.max(lanes.len() as u32);
        World {
            cluster,
            run,
            random: Random::new(seed),
            after,
            windows,
            window,
            ended: vec![0; all.len()],
            paused_ps: pause_ps.clone(),
            pause_ps,
            daemons: Daemons::new(count, workers, Discipline::Fifo),
            disks: Disks::new(count, cluster.disk_costs(), Vec::new()),
            nodes,
            links: BTreeMap::new(),
            rates: Vec::new(),
            flows: Vec::new(),
            flows_at_ps: 0,
            steps,
            begun_ps: vec![0; run.len()],
            times_ps: vec![0; run.len()],
            end: (0, 0),
        }
    }

    fn run(mut self) -> Replayed {
        loop {
            let step = self.steps.first().copied();
            let flow = self.next_flow();
            match (step, flow) {
                (Some((now_ps, ..)), Some((flow_ps, _))) if flow_ps < now_ps => self.flow_ends(flow),
                (Some(step), _) => {
                    self.steps.remove(&step);
                    self.handle(step);
                }
                (None, Some(_)) => self.flow_ends(flow),
                (None, None) => break,
            }
        }
        Replayed { times_ps: self.times_ps, end_ps: self.end.0, paused_ps: self.end.1 }
    }

    fn handle(&mut self, (now_ps, step, call): (u64, Step, usize)) {
        match step {
            Step::Begin => {
                self.begun_ps[call] = now_ps;
                let (end_ps, sends) = self.serve(now_ps, call);
                self.steps.insert((end_ps, if sends { Step::Send } else { Step::End }, call));
            }
            Step::Send => {
                let (bytes, crossed) = route(self.run[call]);
                let links = crossed.into_iter().map(|resource| self.link(resource)).collect();
                self.advance(now_ps);
                self.flows.push(Flow { call, left: bytes as f64, bytes_per_s: 0.0, links });
                self.share();
            }
            Step::End => self.ends(now_ps, call),
        }
    }

    /// When a call has been served, and whether its bytes are sent then.
    fn serve(&mut self, now_ps: u64, call: usize) -> (u64, bool) {
        let span = self.run[call];
        let draw = call as u64;
        if let Some(known) = self.cluster.service.get(span.op.as_str()) {
            let bytes = span.bytes_in + span.bytes_out + span.bytes_moved;
            let sends = known.shares && !route(span).1.is_empty();
            return (now_ps.saturating_add(known.draw_ps(self.random, draw, bytes)), sends);
        }
        let node = self.nodes[span.node.as_str()];
        let service_ps = service(self.cluster, &span.op)
            .map_or(0, |spread| spread.draw_ps(self.random, 0, Stream::Service, draw));
        let noise = match self.cluster.disk.request_sigma {
            0.0 => 1.0,
            sigma => crate::math::exp(sigma * self.random.normal(0, Stream::DiskNoise, draw)),
        };
        let served_ps = self.daemons.in_turn(now_ps, node, service_ps);
        let end_ps = if WRITES.contains(&span.op.as_str()) {
            self.disks.write(served_ps, node, span.bytes_in, Rate::INFINITE, noise)
        } else if READS.contains(&span.op.as_str()) {
            self.disks.read(served_ps, node, span.bytes_out, Rate::INFINITE, noise)
        } else {
            served_ps
        };
        (end_ps, false)
    }

    fn ends(&mut self, now_ps: u64, call: usize) {
        self.times_ps[call] = now_ps - self.begun_ps[call];
        if now_ps >= self.end.0 {
            self.end = (now_ps, self.paused_ps[call]);
        }
        let mut next = std::mem::take(&mut self.after[call]);
        if let Some(window) = self.window[call] {
            self.ended[window] += 1;
            next.extend(self.windows.remove(&(window, self.ended[window])).unwrap_or_default());
        }
        for later in next {
            self.paused_ps[later] = self.paused_ps[call].saturating_add(self.pause_ps[later]);
            self.steps.insert((now_ps.saturating_add(self.pause_ps[later]), Step::Begin, later));
        }
    }

    fn link(&mut self, resource: Resource<'a>) -> u32 {
        let next = self.links.len() as u32;
        let number = *self.links.entry(resource).or_insert(next);
        if number == next {
            self.rates.push(resource.rate(self.cluster));
        }
        number
    }

    /// The flow that ends first at the present rates, and when.
    fn next_flow(&self) -> Option<(u64, usize)> {
        let end = |flow: &Flow| {
            let wait_ps = (flow.left / flow.bytes_per_s * SECOND_PS as f64).ceil();
            self.flows_at_ps.saturating_add(wait_ps.min(TIME_MAX_PS as f64) as u64)
        };
        self.flows.iter().enumerate().map(|(index, flow)| (end(flow), index)).min()
    }

    fn flow_ends(&mut self, flow: Option<(u64, usize)>) {
        let Some((now_ps, index)) = flow else { return };
        self.advance(now_ps);
        let ended = self.flows.swap_remove(index);
        self.share();
        self.ends(now_ps, ended.call);
    }

    /// Counts what flows have sent until now.
    fn advance(&mut self, now_ps: u64) {
        let passed_s = now_ps.saturating_sub(self.flows_at_ps) as f64 / SECOND_PS as f64;
        for flow in &mut self.flows {
            flow.left = (flow.left - flow.bytes_per_s * passed_s).max(0.0);
        }
        self.flows_at_ps = now_ps;
    }

    /// Deals the resources out anew.
    fn share(&mut self) {
        let mut crossing = Crossing::new();
        self.flows.iter().for_each(|flow| crossing.add(flow.links.iter().copied()));
        for (flow, rate) in self.flows.iter_mut().zip(max_min(&self.rates, &crossing)) {
            flow.bytes_per_s = rate;
        }
    }
}

/// The parameter of an operation's service; `None` if the simulator does not model it.
pub fn service<'a>(cluster: &'a Cluster, op: &str) -> Option<&'a Spread> {
    let daemon = &cluster.daemon;
    match op {
        "frames.open" => Some(&daemon.open_us),
        "frames.query" => Some(&daemon.lookup_us),
        "frames.scan_close" | "namespace.close" => Some(&daemon.close_us),
        "frames.evict" => Some(&daemon.remove_us),
        op if WRITES.contains(&op) => Some(&daemon.insert_us),
        op if READS.contains(&op) => Some(&daemon.fetch_us),
        _ => None,
    }
}

/// What the calls of a run did on one resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// Bytes that went over it.
    pub bytes: f64,
    /// While any call was on it.
    pub busy_s: f64,
    /// The most calls that were on it at once.
    pub met: usize,
    /// Whether its calls crossed nothing else: then nothing else that is shared held them up.
    pub is_alone: bool,
}

impl Carried {
    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes / self.busy_s
    }
}

/// What each resource of a kind carried in this run, if that were `calls_min` calls.
pub fn carried(run: &[&Span], calls_min: usize, is_kind: impl Fn(Resource) -> bool) -> Vec<Carried> {
    let mut of: BTreeMap<Resource, Vec<&Span>> = BTreeMap::new();
    for span in run {
        for resource in route(span).1.into_iter().filter(|resource| is_kind(*resource)) {
            of.entry(resource).or_default().push(span);
        }
    }
    let carried = |spans: Vec<&Span>| {
        let bytes: u64 = spans.iter().map(|span| route(span).0).sum();
        let mut edges: Vec<(u64, i32)> =
            spans.iter().flat_map(|span| [(span.start_ns, 1), (span.end_ns(), -1)]).collect();
        edges.sort_unstable();
        let (mut on, mut most, mut since_ns, mut busy_ns) = (0, 0, 0, 0_u64);
        for (time_ns, change) in edges {
            if on > 0 {
                busy_ns += time_ns - since_ns;
            }
            since_ns = time_ns;
            on += change;
            most = most.max(on);
        }
        Carried {
            bytes: bytes as f64,
            busy_s: busy_ns.max(1) as f64 / 1e9,
            met: most.max(0) as usize,
            is_alone: spans.iter().all(|span| route(span).1.len() == 1),
        }
    };
    of.into_values().filter(|spans| spans.len() >= calls_min).map(carried).collect()
}

/// The time of a run's calls by operation, and of the run: as recorded, and as simulated.
pub fn totals(run: &[&Span], replayed: &Replayed) -> BTreeMap<String, (f64, f64)> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (span, time_ps) in run.iter().zip(&replayed.times_ps) {
        let sum = sums.entry(span.op.as_str().to_owned()).or_default();
        sum.0 += span.duration_ns as f64 / 1e9;
        sum.1 += crate::time::seconds(*time_ps);
    }
    let begin = run.iter().map(|span| span.start_ns).min().unwrap_or(0);
    let end = run.iter().map(|span| span.end_ns()).max().unwrap_or(begin);
    sums.insert("all".to_owned(), ((end - begin) as f64 / 1e9, crate::time::seconds(replayed.end_ps)));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Service;

    const MB: u64 = 1_000_000;

    fn span(node: &str, peer: &str, op: &str, connection: u64, at_ms: (u64, u64)) -> Span {
        Span {
            v: 3,
            start_ns: 1_000_000_000_000 + at_ms.0 * 1_000_000,
            duration_ns: at_ms.1 * 1_000_000,
            queue_ns: 0,
            node: node.into(),
            op: op.into(),
            bytes_in: 0,
            bytes_out: 0,
            bytes_moved: 0,
            connection,
            peer: peer.into(),
            outcome: "ok".into(),
            id: 0,
        }
    }

    /// A cluster with links of 20 MB/s, disks of 10 MB/s and a store of 30 MB/s.
    fn cluster() -> Cluster {
        let mut cluster = Cluster::commodity();
        cluster.network.interface_bytes_per_s = 20e6;
        cluster.disk.read_bytes_per_s = 10e6;
        cluster.shared.bytes_per_s = 30e6;
        for op in ["frames.push", "frames.verify", "frames.fetch", "namespace.read"] {
            let service = Service { fixed_us: 0.0, bytes_per_s: 0.0, parts: Vec::new(), shares: true };
            cluster.service.insert(op.to_owned(), service);
        }
        cluster
    }

    fn times_s(run: &[Span]) -> Vec<f64> {
        let run: Vec<&Span> = run.iter().collect();
        let replayed = replay(&cluster(), &run, 1);
        replayed.times_ps.iter().map(|time| (crate::time::seconds(*time) * 1e6).round() / 1e6).collect()
    }

    /// What each resource gives is dealt out to those who use it then.
    #[test]
    fn calls_share_what_they_cross() {
        let push = |node: &str, connection| Span {
            bytes_in: 40 * MB,
            ..span(node, "0:9@sim", "frames.push", connection, (0, 1))
        };
        // One has the link for itself; two share the sender's, to one node or to two.
        assert_eq!(times_s(&[push("a", 1)]), [2.0]);
        assert_eq!(times_s(&[push("a", 1), push("a", 2)]), [4.0, 4.0]);
        assert_eq!(times_s(&[push("a", 1), push("b", 1)]), [4.0, 4.0]);
        // Senders of their own do not meet, but at one receiver they do.
        let other = |node| Span { peer: "0:8@other".into(), ..push(node, 3) };
        assert_eq!(times_s(&[push("a", 1), other("b")]), [2.0, 2.0]);
        assert_eq!(times_s(&[push("a", 1), other("a")]), [4.0, 4.0]);
        // A node that sends to itself uses no link, and out and in are two.
        let own = Span { peer: "0:8@a".into(), ..push("a", 4) };
        let back = Span { peer: "0:8@a".into(), ..push("b", 4) };
        assert_eq!(times_s(&[push("a", 1), own, back]), [2.0, 0.0, 2.0]);
        // The second begins when the first has sent half of its bytes: 1 s alone, then both share.
        let first = Span { duration_ns: 3_000_000_000, ..push("a", 1) };
        let later = Span { start_ns: first.start_ns + 1_000_000_000, connection: 2, ..first.clone() };
        assert_eq!(times_s(&[first, later]), [3.0, 3.0]);
    }

    /// A writer with two pushes under way, of which one was starved: there are always two, whatever
    /// connections they take. Another writer has a window of its own.
    #[test]
    fn a_writer_keeps_its_window() {
        let push = |at_ms, connection| Span {
            bytes_in: 20 * MB,
            ..span("a", "0:9@sim", "frames.push", connection, at_ms)
        };
        let starved =
            [push((0, 3_000), 1), push((0, 1_000), 2), push((1_000, 1_000), 2), push((2_000, 1_000), 2)];
        assert_eq!(times_s(&starved), [2.0, 2.0, 2.0, 2.0]);
        let run: Vec<&Span> = starved.iter().collect();
        let replayed = replay(&cluster(), &run, 1);
        assert_eq!((crate::time::seconds(replayed.end_ps), replayed.paused_ps), (4.0, 0));
        let other = Span { peer: "0:8@b".into(), node: "c".into(), ..push((1_500, 500), 1) };
        let run: Vec<Span> = starved.into_iter().chain([other]).collect();
        assert_eq!(times_s(&run), [2.0, 2.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn disks_and_the_store_are_shared_too() {
        let verify = |node: &str, connection| Span {
            bytes_moved: 20 * MB,
            ..span(node, "0:9@sim", "frames.verify", connection, (0, 1))
        };
        assert_eq!(times_s(&[verify("a", 1), verify("b", 1)]), [2.0, 2.0]);
        assert_eq!(times_s(&[verify("a", 1), verify("a", 2)]), [4.0, 4.0]);
        // Three nodes fetch: the store gives each 10 MB/s; one alone is held by its link.
        let fetch = |node: &str| Span { op: "frames.fetch".into(), ..verify(node, 1) };
        assert_eq!(times_s(&[fetch("a"), fetch("b"), fetch("c")]), [2.0, 2.0, 2.0]);
        assert_eq!(times_s(&[fetch("a")]), [1.0]);
    }

    /// Pauses stay as they are; lanes of one connection go on side by side.
    #[test]
    fn pauses_and_lanes_are_those_of_the_recording() {
        let verify = |at_ms| Span { bytes_moved: 10 * MB, ..span("a", "0:9", "frames.verify", 1, at_ms) };
        let run = [verify((0, 1_000)), verify((1_500, 1_000)), verify((1_600, 1_000))];
        let run: Vec<&Span> = run.iter().collect();
        assert_eq!(lanes(&run), [vec![0, 1], vec![2]]);
        let replayed = replay(&cluster(), &run, 1);
        // The third begins at 1.6 s. It meets the second one, which has 0.9 s left.
        assert_eq!(replayed.times_ps.map_seconds(), [1.0, 1.9, 1.9]);
        assert_eq!(crate::time::seconds(replayed.paused_ps), 1.6);
        assert_eq!(crate::time::seconds(replayed.end_ps), 3.5);
    }

    trait Seconds {
        fn map_seconds(&self) -> Vec<f64>;
    }

    impl Seconds for Vec<u64> {
        fn map_seconds(&self) -> Vec<f64> {
            self.iter().map(|time| (crate::time::seconds(*time) * 1e6).round() / 1e6).collect()
        }
    }
}
