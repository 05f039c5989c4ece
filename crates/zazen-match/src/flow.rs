//! The least that the fullest rank can read if files may be cut, by maximum flow.

use crate::problem::Problem;

/// The bound for maps in which each file that a rank holds locally is read locally: no such map
/// gives every rank fewer bytes. Bytes; the largest file, which cannot be cut, counts too.
///
/// A set of nodes has to read the files that lie nowhere else, so its ranks have these bytes
/// divided by their number. The flow finds the worst set: it begins with a target per rank, and as
/// long as the flow is too small, its minimum cut is a set with a higher quotient (Newton's
/// method).
pub(crate) fn local_bound(problem: &Problem) -> u64 {
    let mut target = least(problem);
    loop {
        let mut network = Network::new(problem, target);
        network.fill();
        match network.overloaded() {
            Some(higher) if higher > target => target = higher,
            _ => return target,
        }
    }
}

/// The bound for any map: the mean per rank, and the largest file.
pub(crate) fn least(problem: &Problem) -> u64 {
    let all: u64 = (0..problem.files()).map(|file| problem.bytes_of(file)).sum();
    let largest = (0..problem.files()).map(|file| problem.bytes_of(file)).max().unwrap_or(0);
    largest.max(all.div_ceil(problem.ranks() as u64))
}

/// Bytes flow from files to the nodes that hold them. Nodes have room for `target` bytes a rank.
struct Network<'a> {
    problem: &'a Problem,
    /// By file: bytes that no node has yet.
    left: Vec<u64>,
    /// By file: its holders, and how many of its bytes each has.
    at: Vec<Vec<(u32, u64)>>,
    /// By node: room in bytes.
    room: Vec<u64>,
    /// By node: the files of which it has bytes, and maybe some of which it had.
    has: Vec<Vec<u32>>,
    /// By node: its distance from the nodes with room, in this phase. 0 has room.
    distance: Vec<u32>,
}

const FAR: u32 = u32::MAX;

impl<'a> Network<'a> {
    fn new(problem: &'a Problem, target: u64) -> Self {
        let files = problem.files();
        let at = (0..files).map(|file| problem.holders_of(file).iter().map(|node| (*node, 0)).collect());
        let held = |file: usize| if problem.holders_of(file).is_empty() { 0 } else { problem.bytes_of(file) };
        Network {
            problem,
            left: (0..files).map(held).collect(),
            at: at.collect(),
            room: (0..problem.nodes())
                .map(|node| target.saturating_mul(problem.ranks_of(node).len() as u64))
                .collect(),
            has: vec![Vec::new(); problem.nodes()],
            distance: vec![0; problem.nodes()],
        }
    }

    /// The maximum flow: first what fits without moving anything, largest file first, to the holder
    /// with the most room; then along shortest paths until there is none (Dinic).
    fn fill(&mut self) {
        let mut order: Vec<usize> = (0..self.left.len()).collect();
        order.sort_by_key(|file| std::cmp::Reverse(self.left[*file]));
        for file in order {
            while self.left[file] > 0 {
                let most =
                    (0..self.at[file].len()).max_by_key(|place| self.room[self.at[file][*place].0 as usize]);
                let Some(place) = most else { break };
                let node = self.at[file][place].0 as usize;
                let bytes = self.left[file].min(self.room[node]);
                if bytes == 0 {
                    break;
                }
                self.left[file] -= bytes;
                self.give(file, place, bytes);
                self.room[node] -= bytes;
            }
        }
        while self.measure() {
            // By node: how many of its files this phase has tried, and how many it had at its
            // begin.
            let mut next = vec![0; self.room.len()];
            let until: Vec<usize> = self.has.iter().map(Vec::len).collect();
            let mut path = Vec::new();
            for file in 0..self.left.len() {
                while self.left[file] > 0 && self.find(file, &mut next, &until, &mut path) {
                    self.shift(file, &path);
                }
            }
        }
    }

    fn give(&mut self, file: usize, place: usize, bytes: u64) {
        let (node, has) = &mut self.at[file][place];
        if *has == 0 {
            self.has[*node as usize].push(file as u32);
        }
        *has += bytes;
    }

    /// Measures each node's distance from room, backwards. Whether a file with bytes left reaches
    /// any.
    fn measure(&mut self) -> bool {
        self.distance.fill(FAR);
        let mut queue: Vec<u32> = Vec::new();
        for (node, _) in self.room.iter().enumerate().filter(|(_, room)| **room > 0) {
            self.distance[node] = 0;
            queue.push(node as u32);
        }
        // A node can hand bytes on to any other holder of a file of which it has bytes.
        let (begin, files) = self.problem.files_by_node();
        let mut next = 0;
        while next < queue.len() {
            let node = queue[next] as usize;
            next += 1;
            for file in &files[begin[node] as usize..begin[node + 1] as usize] {
                for (other, has) in &self.at[*file as usize] {
                    if *has > 0 && self.distance[*other as usize] == FAR {
                        self.distance[*other as usize] = self.distance[node] + 1;
                        queue.push(*other);
                    }
                }
            }
        }
        let reaches =
            |file: usize| self.at[file].iter().any(|(node, _)| self.distance[*node as usize] != FAR);
        (0..self.left.len()).any(|file| self.left[file] > 0 && reaches(file))
    }

    /// Finds a path from `file` to a node with room: (file, place) pairs, each file going to that
    /// holder, and the next file leaving it. Each node is nearer to room than the one before.
    fn find(&self, file: usize, next: &mut [usize], until: &[usize], path: &mut Vec<(usize, usize)>) -> bool {
        path.clear();
        let mut moving = file;
        let mut above = FAR;
        loop {
            let open = |node: usize| match self.distance[node] {
                FAR => false,
                0 => self.room[node] > 0,
                distance => (above == FAR || distance + 1 == above) && next[node] < until[node],
            };
            let near = |node: usize| above == FAR || self.distance[node] < above;
            let place = (0..self.at[moving].len()).find(|place| {
                let node = self.at[moving][*place].0 as usize;
                near(node) && open(node)
            });
            if let Some(place) = place {
                path.push((moving, place));
                let node = self.at[moving][place].0 as usize;
                if self.distance[node] == 0 {
                    return true;
                }
            } else {
                // This file leads nowhere: its node tries the next one.
                match path.last() {
                    None => return false,
                    Some((file, place)) => next[self.at[*file][*place].0 as usize] += 1,
                }
            }
            // Take the next file of the last node, or leave this node.
            loop {
                let Some((file, place)) = path.last().copied() else { return false };
                let node = self.at[file][place].0 as usize;
                while next[node] < until[node] && self.has_of(self.has[node][next[node]] as usize, node) == 0
                {
                    next[node] += 1;
                }
                if next[node] < until[node] {
                    moving = self.has[node][next[node]] as usize;
                    above = self.distance[node];
                    break;
                }
                path.pop();
                match path.last() {
                    Some((file, place)) => next[self.at[*file][*place].0 as usize] += 1,
                    None => {
                        moving = file;
                        above = FAR;
                        break;
                    }
                }
            }
        }
    }

    /// The bytes of `file` that `node` has.
    fn has_of(&self, file: usize, node: usize) -> u64 {
        self.at[file].iter().find(|(holder, _)| *holder as usize == node).map_or(0, |(_, has)| *has)
    }

    /// Moves as many bytes along a path as all of it can.
    fn shift(&mut self, file: usize, path: &[(usize, usize)]) {
        let node_at = |network: &Self, step: usize| network.at[path[step].0][path[step].1].0 as usize;
        let mut bytes = self.left[file].min(self.room[node_at(self, path.len() - 1)]);
        for (step, (moving, _)) in path.iter().enumerate().skip(1) {
            bytes = bytes.min(self.has_of(*moving, node_at(self, step - 1)));
        }
        for step in (0..path.len()).rev() {
            if step > 0 {
                let leaves = node_at(self, step - 1) as u32;
                for (holder, has) in &mut self.at[path[step].0] {
                    if *holder == leaves {
                        *has -= bytes;
                    }
                }
            }
            self.give(path[step].0, path[step].1, bytes);
        }
        self.left[file] -= bytes;
        let last = node_at(self, path.len() - 1);
        self.room[last] -= bytes;
    }

    /// What the ranks have to read each, at least, that no path to room is left for: the bytes that
    /// lie on their nodes only, divided by their number. `None` if all bytes found room.
    fn overloaded(&self) -> Option<u64> {
        if self.left.iter().all(|left| *left == 0) {
            return None;
        }
        let full: u64 = (0..self.room.len())
            .filter(|node| self.distance[*node] == FAR)
            .map(|node| self.problem.ranks_of(node).len() as u64)
            .sum();
        let only = |file: &usize| {
            let holders = self.problem.holders_of(*file);
            !holders.is_empty() && holders.iter().all(|node| self.distance[*node as usize] == FAR)
        };
        let bytes: u64 = (0..self.left.len()).filter(only).map(|file| self.problem.bytes_of(file)).sum();
        (full > 0).then(|| bytes.div_ceil(full))
    }
}
