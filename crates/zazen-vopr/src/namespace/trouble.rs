//! Faults of a namespace, and the end of them; what must hold at the end.
//!
//! A fault comes only where the level promises to survive it: a power failure and a failed sync at
//! `synced`; at `memory` a node dies only while every partition has its backup, one at a time; a
//! disk rots, or is put back or emptied, only while others have everything.

use super::host::Host;
use super::world::{Event, World};
use crate::scheduler::MS;
use zazen_env::SimDisk;
use zazen_namespace::node::Level;
use zazen_namespace::{NodeNo, PartitionNo};

impl World {
    /// Whether every node is up, and every partition has its backups.
    fn is_whole(&self) -> bool {
        let wanted = usize::from(self.profile.replicas.min(2) - 1);
        let up = self.hosts.iter().filter(|host| !host.is_gone).all(|host| {
            host.node.as_ref().is_some_and(|node| node.map().lives(node.number(), node.incarnation()))
        });
        let kept = self
            .map()
            .is_some_and(|map| map.partitions.iter().all(|keepers| keepers.backups.len() >= wanted));
        up && kept && !self.mourns()
    }

    /// Whether one host may be lost for good: no other is about to lose its lease, which would be a
    /// second loss at the same time.
    fn may_lose(&self) -> bool {
        let has_lease = |host: &Host| host.node.as_ref().is_some_and(|node| node.status().has_lease);
        self.is_whole() && self.parted.is_empty() && self.hosts.iter().all(has_lease)
    }

    /// Whether a host is lost for good, and the map counts on it still: another loss at this time
    /// is a second one, which two replicas do not survive.
    pub(crate) fn mourns(&self) -> bool {
        let counts = |node: &NodeNo| {
            self.map().is_some_and(|map| map.member(*node).is_some_and(|member| member.is_in()))
        };
        self.hosts.iter().filter_map(|host| host.gone_as.as_ref()).any(counts)
    }

    pub(crate) fn trouble(&mut self) {
        if self.calm {
            return;
        }
        if self.hosts.iter().any(|host| host.is_gone) && !self.is_whole() {
            return;
        }
        let hosts = self.hosts.len() as u64;
        let host = self.random.below(hosts) as usize;
        let p = self.profile;
        let has_backups = p.replicas > 1;
        let careful = p.level == Level::Memory || p.alone;
        let mortal = !careful || has_backups && self.is_whole();
        let for_ns = (100 + self.random.below(6_000)) * MS;
        let is_up = self.hosts[host].node.is_some();
        let leads = |at: &Host| at.node.as_ref().is_some_and(|node| node.status().leads);
        let leader = self.hosts.iter().position(leads).filter(|_| p.elections);
        if let Some(leader) = leader.filter(|_| self.random.percent(50)) {
            self.die(leader, false, for_ns);
            return;
        }
        match self.random.below(10) {
            0 | 1 if p.kills && mortal && is_up => {
                let power = p.power && self.random.percent(50);
                self.die(host, power, for_ns);
            }
            2 if p.kills && is_up && !careful => {
                let step = self.hosts[host].disk.steps() + 1 + self.random.below(40);
                self.hosts[host].disk.crash_at(step);
            }
            3 if p.kills && !careful && is_up && self.random.percent(70) => {
                for host in 0..self.hosts.len() {
                    if self.hosts[host].node.is_some() {
                        let power = p.power && self.random.percent(80);
                        let for_ns = (100 + self.random.below(2_000)) * MS;
                        self.die(host, power, for_ns);
                    }
                }
            }
            4 | 5 if p.parts => {
                self.faults += 1;
                let (other, both) = (self.random.below(hosts) as usize, self.random.percent(60));
                self.tell(|| format!("hosts {host} and {other} are parted, both ways {both}"));
                let others = 0..self.hosts.len();
                let all = self.random.percent(40);
                for other in others.filter(|at| *at != host && (all || *at == other)) {
                    self.part(host, other, for_ns);
                    if both {
                        self.part(other, host, for_ns);
                    }
                }
            }
            6 if p.pauses && is_up => {
                self.faults += 1;
                // Up to ten leases.
                let most = if self.random.percent(20) { 30_000 } else { 6_000 };
                let for_ns = (50 + self.random.below(most)) * MS;
                let left_ns = p.calm_ns.saturating_sub(self.schedule.now_ns());
                self.tell(|| format!("host {host} stands still for {} ms", for_ns / MS));
                self.hosts[host].paused_ns = self.schedule.now_ns() + for_ns.min(left_ns);
            }
            6 | 7 if p.failed_syncs && is_up => {
                self.faults += 1;
                self.tell(|| format!("a sync of host {host} will fail"));
                self.hosts[host].disk.fail_next_sync();
                if p.power && self.random.percent(60) {
                    // What a failed sync loses shows when the power fails.
                    let soon = self.random.below(400) * MS;
                    self.schedule.after(soon, Event::Power { host });
                }
            }
            8 if p.full_disks && is_up && mortal && p.level != Level::Memory => {
                self.faults += 1;
                let used = self.hosts[host].disk.used_bytes();
                let room = self.random.below(20_000);
                self.tell(|| format!("the disk of host {host} is full"));
                self.hosts[host].disk.set_capacity(used + room);
            }
            8 if p.gone && is_up && self.may_lose() && self.hosts.iter().all(|host| !host.is_gone) => {
                self.faults += 1;
                self.tell(|| format!("host {host} is lost for good"));
                self.hosts[host].gone_as = self.hosts[host].node.as_ref().map(|node| node.number());
                self.hosts[host].stop(true);
                self.hosts[host].is_gone = true;
                // No other dies at a later write: that would be a second loss at the same time.
                self.hosts.iter().for_each(|other| other.disk.crash_at(u64::MAX));
            }
            9 if self.is_whole() && (has_backups || p.rot) && is_up => self.spoil(host),
            _ => {
                // The time of day jumps.
                let by_ns = self.random.below(7_200_000) as i64 * MS as i64 - 3_600_000 * MS as i64;
                self.hosts[host].wall_offset_ns += by_ns;
            }
        }
    }

    /// A node dies, and its disk is not what it was.
    fn spoil(&mut self, host: usize) {
        let p = self.profile;
        let number = self.hosts[host].node.as_ref().map(|node| node.number());
        // A steward that forgets its vote may give it twice: its disk must not be an old one.
        let is_steward = number.is_none_or(|number| self.stewards.contains(&number));
        let draw = self.random.next_u64();
        let for_ns = (100 + self.random.below(3_000)) * MS;
        if p.rot {
            self.die(host, false, for_ns);
            self.spoiled = true;
            let disk = &self.hosts[host].disk;
            let number = |name: &str| name.strip_prefix("log-").and_then(|of| of.parse::<u64>().ok());
            let logs = disk.files().into_iter().filter_map(|(name, _)| Some((number(&name)?, name)));
            // Damage at the end of the log cannot be told from a torn end: see the format. With one
            // replica, nobody else has what is lost there.
            let newest = logs.max().map(|(_, name)| name);
            let files: Vec<(String, u64)> = disk
                .files()
                .into_iter()
                .filter(|(name, bytes)| *bytes > 0 && (name.starts_with("log") || name.starts_with("part")))
                .filter(|(name, _)| p.replicas > 1 || Some(name) != newest.as_ref())
                .collect();
            if let Some((name, bytes)) = files.get(draw as usize % files.len().max(1)) {
                let at = (draw >> 20) % bytes;
                disk.tamper(name, |content| content[at as usize] ^= 1 << (draw >> 60 & 7));
                let line = format!("byte {at} of {name} of host {host} rots");
                self.tell(|| line);
            }
        } else if p.old_disks && !is_steward {
            self.spoiled = true;
            let backup = self.hosts[host].backup.take();
            match (draw % 3, backup) {
                (0, _) => {
                    self.die(host, false, for_ns);
                    self.tell(|| format!("the disk of host {host} is empty"));
                    self.hosts[host].disk = SimDisk::new(draw, 1 << 40);
                }
                (_, Some(old)) => {
                    self.die(host, false, for_ns);
                    self.tell(|| format!("the disk of host {host} is an old one"));
                    self.hosts[host].disk = old.kill();
                }
                _ => self.hosts[host].backup = Some(self.hosts[host].disk.fork(draw)),
            }
        }
    }

    pub(crate) fn calm_down(&mut self) {
        self.tell(|| "the faults end".to_owned());
        self.calm = true;
        self.heal();
        for host in &mut self.hosts {
            host.paused_ns = host.paused_ns.min(self.schedule.now_ns());
            host.disk.set_capacity(1 << 40);
        }
    }

    /// What must hold at the end.
    pub(crate) fn judge(&mut self) {
        if self.violation.is_some() {
            return;
        }
        if let Some(what) = self.history.contradiction() {
            return self.fail(what);
        }
        if let Some(what) = self.lock_of_nobody() {
            return self.fail(what);
        }
        // What only a disk had that went bad is answered with EIO, for good.
        let lost = self.spoiled && self.profile.replicas == 1;
        if let Some(at) = self
            .clients
            .iter()
            .position(|client| client.calm_answers < 20 && !lost && !self.hosts[client.host].is_gone)
        {
            let nodes = self.hosts.iter().map(|host| host.node.as_ref().map(|node| node.status()));
            let nodes: Vec<_> = nodes.collect();
            self.tell(|| format!("{nodes:?}"));
            let kept = self.map().map(|map| map.partitions.clone());
            self.tell(|| format!("{kept:?}"));
            return self.fail(format!("no progress: client {at} gets no answers"));
        }
        let Some(map) = self.map().cloned() else { return self.fail("no progress: no node".to_owned()) };
        if let Some(leaver) = self.leaver.filter(|leaver| leaver.back_ns.is_none() && !leaver.has_left) {
            return self.fail(format!("no progress: host {} does not get away", leaver.host));
        }
        if map.epoch.0 > 5_000 {
            return self.fail(format!("no progress: the map has changed {} times", map.epoch));
        }
        let lives = |node: &NodeNo| map.member(*node).is_some_and(|member| member.is_in());
        let others = map.nodes.iter().filter(|member| member.is_in() && !map.stewards.contains(&member.node));
        if others.count() > 0 && !map.stewards.iter().all(lives) {
            return self.fail(format!("no progress: a steward of {:?} is not replaced", map.stewards));
        }
        for (number, keepers) in (0..).zip(&map.partitions) {
            let partition = PartitionNo(number);
            let wanted = map.wanted(partition);
            let backups = wanted.len().saturating_sub(1).min(usize::from(map.synchronous));
            let is_right = keepers.backups.len() >= backups && wanted.first() == Some(&keepers.primary);
            if !is_right && self.profile.replicas > 1 {
                return self.fail(format!(
                    "no progress: partition {number} is kept by {} and {:?}, wanted {wanted:?}",
                    keepers.primary, keepers.backups
                ));
            }
            let all = [keepers.primary].into_iter().chain(keepers.backups.iter().copied());
            let copies: Vec<_> = all
                .filter_map(|node| {
                    let host = self.hosts.iter().filter_map(|host| host.node.as_ref());
                    let node = host.into_iter().find(|one| one.number() == node)?;
                    Some((node.position(partition)?, node.tables(partition)?.digest()))
                })
                .collect();
            let mut pairs = copies.iter().zip(copies.iter().skip(1));
            if pairs.any(|(left, right)| left.0 == right.0 && left.1 != right.1) {
                return self.fail(format!("replicas differ: partition {number}: {copies:?}"));
            }
        }
    }
}
