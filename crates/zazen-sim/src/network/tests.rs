//! The laws of the fidelities: closed forms where there is one, and agreement where there is no
//! contention.

use super::*;
use crate::queue::{Due, Queue};
use crate::time::SECOND_PS;
use crate::topology;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Send(u32),
    Arrived(u32),
    Network(Step),
}

impl From<Step> for Event {
    fn from(step: Step) -> Event {
        Event::Network(step)
    }
}

const MB: u64 = 1_000_000;

fn costs() -> Costs {
    Costs {
        overhead_ps: 2_000,
        gap_ps: 5_000,
        latency_ps: 7_000,
        hop_ps: 100,
        global_hop_ps: 900,
        interface: Rate::per_second(1e9),
        fabric: Rate::per_second(1e9),
        global: Rate::per_second(1e9),
        flow_bytes_min: 1_000,
    }
}

/// Sends (time, from, to, bytes) and returns when each arrived.
fn arrivals(
    fidelity: Fidelity,
    shape: &str,
    nodes: u32,
    costs: Costs,
    sends: &[(u64, u32, u32, u64)],
) -> Vec<u64> {
    let topology = topology::parse(shape).unwrap().of(nodes).unwrap();
    let mut network = Network::new(fidelity, topology, nodes, costs);
    let mut queue = Queue::new();
    let mut arrived = vec![0; sends.len()];
    for (number, (at, from, ..)) in sends.iter().enumerate() {
        queue.push(*at, *from, Event::Send(number as u32));
    }
    while let Some(Due { time_ps, event, .. }) = queue.pop() {
        match event {
            Event::Send(number) => {
                let (_, from, to, bytes) = sends[number as usize];
                let sending = Sending { now: time_ps, from, to, bytes };
                network.send(&mut queue, sending, Event::Arrived(number));
            }
            Event::Arrived(number) => arrived[number as usize] = time_ps,
            Event::Network(step) => network.step(&mut queue, time_ps, step),
        }
    }
    arrived
}

/// LogGP: a message of k bytes takes o + (k - 1) G + L + o; the n-th of a burst leaves
/// (n - 1) max(g, o + (k - 1) G) later.
#[test]
fn loggp_closed_forms() {
    let (o, g, l, each) = (2_000, 5_000, 7_000, 1_000);
    for bytes in [1, 2, 100, MB] {
        let alone = o + (bytes - 1) * each + l + o;
        let burst: Vec<(u64, u32, u32, u64)> = (0..5).map(|_| (0, 0, 1, bytes)).collect();
        let expected: Vec<u64> = (0..5).map(|n| alone + n * g.max(o + (bytes - 1) * each)).collect();
        assert_eq!(arrivals(Fidelity::LogGp, "star", 2, costs(), &burst), expected);
    }
    // Distance counts by hop: 3 in a torus of 4x4x4 from one corner to the next along the diagonal.
    let far = arrivals(Fidelity::LogGp, "torus:4x4x4", 64, costs(), &[(0, 0, 63, 1)]);
    assert_eq!(far, [o + l + 3 * 100 + o]);
}

/// A message alone takes as long at every fidelity (LogGP's first byte is in its overhead).
#[test]
fn without_contention_all_fidelities_agree() {
    for shape in ["star", "torus:4x4x4", "fat-tree:4x4x4:1x4x4", "dragonfly:2x4x2x9"] {
        for to in [1, 5, 17, 42, 63] {
            for bytes in [1_000, MB, 100 * MB] {
                let of = |fidelity| arrivals(fidelity, shape, 64, costs(), &[(0, 0, to, bytes)])[0];
                let path = of(Fidelity::Path);
                assert_eq!(of(Fidelity::LogGp) + 1_000, path, "{shape} to {to}");
                assert_eq!(of(Fidelity::Hop), path, "{shape} to {to}");
                assert_eq!(of(Fidelity::Flow), path, "{shape} to {to}");
            }
        }
    }
}

/// Two messages into one node: links serve them one after the other, flows share.
#[test]
fn contention_at_a_receiver() {
    let sends = [(0, 0, 2, 100 * MB), (0, 1, 2, 100 * MB)];
    let length = SECOND_PS / 10;
    let rest = 2_000 + 7_000 + 2_000;
    for fidelity in [Fidelity::Path, Fidelity::Hop] {
        let found = arrivals(fidelity, "star", 3, costs(), &sends);
        assert_eq!(found, [length + rest, 2 * length + rest]);
    }
    let shared = arrivals(Fidelity::Flow, "star", 3, costs(), &sends);
    assert_eq!(shared, [2 * length + rest; 2]);
    assert_eq!(arrivals(Fidelity::LogGp, "star", 3, costs(), &sends), [length + rest - 1_000; 2]);
}

/// A flow that joins halves the rate from then on; when the first is done, the other has it all.
#[test]
fn flows_join_and_leave() {
    let second = SECOND_PS;
    let sends = [(0, 0, 2, 1000 * MB), (second / 2, 1, 2, 1000 * MB)];
    let rest = 2_000 + 7_000 + 2_000;
    let found = arrivals(Fidelity::Flow, "star", 3, costs(), &sends);
    // 500 MB alone; then 500 MB of each in a second; then the second's last 500 MB alone.
    assert_eq!(found, [second + second / 2 + rest, 2 * second + rest]);
}

/// Many flows in a torus, beginning at different times: what is recomputed in part equals what is
/// computed as a whole, and no byte is lost: with unit rates the sum of (rate · time) is the bytes.
#[test]
fn incremental_flows_equal_recomputed_ones() {
    let random = crate::random::Random::new(5);
    let below = |bound, at| random.below(bound, 0, crate::random::Stream::Workload, at);
    let mut sends: Vec<(u64, u32, u32, u64)> = (0..200)
        .map(|at| {
            let from = below(27, 5 * at) as u32;
            let to = (from + 1 + below(26, 5 * at + 1) as u32) % 27;
            (below(20, 5 * at + 2) * SECOND_PS / 40, from, to, (1 + below(9, 5 * at + 3)) * 10 * MB)
        })
        .collect();
    sends.sort_unstable();
    let found = arrivals(Fidelity::Flow, "torus:3x3x3", 27, costs(), &sends);
    let expected = fluid(&sends);
    for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let difference = (*found as f64 / SECOND_PS as f64 - expected).abs();
        assert!(difference < 1e-6, "flow {number}: {found} ps and {expected} s");
    }
}

/// The same by brute force: between two events, all rates are computed anew by raising all flows
/// in small shares until links are full.
fn fluid(sends: &[(u64, u32, u32, u64)]) -> Vec<f64> {
    let topology = topology::parse("torus:3x3x3").unwrap().of(27).unwrap();
    let routes: Vec<Vec<u32>> = sends
        .iter()
        .map(|(_, from, to, _)| {
            let mut links = vec![*from, 27 + to];
            topology.walk(*from, *to, |link| links.push(54 + link));
            links
        })
        .collect();
    let mut left: Vec<f64> = sends.iter().map(|send| send.3 as f64).collect();
    let mut done = vec![f64::NAN; sends.len()];
    let mut now = 0.0;
    loop {
        let begins = |number: usize| sends[number].0 as f64 / SECOND_PS as f64;
        let running: Vec<usize> =
            (0..sends.len()).filter(|flow| begins(*flow) <= now + 1e-12 && done[*flow].is_nan()).collect();
        let next_begin =
            (0..sends.len()).map(begins).filter(|begin| *begin > now + 1e-12).fold(f64::INFINITY, f64::min);
        if running.is_empty() && next_begin.is_infinite() {
            break;
        }
        let mut rates = vec![f64::NAN; sends.len()];
        while running.iter().any(|flow| rates[*flow].is_nan()) {
            let share = |link: u32| {
                let on: Vec<usize> =
                    running.iter().copied().filter(|flow| routes[*flow].contains(&link)).collect();
                let used: f64 = on.iter().map(|flow| rates[*flow]).filter(|rate| !rate.is_nan()).sum();
                let open = on.iter().filter(|flow| rates[**flow].is_nan()).count();
                if open == 0 { f64::INFINITY } else { (1e9 - used) / open as f64 }
            };
            let shares: Vec<f64> = (0..54 + 27 * 6).map(share).collect();
            let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
            for flow in &running {
                let held = routes[*flow].iter().any(|link| shares[*link as usize] <= least * (1.0 + 1e-12));
                if rates[*flow].is_nan() && held {
                    rates[*flow] = least;
                }
            }
        }
        let end = running.iter().map(|flow| now + left[*flow] / rates[*flow]).fold(next_begin, f64::min);
        for flow in running {
            left[flow] -= rates[flow] * (end - now);
            if left[flow] < 1e-3 {
                let (_, from, to, _) = sends[flow];
                done[flow] = end
                    + (2_000.0 + 7_000.0 + 2_000.0 + 100.0 * topology.hops(from, to) as f64)
                        / SECOND_PS as f64;
            }
        }
        now = end;
    }
    done
}

/// At fidelity `hop` a link serves in the order of arrival; at `path` in the order of sending.
#[test]
fn hop_serves_in_the_order_of_arrival() {
    let mut slow = costs();
    slow.hop_ps = 10 * SECOND_PS;
    // On a ring of 8: node 0 sends to 3 first, but 2's message reaches the link from 2 to 3 first.
    let sends = [(0, 0, 3, 1000 * MB), (SECOND_PS, 2, 3, 1000 * MB)];
    let hop = arrivals(Fidelity::Hop, "torus:8", 8, slow, &sends);
    let path = arrivals(Fidelity::Path, "torus:8", 8, slow, &sends);
    assert!(hop[1] < hop[0] && hop[1] < path[1], "{hop:?} {path:?}");
}
