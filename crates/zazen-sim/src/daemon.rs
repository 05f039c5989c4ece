//! The nodes' daemons: k workers, who take requests first come, first served, or share themselves
//! among all requests that are there.

use crate::measure::Timeline;
use crate::network::Schedule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who is served when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discipline {
    /// First come, first served; a worker serves one request at a time.
    #[default]
    Fifo,
    /// All requests that are there progress alike: threads that share k processors.
    Sharing,
}

/// An event of daemons that share themselves: a request of this node may be done. The world hands
/// it back to [`Daemons::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(pub u32);

/// A node whose workers are shared.
struct Sharing<E> {
    /// What each request that is there from the beginning would have been served until `at_ps`.
    served_ps: u64,
    at_ps: u64,
    /// When the first of them will be done: turns at other times are of before another one came.
    due_ps: u64,
    /// By what it will have been served in all when it is done, then by the order of coming.
    requests: BTreeMap<(u64, u64), E>,
}

/// The daemons of all nodes, as rows.
pub struct Daemons<E> {
    workers: usize,
    /// When each worker is free, where they take requests one after the other.
    free_ps: Vec<u64>,
    /// Else the requests that are there.
    sharing: Vec<Sharing<E>>,
    /// Requests so far.
    came: u64,
    busy: Timeline,
}

impl<E: Copy + From<Turn>> Daemons<E> {
    /// Idle daemons with at least one worker each.
    pub fn new(nodes: u32, workers: u32, discipline: Discipline) -> Daemons<E> {
        let workers = workers.max(1) as usize;
        let (rows, shared) = match discipline {
            Discipline::Fifo => (nodes as usize * workers, 0),
            Discipline::Sharing => (0, nodes),
        };
        let idle = |_| Sharing { served_ps: 0, at_ps: 0, due_ps: 0, requests: BTreeMap::new() };
        Daemons {
            workers,
            free_ps: vec![0; rows],
            sharing: (0..shared).map(idle).collect(),
            came: 0,
            busy: Timeline::new(),
        }
    }

    /// Memory that a daemon takes, in bytes, with some requests.
    pub fn bytes_per_node(workers: u32, discipline: Discipline) -> u64 {
        match discipline {
            Discipline::Fifo => 8 * u64::from(workers),
            Discipline::Sharing => 256,
        }
    }

    /// How many workers were busy over time.
    pub fn into_busy(self) -> Timeline {
        self.busy
    }

    /// A request comes at `now_ps`, and needs a worker for `service_ps`. Requests come in the order
    /// of their times. If it can be told now, when it is done; else `done` comes out of the queue
    /// at that time.
    pub fn serve(
        &mut self,
        queue: &mut impl Schedule<E>,
        now_ps: u64,
        node: u32,
        service_ps: u64,
        done: E,
    ) -> Option<u64> {
        self.came += 1;
        if self.sharing.is_empty() {
            return Some(self.in_turn(now_ps, node, service_ps));
        }
        self.advance(now_ps, node);
        let row = &mut self.sharing[node as usize];
        row.requests.insert((row.served_ps.saturating_add(service_ps), self.came), done);
        self.expect(queue, now_ps, node);
        None
    }

    /// The same, and `done` comes out of the queue in any case.
    pub fn serve_until(
        &mut self,
        queue: &mut impl Schedule<E>,
        now_ps: u64,
        node: u32,
        service_ps: u64,
        done: E,
    ) {
        if let Some(end_ps) = self.serve(queue, now_ps, node, service_ps, done) {
            queue.schedule(end_ps, node, done);
        }
    }

    /// When a request is done that comes at `now_ps` to daemons that serve in turn: a FIFO queue
    /// with k servers.
    pub(crate) fn in_turn(&mut self, now_ps: u64, node: u32, service_ps: u64) -> u64 {
        let first = node as usize * self.workers;
        let free = &mut self.free_ps[first..first + self.workers];
        let mut soonest = 0;
        for worker in 1..free.len() {
            if free[worker] < free[soonest] {
                soonest = worker;
            }
        }
        let start = now_ps.max(free[soonest]);
        let end = start.saturating_add(service_ps);
        free[soonest] = end;
        self.busy.add(start, end);
        end
    }

    /// Requests of this node may be done: what they scheduled happens now.
    pub fn turn(&mut self, queue: &mut impl Schedule<E>, now_ps: u64, Turn(node): Turn) {
        // Time that is served in two parts is rounded twice, and the first request would lack some.
        if self.sharing[node as usize].due_ps != now_ps {
            return;
        }
        self.advance(now_ps, node);
        let row = &mut self.sharing[node as usize];
        while let Some(first) = row.requests.first_entry()
            && first.key().0 <= row.served_ps
        {
            queue.schedule(now_ps, node, first.remove());
        }
        self.expect(queue, now_ps, node);
    }

    /// Serves the requests that are there until now.
    fn advance(&mut self, now_ps: u64, node: u32) {
        let row = &mut self.sharing[node as usize];
        let (since_ps, there) = (std::mem::replace(&mut row.at_ps, now_ps), row.requests.len());
        let busy = there.min(self.workers);
        if busy == 0 || since_ps == now_ps {
            return;
        }
        let each_ps = u128::from(now_ps - since_ps) * busy as u128 / there as u128;
        row.served_ps = row.served_ps.saturating_add(each_ps as u64);
        (0..busy).for_each(|_| self.busy.add(since_ps, now_ps));
    }

    /// Schedules the node's turn when the first of its requests will be done.
    fn expect(&mut self, queue: &mut impl Schedule<E>, now_ps: u64, node: u32) {
        let row = &mut self.sharing[node as usize];
        let Some(((until_ps, _), _)) = row.requests.first_key_value() else { return };
        let there = row.requests.len();
        let left_ps = u128::from(until_ps.saturating_sub(row.served_ps)) * there as u128;
        let wait_ps = left_ps.div_ceil(there.min(self.workers) as u128);
        let wait_ps = u64::try_from(wait_ps).unwrap_or(u64::MAX);
        row.due_ps = now_ps.saturating_add(wait_ps);
        queue.schedule(row.due_ps, node, Turn(node).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;
    use crate::random::{Random, Stream};
    use crate::time::{SECOND_PS, ps, seconds};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        Come(u64),
        Done(u64),
        Turn(Turn),
    }

    impl From<Turn> for Event {
        fn from(turn: Turn) -> Event {
            Event::Turn(turn)
        }
    }

    /// How long requests (time, service) are there, with the time that workers were busy.
    fn stays(discipline: Discipline, workers: u32, requests: &[(u64, u64)]) -> (Vec<u64>, f64) {
        let mut daemons = Daemons::new(1, workers, discipline);
        let mut queue = Queue::new();
        let mut ends = vec![0; requests.len()];
        for (number, (at, _)) in (0..).zip(requests) {
            queue.push(*at, 0, Event::Come(number));
        }
        while let Some(due) = queue.pop() {
            let now = due.time_ps;
            match due.event {
                Event::Come(number) => {
                    let (_, service) = requests[number as usize];
                    let done = Event::Done(number);
                    daemons.serve_until(&mut queue, now, 0, service, done);
                }
                Event::Done(number) => ends[number as usize] = now,
                Event::Turn(turn) => daemons.turn(&mut queue, now, turn),
            }
        }
        let stays = ends.iter().zip(requests).map(|(end, (at, _))| end - at).collect();
        (stays, daemons.into_busy().total_s())
    }

    /// The mean time that a request is there, and of its service, with Poisson arrivals at `load`.
    fn mean_s(discipline: Discipline, load: f64, workers: u32, service: impl Fn(u64) -> f64) -> (f64, f64) {
        let random = Random::new(11);
        let mut now = 0;
        let mut come = |number| {
            now += ps(random.exponential(0, Stream::Workload, number) / (load * f64::from(workers)) * 1e-3);
            (now, ps(service(number) * 1e-3))
        };
        let requests: Vec<(u64, u64)> = (0..400_000).map(&mut come).collect();
        let (stays, busy_s) = stays(discipline, workers, &requests);
        let mean = |sum: f64| sum * 1e3 / requests.len() as f64;
        let served = requests.iter().map(|(_, service)| seconds(*service)).sum::<f64>();
        assert!((busy_s / served - 1.0).abs() < 1e-3, "busy for {busy_s} s, not {served}");
        (mean(stays.iter().map(|stay| seconds(*stay)).sum()), mean(served))
    }

    /// The mean wait of a FIFO queue with Poisson arrivals at `load`, service 1 s, and `workers`.
    fn mean_wait_s(load: f64, workers: u32, service: impl Fn(u64) -> f64) -> f64 {
        let (stay, service) = mean_s(Discipline::Fifo, load, workers, service);
        stay - service
    }

    /// M/G/1 with sharing: a request is there 1 / (1 - ρ) of its service, whatever the services'
    /// distribution (Kleinrock).
    #[test]
    fn sharing_is_as_long_as_theory_says_for_any_service() {
        let random = Random::new(13);
        let spread = |number| if random.uniform(1, Stream::Service, number) < 0.9 { 0.5 } else { 5.5 };
        for load in [0.3, 0.6, 0.8] {
            let constant = mean_s(Discipline::Sharing, load, 1, |_| 1.0).0;
            let varied = mean_s(Discipline::Sharing, load, 1, spread).0;
            for found in [constant, varied] {
                let expected = 1.0 / (1.0 - load);
                assert!((found / expected - 1.0).abs() < 0.06, "load {load}: {found}, not {expected}");
            }
        }
    }

    /// With exponential services the order of service changes no mean: k shared workers keep a
    /// request as long as k workers in turn.
    #[test]
    fn shared_workers_keep_requests_as_long_as_workers_in_turn() {
        let random = Random::new(12);
        let service = |number| random.exponential(1, Stream::Service, number);
        for (load, workers) in [(0.6, 1), (0.8, 3)] {
            let shared = mean_s(Discipline::Sharing, load, workers, service).0;
            let in_turn = mean_s(Discipline::Fifo, load, workers, service).0;
            assert!((shared / in_turn - 1.0).abs() < 0.05, "{shared}, not {in_turn}");
        }
    }

    /// By hand: two requests share one worker until the shorter one is done.
    #[test]
    fn sharing_by_hand() {
        let check = |workers, requests: &[(u64, u64)], expected: &[u64]| {
            assert_eq!(stays(Discipline::Sharing, workers, requests).0, expected);
        };
        check(1, &[(0, 100)], &[100]);
        check(1, &[(0, 100), (0, 300)], &[200, 400]);
        // The second one comes when the first has 60 left: 60 each in 120, then 40 alone.
        check(1, &[(0, 100), (40, 100)], &[160, 160]);
        check(2, &[(0, 100), (0, 100), (0, 100)], &[150, 150, 150]);
        check(2, &[(0, 100), (50, 100)], &[100, 100]);
        check(1, &[(0, 0), (5, 0)], &[0, 0]);
    }

    /// M/D/1: W = ρ / (2 (1 - ρ)) services (Pollaczek and Khinchine).
    #[test]
    fn m_d_1_waits_as_long_as_theory_says() {
        for load in [0.3, 0.5, 0.7, 0.85] {
            let expected = load / (2.0 * (1.0 - load));
            let found = mean_wait_s(load, 1, |_| 1.0);
            assert!((found / expected - 1.0).abs() < 0.04, "load {load}: {found}, not {expected}");
        }
    }

    /// M/M/1: ρ / (1 - ρ). M/M/3 at load 0.8: the Erlang C formula.
    #[test]
    fn m_m_k_waits_as_long_as_theory_says() {
        let random = Random::new(12);
        let service = |number| random.exponential(1, Stream::Service, number);
        let found = mean_wait_s(0.6, 1, service);
        assert!((found / 1.5 - 1.0).abs() < 0.04, "{found}");
        let offered: f64 = 2.4;
        let terms = 1.0 + offered + offered.powi(2) / 2.0;
        let last = offered.powi(3) / 6.0 / (1.0 - 0.8);
        let expected = last / (terms + last) / (3.0 * (1.0 - 0.8));
        let found = mean_wait_s(0.8, 3, service);
        assert!((found / expected - 1.0).abs() < 0.04, "{found}, not {expected}");
    }

    #[test]
    fn nodes_do_not_share_workers() {
        let mut queue = Queue::new();
        let mut daemons = Daemons::new(2, 2, Discipline::Fifo);
        let second = SECOND_PS;
        let ends = [0, 0, 0, 1].map(|node| daemons.serve(&mut queue, 0, node, second, Event::Done(0)));
        assert_eq!(ends, [Some(second), Some(second), Some(2 * second), Some(second)]);
        let mut daemons = Daemons::new(2, 1, Discipline::Sharing);
        let ends = [0, 1].map(|node| daemons.serve(&mut queue, 0, node, second, Event::Done(node.into())));
        assert_eq!((ends, queue.pop().map(|due| due.time_ps)), ([None, None], Some(second)));
    }
}
