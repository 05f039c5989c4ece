//! The owner's work: takes the offers of all nodes for one slice and decides which node reads each
//! frame that is not contested.
//!
//! Holdings are compared in windows of words. Only contested frames are handled one by one. If runs
//! alone describe a stretch of windows, no window is expanded.

use crate::Rules;
use crate::plane::{Builder, Overlay, Plane, Reader, WINDOW, fill_range, new_plane, population};
use zazen_core::{Run, RunSet};
use zazen_wire::runset_codec::View;

/// What one node holds of a slice, in indices; no index is in both.
#[derive(Default)]
pub(crate) struct Offer<'a> {
    pub(crate) native: Held<'a>,
    pub(crate) alien: RunSet,
}

/// Natives as received, or built if they had to be compared with aliens.
pub(crate) enum Held<'a> {
    Received(View<'a>),
    Built(RunSet),
}

impl Default for Held<'_> {
    fn default() -> Self {
        Held::Received(View::default())
    }
}

impl Held<'_> {
    fn reader(&self) -> Reader<'_> {
        match self {
            Held::Received(view) => Reader::of_view(view),
            Held::Built(set) => Reader::new(set),
        }
    }
}

/// A slice in which all frames are resolved except the contested ones.
pub(crate) struct Resolved {
    /// By offer: contested frames that its node holds; no entries at all if none are contested.
    pub(crate) claims: Vec<RunSet>,
    /// By offer: aliens that its node must not read, because the frame is native elsewhere or,
    /// under the paper's rules, several nodes hold it as an alien. Empty if there are none.
    pub(crate) knocked: Vec<RunSet>,
    /// Frames that no node reads from its cache.
    pub(crate) residue: RunSet,
    /// Frames read as natives, contested ones included.
    pub(crate) native: u64,
    /// Frames read as aliens, contested ones included.
    pub(crate) alien: u64,
    pub(crate) contested: u64,
}

/// Resolves the indices `first .. end`, of which only those in `target` exist (all, if there is
/// none).
pub(crate) fn resolve(
    rules: Rules,
    first: u64,
    end: u64,
    target: Option<&RunSet>,
    offers: &[Offer<'_>],
) -> Resolved {
    let builders = || offers.iter().map(|_| Builder::default()).collect();
    // Windows may reach beyond the slice on both sides. The target must not.
    let target = target.filter(|_| first < end).map(|target| target.slice(first, end - 1));
    let mut resolver = Resolver {
        rules,
        first,
        end,
        target: target.as_ref().map(Reader::new),
        native: Side::new(offers.iter().map(|offer| offer.native.reader())),
        alien: Side::new(offers.iter().map(|offer| Reader::new(&offer.alien))),
        output: new_plane(),
        native_claims: builders(),
        alien_claims: builders(),
        knocked: builders(),
        residue: Builder::default(),
        counts: [0; 3],
        irregular_before: 0,
    };
    let mut base = first - first % WINDOW;
    while base < end {
        if let Some(after) = resolver.unwanted(base) {
            base = after;
            continue;
        }
        base = match resolver.stretch(base) {
            Some(after) => after,
            None => {
                resolver.window(base);
                base + WINDOW
            }
        };
    }
    let claims = resolver.native_claims.into_iter().zip(resolver.alien_claims);
    let [native, alien, contested] = resolver.counts;
    Resolved {
        claims: sparse(claims.map(|(native, alien)| native.finish().union(&alien.finish())).collect()),
        knocked: sparse(resolver.knocked.into_iter().map(Builder::finish).collect()),
        residue: resolver.residue.finish(),
        native,
        alien,
        contested,
    }
}

/// With thousands of nodes, even empty sets take memory on every rank.
fn sparse(by_node: Vec<RunSet>) -> Vec<RunSet> {
    if by_node.iter().all(RunSet::is_empty) { Vec::new() } else { by_node }
}

struct Resolver<'a> {
    rules: Rules,
    first: u64,
    end: u64,
    target: Option<Reader<'a>>,
    native: Side<'a>,
    alien: Side<'a>,
    output: Box<Plane>,
    native_claims: Vec<Builder>,
    alien_claims: Vec<Builder>,
    knocked: Vec<Builder>,
    residue: Builder,
    /// The numbers of frames read as natives, of frames read as aliens, and of contested frames
    /// among both.
    counts: [u64; 3],
    /// No regular stretch was found up to here, so do not search again.
    irregular_before: u64,
}

/// The holders of one kind (native or alien). Their planes are reused for every window.
struct Side<'a> {
    readers: Vec<Reader<'a>>,
    /// Of each node that has anything in the window: which node, and how much.
    nodes: Vec<(usize, u64)>,
    /// The indices of each of these nodes; expanded only if it matters which node has which index.
    planes: Vec<Box<Plane>>,
    all: Overlay,
    /// Whether there is anything that several nodes have.
    crowded: bool,
}

impl<'a> Side<'a> {
    fn new(readers: impl Iterator<Item = Reader<'a>>) -> Side<'a> {
        Side {
            readers: readers.collect(),
            nodes: Vec::new(),
            planes: Vec::new(),
            all: Overlay::new(),
            crowded: false,
        }
    }

    /// Looks at the window at `base`.
    fn load(&mut self, base: u64) {
        if !self.nodes.is_empty() {
            self.all.clear();
            self.nodes.clear();
        }
        for (node, reader) in self.readers.iter_mut().enumerate() {
            reader.advance(base);
            if reader.touches(base) {
                self.nodes.push((node, self.all.add_window(reader, base)));
            }
        }
        self.crowded = self.nodes.len() > 1 && self.all.several.iter().any(|word| *word != 0);
    }

    /// Expands the indices of each node in the window at `base`, after [`Side::load`] of it.
    fn lay_out(&mut self, base: u64) {
        while self.planes.len() < self.nodes.len() {
            self.planes.push(new_plane());
        }
        for ((node, _), plane) in self.nodes.iter().zip(&mut self.planes) {
            plane.fill(0);
            self.readers[*node].fill(base, plane);
        }
    }

    fn held(&self) -> impl Iterator<Item = (usize, &Plane)> {
        self.nodes.iter().zip(&self.planes).map(|((node, _), plane)| (*node, &**plane))
    }
}

/// Writes `combine` of each word's number to `into`; returns how many bits that sets.
fn compose(into: &mut Plane, combine: impl Fn(usize) -> u64) -> u64 {
    into.iter_mut().enumerate().for_each(|(at, word)| *word = combine(at));
    population(into)
}

impl Resolver<'_> {
    /// If nothing is requested in the window at `base`: the next window with a requested index.
    fn unwanted(&mut self, base: u64) -> Option<u64> {
        let target = self.target.as_mut()?;
        target.advance(base);
        let next = target.next().map_or(self.end, |(_, first, _)| first - first % WINDOW);
        (next > base).then_some(next)
    }

    /// Resolves the window at `base` word by word.
    fn window(&mut self, base: u64) {
        self.native.load(base);
        self.alien.load(base);
        if self.native.crowded {
            self.native.lay_out(base);
            self.counts[0] += population(&self.native.all.any);
        } else {
            self.counts[0] += self.native.nodes.iter().map(|(_, count)| count).sum::<u64>();
        }
        self.alien.lay_out(base);
        let output = &mut *self.output;
        let (native, alien) = (&self.native.all, &self.alien.all);
        for (node, plane) in self.native.held().filter(|_| self.native.crowded) {
            let contested = compose(output, |at| plane[at] & native.several[at]);
            if contested > 0 {
                self.native_claims[node].push_plane(base, output);
            }
        }
        let full = self.rules == Rules::Full;
        for (node, plane) in self.alien.held() {
            let knocks = |at: usize| native.any[at] | if full { 0 } else { alien.several[at] };
            if compose(output, |at| plane[at] & knocks(at)) > 0 {
                self.knocked[node].push_plane(base, output);
            }
            if full && compose(output, |at| plane[at] & !native.any[at] & alien.several[at]) > 0 {
                self.alien_claims[node].push_plane(base, output);
            }
        }
        if self.native.crowded {
            self.counts[2] += population(&native.several);
        }
        if !self.alien.nodes.is_empty() {
            let several = compose(output, |at| !native.any[at] & alien.several[at]);
            let sole = compose(output, |at| !native.any[at] & alien.any[at] & !alien.several[at]);
            self.counts[1] += sole + if full { several } else { 0 };
            self.counts[2] += if full { several } else { 0 };
        }
        self.residue_of_window(base);
    }

    /// The existing indices of the window that no node reads from its cache.
    fn residue_of_window(&mut self, base: u64) {
        let output = &mut *self.output;
        output.fill(0);
        match &mut self.target {
            Some(target) => target.fill(base, output),
            None => {
                let last = (self.end - base).min(WINDOW) - 1;
                fill_range(output, self.first.saturating_sub(base) as usize, last as usize);
            }
        }
        let (native, alien, full) = (&self.native.all, &self.alien.all, self.rules == Rules::Full);
        for (at, word) in output.iter_mut().enumerate() {
            let aliens = if full { alien.any[at] } else { alien.any[at] & !alien.several[at] };
            *word &= !(native.any[at] | aliens);
        }
        self.residue.push_plane(base, output);
    }

    /// Resolves a stretch of windows from `base` on that runs of natives alone describe, and
    /// returns its end. `None` if there is no such stretch, or if it is too short to be worth it.
    fn stretch(&mut self, base: u64) -> Option<u64> {
        if base < self.first || base < self.irregular_before {
            return None;
        }
        let mut limit = self.end;
        for reader in &mut self.alien.readers {
            reader.advance(base);
            limit = reader.next().map_or(limit, |(_, first, _)| limit.min(first));
        }
        let mut active: Vec<(usize, Run)> = Vec::new();
        for (node, reader) in self.native.readers.iter_mut().enumerate() {
            reader.advance(base);
            limit = match reader.next() {
                None => limit,
                Some((_, first, _)) if first > base => limit.min(first),
                Some((Some(run), _, last)) => {
                    active.push((node, run));
                    limit.min(last + 1)
                }
                Some(_) => return None,
            };
        }
        limit -= limit % WINDOW;
        if limit < base + 2 * WINDOW {
            return None;
        }
        let gap = match free_class(&active) {
            Some(gap) if gap.is_none() || self.target.is_none() => gap,
            _ => {
                self.irregular_before = limit;
                return None;
            }
        };
        for (_, run) in active {
            self.counts[0] += members(&run, base, limit).map_or(0, |run| run.count);
        }
        if let Some(left) = gap.and_then(|gap| members(&gap, base, limit)) {
            self.residue.push_run(left);
        }
        Some(limit)
    }
}

/// The part of `run`, continued without end in both directions, within `first .. end`.
fn members(run: &Run, first: u64, end: u64) -> Option<Run> {
    let from = first + (run.first % run.step + run.step - first % run.step) % run.step;
    let count = (end > from).then(|| (end - 1 - from) / run.step + 1)?;
    Some(Run { first: from, count, step: if count == 1 { 1 } else { run.step } })
}

/// The indices that the runs, continued without end, leave free: nothing (`Some(None)`) or one
/// strided run. `None` if the runs overlap, if the free indices are not one run, or if the common
/// period is long.
fn free_class(active: &[(usize, Run)]) -> Option<Option<Run>> {
    let mut period = 1;
    for (_, run) in active {
        period = period / greatest_common_divisor(period, run.step) * run.step;
        if period > WINDOW {
            return None;
        }
    }
    let mut taken = vec![false; period as usize];
    for (_, run) in active {
        for class in (run.first % run.step..period).step_by(run.step as usize) {
            if std::mem::replace(&mut taken[class as usize], true) {
                return None;
            }
        }
    }
    let free: Vec<u64> = (0..period).filter(|class| !taken[*class as usize]).collect();
    let Some(first) = free.first() else { return Some(None) };
    let step = period / free.len() as u64;
    let even = period % free.len() as u64 == 0 && free.windows(2).all(|pair| pair[1] - pair[0] == step);
    even.then_some(Some(Run { first: *first, count: free.len() as u64, step }))
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
