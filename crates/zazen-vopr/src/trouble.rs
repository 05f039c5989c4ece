//! Faults: what happens to nodes, links and the backing store, and how they come back.

use crate::content;
use crate::world::{Event, MS, Trouble, World};
use zazen_core::ErrorKind;
use zazen_env::SimDisk;

impl World {
    pub(crate) fn plan_trouble(&mut self) {
        let profile = self.profile;
        let hosts = (profile.nodes + profile.writers) as u64;
        let mut plan: Vec<Trouble> = Vec::new();
        let random = &mut self.random;
        let node = |random: &mut zazen_env::SeededRandom| random.below(profile.nodes as u64) as usize;
        let steps = |random: &mut zazen_env::SeededRandom| random.below(3) * random.below(60);
        for _ in 0..1 + random.below(3) {
            if profile.kills {
                plan.push(Trouble::Crash { node: node(random), power: false, in_steps: steps(random) });
            }
            if profile.power_failures {
                plan.push(Trouble::Crash { node: node(random), power: true, in_steps: steps(random) });
            }
            if profile.stops {
                let sync_fails = profile.disk_errors && random.percent(40);
                plan.push(Trouble::Stop { node: node(random), power: random.percent(60), sync_fails });
            }
            if profile.partitions {
                let (from, to) = (random.below(hosts) as usize, random.below(hosts) as usize);
                let (both, for_ns) = (random.percent(50), random.below(1_500) * MS);
                plan.push(Trouble::Part { from, to, both, for_ns });
            }
            if profile.outages {
                let kind = if random.percent(50) { ErrorKind::Unavailable } else { ErrorKind::TimedOut };
                plan.push(Trouble::Outage { for_ns: random.below(1_200) * MS, kind });
            }
            if profile.disk_errors {
                let (in_steps, of_read) = (1 + random.below(80), random.percent(50));
                plan.push(Trouble::DiskError { node: node(random), in_steps, of_read });
            }
            if profile.rot {
                plan.push(Trouble::Rot { node: node(random), draw: random.next_u64() });
            }
            if profile.skew_ns > 0 {
                plan.push(Trouble::Jump { node: node(random), by_ns: random.below(20_000) * MS });
            }
            if random.percent(25) {
                let dataset = random.below(profile.datasets as u64) as usize;
                plan.push(Trouble::Evict { node: node(random), dataset });
            }
            if random.percent(25) {
                let dataset = random.below(profile.datasets as u64) as usize;
                plan.push(Trouble::Pin { node: node(random), dataset, pinned: random.percent(70) });
            }
        }
        for trouble in plan {
            let at_ns = profile.calm_ns / 10 + self.random.below(profile.calm_ns * 9 / 10);
            self.schedule.at(at_ns, Event::Trouble(trouble));
        }
    }

    pub(crate) fn trouble(&mut self, trouble: Trouble) {
        let now_ns = self.now_ns();
        if self.calm {
            return;
        }
        self.tell(|| format!("fault: {trouble:?}"));
        match trouble {
            Trouble::Crash { node, power, in_steps } => {
                if self.nodes[node].store.is_none() {
                    return;
                }
                self.nodes[node].crash_is_power = power;
                match in_steps {
                    0 => self.disk_died(node),
                    _ => self.nodes[node].disk.crash_at(self.nodes[node].disk.steps() + in_steps),
                }
            }
            Trouble::Stop { node, power, sync_fails } => self.stop(node, power, sync_fails),
            Trouble::Part { from, to, both, for_ns } => {
                self.net.part(from, to, now_ns + for_ns);
                if both {
                    self.net.part(to, from, now_ns + for_ns);
                }
            }
            Trouble::Outage { for_ns, kind } => self.backing.begin_outage(now_ns, now_ns + for_ns, kind),
            Trouble::DiskError { node, in_steps, of_read } => {
                let at = &mut self.nodes[node];
                at.tainted |= !of_read;
                at.forgot_ns = now_ns;
                self.checks.excuse_node(node);
                match of_read {
                    true => at.disk.fail_read_at(at.disk.reads() + in_steps),
                    false => at.disk.fail_at(at.disk.steps() + in_steps),
                }
                at.tainted = true;
            }
            Trouble::Rot { node, draw } => self.rot(node, draw),
            Trouble::Jump { node, by_ns } => self.nodes[node].time.jump(by_ns),
            Trouble::Evict { node, dataset } => {
                self.nodes[node].forgot_ns = now_ns;
                self.checks.excuse_node(node);
                if let (Some(store), Ok(series)) = (self.nodes[node].store.clone(), content::series(dataset))
                {
                    let _ = store.evict(&series, None);
                }
                self.evicted_by_hand(node);
            }
            Trouble::Pin { node, dataset, pinned } => {
                if let (Some(store), Ok(series)) = (self.nodes[node].store.clone(), content::series(dataset))
                {
                    let _ = store.pin(&series, pinned);
                }
            }
        }
    }

    /// Flips a bit of a frame's bytes on a disk.
    fn rot(&mut self, node: usize, draw: u64) {
        let at = &mut self.nodes[node];
        let files = at.disk.files();
        let data: Vec<&(String, u64)> = files
            .iter()
            .filter(|(path, len)| *len > 0 && (path.ends_with(".dcd") || path.contains("/segments/")))
            .collect();
        if data.is_empty() {
            return;
        }
        let (path, len) = data[(draw % data.len() as u64) as usize];
        let bit = (draw >> 8) % (len * 8);
        at.disk.tamper(path, |bytes| bytes[(bit / 8) as usize] ^= 1 << (bit % 8));
        at.tainted = true;
        self.checks.excuse_node(node);
    }

    /// A daemon's disk died under it, or the daemon is killed between two events.
    pub(crate) fn disk_died(&mut self, node: usize) {
        let now_ns = self.now_ns();
        let power = self.nodes[node].crash_is_power;
        if self.nodes[node].disk.is_dead() && self.profile.is_tight() {
            // It may have died while it made room.
            self.checks.excuse_node(node);
        }
        self.tell(|| format!("node {node}: killed{}", if power { " by a power failure" } else { "" }));
        self.ends(node, if power { SimDisk::power_fail } else { SimDisk::kill });
        if power {
            // What was not synced may be gone.
            (self.nodes[node].forgot_ns, self.nodes[node].has_lost_power) = (now_ns, true);
            self.checks.excuse_node(node);
        }
        self.comes_back(node);
    }

    fn stop(&mut self, node: usize, power: bool, sync_fails: bool) {
        let Some(store) = self.nodes[node].store.clone() else { return };
        if sync_fails {
            self.nodes[node].disk.fail_next_sync();
        }
        let synced = store.sync().is_ok();
        self.tell(|| format!("node {node}: stops, synced: {synced}, then loses power: {power}"));
        drop(store);
        if self.nodes[node].disk.is_dead() {
            return self.disk_died(node);
        }
        // After a sync the power may fail: nothing is forgotten.
        self.ends(node, if power { SimDisk::power_fail } else { SimDisk::kill });
        if !synced {
            (self.nodes[node].forgot_ns, self.nodes[node].has_lost_power) = (self.now_ns(), true);
            self.checks.excuse_node(node);
        }
        self.comes_back(node);
    }

    fn ends(&mut self, node: usize, survive: fn(&SimDisk) -> SimDisk) {
        self.nodes[node].end(survive);
        self.forget_holdings(node);
        for conn in self.net.of_node(node) {
            self.reset(conn);
        }
    }

    fn comes_back(&mut self, node: usize) {
        let pause = 5 * MS + self.random.below(700 * MS);
        self.schedule.after(pause, Event::Start { node });
    }

    pub(crate) fn start_daemon(&mut self, node: usize) {
        if self.nodes[node].store.is_some() {
            return;
        }
        let started = self.nodes[node].start(self.mutant);
        if self.nodes[node].disk.is_dead() {
            drop(started);
            return self.disk_died(node);
        }
        self.tell(|| format!("node {node}: started: {:?}", started.as_ref().map(|_| ())));
        match started {
            Ok(_) => self.check_start(node),
            Err(error) if !self.nodes[node].tainted => {
                self.checks.fail(format!("node {node} does not start: {error}"));
            }
            Err(_) => self.comes_back(node),
        }
    }

    fn check_start(&mut self, node: usize) {
        let Some(store) = self.nodes[node].store.clone() else { return };
        let on_disk = self.nodes[node].disk.used_bytes();
        let (space, budget) = (store.space(), self.nodes[node].budget());
        if space.used > budget {
            self.checks.fail(format!("budget: node {node} starts with {on_disk} bytes on disk, {space:?}"));
        }
        self.check_memory(node, "after a start");
    }

    /// The faults end: whoever is down comes back, and nothing new happens.
    pub(crate) fn calm_down(&mut self) {
        let now_ns = self.now_ns();
        self.calm = true;
        self.net.calm_down();
        self.backing.recover(now_ns);
        for node in &self.nodes {
            node.disk.crash_at(u64::MAX);
            node.disk.fail_at(u64::MAX);
            node.disk.fail_read_at(u64::MAX);
        }
    }
}
