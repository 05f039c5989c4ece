//! The nodes' disks: one request after the other, behind a page cache that takes writes until its
//! dirty limit.
//!
//! A write fills the page cache at the speed of memory, while the disk empties it. At the dirty
//! limit it goes on at the disk's speed. Reads come before write-back, which waits meanwhile. The
//! level of dirty bytes is exact at all times: it falls linearly between requests.

use crate::time::Rate;

/// What a disk and its page cache can do.
#[derive(Clone, Copy, Debug)]
pub struct DiskCosts {
    /// From the disk.
    pub read: Rate,
    /// To the disk.
    pub write: Rate,
    /// Into the page cache and out of it.
    pub memory: Rate,
    /// Dirty bytes that a node may have; 0: writes go to the disk at once.
    pub dirty_max: u64,
    /// Before a request's first byte.
    pub latency_ps: u64,
}

/// The disks of all nodes, as rows.
pub struct Disks {
    costs: DiskCosts,
    /// By node: how much longer each byte takes than on a typical disk. Empty: no node differs.
    stretch: Vec<f32>,
    /// By node: until when the disk reads or writes on behalf of a request.
    free_ps: Vec<u64>,
    /// By node: dirty bytes, and when there were so many. Empty without a page cache.
    dirty: Vec<(u64, u64)>,
}

impl Disks {
    /// Idle disks. `stretch` is by node, or empty if all are alike; each is positive.
    pub fn new(nodes: u32, costs: DiskCosts, stretch: Vec<f32>) -> Disks {
        debug_assert!(stretch.is_empty() || stretch.len() == nodes as usize);
        let dirty = if costs.dirty_max == 0 { Vec::new() } else { vec![(0, 0); nodes as usize] };
        Disks { costs, stretch, free_ps: vec![0; nodes as usize], dirty }
    }

    /// How much longer a byte takes on this node than on a typical one.
    pub fn stretch(&self, node: u32) -> f64 {
        self.stretch.get(node as usize).map_or(1.0, |stretch| f64::from(*stretch))
    }

    fn of(&self, rate: Rate, node: u32, noise: f64) -> Rate {
        let factor = self.stretch(node) * noise;
        if factor == 1.0 { rate } else { rate.stretched(factor) }
    }

    /// When a write of `bytes` that comes at `now_ps` returns. `copy` is what each byte takes
    /// before it reaches the page cache (FUSE); `noise` multiplies the disk's time.
    pub fn write(&mut self, now_ps: u64, node: u32, bytes: u64, copy: Rate, noise: f64) -> u64 {
        let disk = self.of(self.costs.write, node, noise);
        let start = now_ps.max(self.free_ps[node as usize]);
        let fill = self.costs.memory.then(copy);
        let end = if self.dirty.is_empty() || fill >= disk {
            // Bytes come no faster than the disk takes them, or have no other place.
            start.saturating_add(self.costs.latency_ps + fill.slower(disk).time_ps(bytes))
        } else {
            let dirty = self.dirty_at(start, node);
            let room = self.costs.dirty_max.saturating_sub(dirty) as f64;
            // While `x` bytes come in, the disk takes x · fill / disk of them.
            let net = 1.0 - fill.time_ps(1 << 30) as f64 / disk.time_ps(1 << 30).max(1) as f64;
            let quick = ((room / net) as u64).min(bytes);
            let quick_ps = fill.time_ps(quick);
            let slow_ps = disk.time_ps(bytes - quick);
            let drained = disk.bytes(quick_ps.saturating_add(slow_ps));
            let left = (dirty + bytes).saturating_sub(drained).min(self.costs.dirty_max.max(dirty));
            let end = start.saturating_add(quick_ps).saturating_add(slow_ps);
            self.dirty[node as usize] = (left, end);
            end
        };
        self.free_ps[node as usize] = end;
        end
    }

    /// When a read from the disk that comes at `now_ps` has its last byte.
    pub fn read(&mut self, now_ps: u64, node: u32, bytes: u64, copy: Rate, noise: f64) -> u64 {
        let disk = self.of(self.costs.read, node, noise);
        let start = now_ps.max(self.free_ps[node as usize]);
        let length = self.costs.latency_ps + disk.slower(self.costs.memory.then(copy)).time_ps(bytes);
        if !self.dirty.is_empty() {
            let left = self.dirty_at(start, node);
            self.dirty[node as usize] = (left, start.saturating_add(length));
        }
        self.free_ps[node as usize] = start.saturating_add(length);
        start.saturating_add(length)
    }

    /// When a read from the page cache has its last byte.
    pub fn read_cached(&self, now_ps: u64, bytes: u64, copy: Rate) -> u64 {
        now_ps.saturating_add(self.costs.memory.then(copy).time_ps(bytes))
    }

    /// When the dirty bytes of a node are on its disk.
    pub fn sync(&mut self, now_ps: u64, node: u32) -> u64 {
        let start = now_ps.max(self.free_ps[node as usize]);
        if self.dirty.is_empty() {
            return start;
        }
        let left = self.dirty_at(start, node);
        let end = start.saturating_add(self.of(self.costs.write, node, 1.0).time_ps(left));
        self.dirty[node as usize] = (0, end);
        self.free_ps[node as usize] = end;
        end
    }

    /// Dirty bytes of a node at a time that is not before its last request's end.
    fn dirty_at(&self, now_ps: u64, node: u32) -> u64 {
        let (bytes, at_ps) = self.dirty[node as usize];
        let passed = now_ps.saturating_sub(at_ps);
        bytes.saturating_sub(self.of(self.costs.write, node, 1.0).bytes(passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{SECOND_PS, seconds};

    const MB: u64 = 1_000_000;

    fn disks(dirty_max: u64) -> Disks {
        let costs = DiskCosts {
            read: Rate::per_second(200e6),
            write: Rate::per_second(100e6),
            memory: Rate::per_second(1000e6),
            dirty_max,
            latency_ps: 0,
        };
        Disks::new(2, costs, vec![1.0, 2.0])
    }

    fn check(found_ps: u64, expected_s: f64) {
        assert!((seconds(found_ps) - expected_s).abs() < 1e-6, "{} s, not {expected_s}", seconds(found_ps));
    }

    #[test]
    fn without_a_page_cache_the_disk_decides() {
        let mut disks = disks(0);
        check(disks.write(0, 0, 100 * MB, Rate::INFINITE, 1.0), 1.0);
        check(disks.write(0, 0, 100 * MB, Rate::INFINITE, 1.0), 2.0);
        check(disks.write(0, 1, 100 * MB, Rate::INFINITE, 1.0), 2.0);
        check(disks.read(0, 0, 200 * MB, Rate::INFINITE, 1.0), 3.0);
        check(disks.sync(0, 0), 3.0);
    }

    /// With memory M, disk B and limit D: D / (1 - B/M) bytes go at memory speed, the rest at the
    /// disk's; and then all of it takes bytes / B to be on the disk, whatever the limit.
    #[test]
    fn the_page_cache_follows_its_closed_form() {
        for limit in [90 * MB, 450 * MB, 9_000 * MB] {
            let mut disks = disks(limit);
            let bytes = 1_000 * MB;
            let quick = (limit as f64 / 0.9).min(bytes as f64);
            let expected = quick / 1000e6 + (bytes as f64 - quick) / 100e6;
            let end = disks.write(0, 0, bytes, Rate::INFINITE, 1.0);
            check(end, expected);
            check(disks.sync(end, 0), 10.0);
        }
    }

    /// Conservation: whatever the requests, the disk has needed exactly bytes / B in all.
    #[test]
    fn no_dirty_byte_is_lost() {
        let mut disks = disks(300 * MB);
        let mut now = 0;
        let mut idle = 0.0;
        for step in 0..50_u64 {
            let end = disks.write(now, 0, (1 + step % 7) * 40 * MB, Rate::INFINITE, 1.0);
            now = end;
            if step % 10 == 9 {
                // Long enough to empty the cache; the disk idles for the rest.
                let synced = disks.sync(now, 0);
                now = synced + SECOND_PS;
                idle += 1.0;
            }
        }
        let bytes: u64 = (0..50_u64).map(|step| (1 + step % 7) * 40 * MB).sum();
        check(now, bytes as f64 / 100e6 + idle);
    }

    #[test]
    fn fuse_in_front_of_a_fast_disk_decides() {
        let mut disks = disks(300 * MB);
        // 1 / (1/1000 + 1/50) MB/s
        check(disks.write(0, 0, 100 * MB, Rate::per_second(50e6), 1.0), 2.1);
        check(disks.read_cached(0, 100 * MB, Rate::per_second(50e6)), 2.1);
    }
}
