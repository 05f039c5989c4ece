//! The nodes' daemons: k workers take requests first come, first served.

/// When the workers of all nodes are free, as rows.
pub struct Daemons {
    workers: usize,
    free_ps: Vec<u64>,
}

impl Daemons {
    /// Idle daemons with at least one worker each.
    pub fn new(nodes: u32, workers: u32) -> Daemons {
        let workers = workers.max(1) as usize;
        Daemons { workers, free_ps: vec![0; nodes as usize * workers] }
    }

    /// When a request that comes at `now_ps` and takes `service_ps` begins and ends. Requests come
    /// in the order of their times: then this is exactly a FIFO queue with k servers.
    pub fn serve(&mut self, now_ps: u64, node: u32, service_ps: u64) -> (u64, u64) {
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
        (start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, Stream};
    use crate::time::{SECOND_PS, ps, seconds};

    /// The mean wait of a queue with Poisson arrivals at `load`, service 1 s, and `workers`.
    fn mean_wait_s(load: f64, workers: u32, service: impl Fn(u64) -> f64) -> f64 {
        let random = Random::new(11);
        let mut daemons = Daemons::new(1, workers);
        let (mut now, mut waited) = (0_u64, 0.0);
        let requests = 400_000;
        for number in 0..requests {
            now += ps(random.exponential(0, Stream::Workload, number) / (load * f64::from(workers)) * 1e-3);
            let (start, _) = daemons.serve(now, 0, ps(service(number) * 1e-3));
            waited += seconds(start - now) * 1e3;
        }
        waited / requests as f64
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
        let mut daemons = Daemons::new(2, 2);
        let second = SECOND_PS;
        let ends = [0, 0, 0, 1].map(|node| daemons.serve(0, node, second).1);
        assert_eq!(ends, [second, second, 2 * second, second]);
    }
}
