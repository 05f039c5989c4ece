//! The most local reads that rooms allow: a maximum-weight matching of items to nodes.
//!
//! An item weighs as much on a node as it has local reads there: 1 for a file on its holder, or the
//! number of time steps in which a block lies there. Weights are small integers, so the primal-dual
//! method ends after as many phases as the largest weight.

use crate::problem::NOBODY;

/// Items, the nodes where they weigh something, and the room of each node.
pub(crate) struct Weighted {
    /// The places of item i are `places[begin[i]..begin[i + 1]]`: (node, weight), weight > 0.
    pub(crate) begin: Vec<u32>,
    pub(crate) places: Vec<(u32, u32)>,
    /// By node: how many items it takes, at least 1.
    pub(crate) room: Vec<u32>,
}

/// The state of the primal-dual method.
///
/// `level[item]` + `price[node]` ≥ weight always holds. An item lies only where this is an
/// equation. A node with a price is full. All items without a node have the same level, the lowest
/// of all: when it reaches 0, no other map weighs more.
struct Search<'a> {
    problem: &'a Weighted,
    node_of: Vec<u32>,
    items_at: Vec<Vec<u32>>,
    level: Vec<u32>,
    price: Vec<u32>,
    /// By node: the search that reached it, and the item from which.
    reached: Vec<u32>,
    from: Vec<u32>,
    /// By node: whether a search in this phase failed here. Later searches in the phase fail, too.
    dead: Vec<bool>,
    search: u32,
    queue: Vec<u32>,
}

/// By item: its node, or [`NOBODY`]; the weights together are the largest possible. `begin_with`
/// may hold a map to begin with, in which each item that has a node has its largest weight there,
/// and this weight is the largest of all items; else it is empty.
pub(crate) fn heaviest(problem: &Weighted, begin_with: Vec<u32>) -> Vec<u32> {
    let items = problem.begin.len() - 1;
    let nodes = problem.room.len();
    let top = problem.places.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
    let node_of = if begin_with.is_empty() { vec![NOBODY; items] } else { begin_with };
    let mut items_at = vec![Vec::new(); nodes];
    for (item, node) in node_of.iter().enumerate().filter(|(_, node)| **node != NOBODY) {
        items_at[*node as usize].push(item as u32);
    }
    let mut search = Search {
        problem,
        node_of,
        items_at,
        level: vec![top; items],
        price: vec![0; nodes],
        reached: vec![0; nodes],
        from: vec![NOBODY; nodes],
        dead: vec![false; nodes],
        search: 0,
        queue: Vec::new(),
    };
    let mut lowest = top;
    while lowest > 0 {
        search.dead.fill(false);
        let mut waiting = Vec::new();
        for item in 0..items as u32 {
            if search.node_of[item as usize] == NOBODY && !search.place(item) {
                waiting.push(item);
            }
        }
        if waiting.is_empty() {
            break;
        }
        lowest -= search.lower(&waiting, lowest);
    }
    search.node_of
}

impl Search<'_> {
    fn places(&self, item: u32) -> &[(u32, u32)] {
        let item = item as usize;
        &self.problem.places[self.problem.begin[item] as usize..self.problem.begin[item + 1] as usize]
    }

    /// Whether `item` may lie on a place of this weight.
    fn tight(&self, item: u32, node: u32, weight: u32) -> bool {
        self.level[item as usize] + self.price[node as usize] == weight
    }

    /// Finds a node for `item`, and moves others to make room for it. Searches breadth first.
    fn place(&mut self, item: u32) -> bool {
        self.search += 1;
        self.queue.clear();
        self.queue.push(item);
        let mut next = 0;
        while next < self.queue.len() {
            let at = self.queue[next];
            next += 1;
            for place in 0..self.places(at).len() {
                let (node, weight) = self.places(at)[place];
                let seen = self.dead[node as usize] || self.reached[node as usize] == self.search;
                if seen || !self.tight(at, node, weight) {
                    continue;
                }
                self.reached[node as usize] = self.search;
                self.from[node as usize] = at;
                if self.items_at[node as usize].len() < self.problem.room[node as usize] as usize {
                    self.shift(item, node);
                    return true;
                }
                self.queue.extend_from_slice(&self.items_at[node as usize]);
            }
        }
        // Whatever this search reached leads nowhere, until a price changes.
        for queued in 0..self.queue.len() {
            let node = self.node_of[self.queue[queued] as usize];
            if node != NOBODY {
                self.dead[node as usize] = true;
            }
        }
        false
    }

    /// Moves each item on the path that ends at `node` one node on; `first` begins the path.
    fn shift(&mut self, first: u32, mut node: u32) {
        loop {
            let item = self.from[node as usize];
            let before = std::mem::replace(&mut self.node_of[item as usize], node);
            self.items_at[node as usize].push(item);
            if item == first {
                return;
            }
            let left = &mut self.items_at[before as usize];
            if let Some(at) = left.iter().position(|other| *other == item) {
                left.swap_remove(at);
            }
            node = before;
        }
    }

    /// Lowers the level of `waiting` and of all items that could make room for them, and raises the
    /// prices of their nodes, until one more place is tight or the level is 0. Returns by how much.
    fn lower(&mut self, waiting: &[u32], lowest: u32) -> u32 {
        self.search += 1;
        self.queue.clear();
        self.queue.extend_from_slice(waiting);
        let mut next = 0;
        let mut nodes = Vec::new();
        while next < self.queue.len() {
            let at = self.queue[next];
            next += 1;
            for place in 0..self.places(at).len() {
                let (node, weight) = self.places(at)[place];
                if self.reached[node as usize] != self.search && self.tight(at, node, weight) {
                    self.reached[node as usize] = self.search;
                    nodes.push(node);
                    self.queue.extend_from_slice(&self.items_at[node as usize]);
                }
            }
        }
        let mut by = lowest;
        for at in &self.queue {
            for (node, weight) in self.places(*at) {
                if self.reached[*node as usize] != self.search {
                    by = by.min(self.level[*at as usize] + self.price[*node as usize] - weight);
                }
            }
        }
        for at in &self.queue {
            self.level[*at as usize] -= by;
        }
        for node in nodes {
            self.price[node as usize] += by;
        }
        by
    }
}
