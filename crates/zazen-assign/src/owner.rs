//! The owner's work: from what all nodes offer of one slice to who is known to read what.
//!
//! Holdings are compared in windows of words; a frame is looked at singly only when it is contested. Where
//! runs alone describe a stretch of windows, nothing is laid out at all.

use crate::Rules;
use crate::plane::{Builder, Plane, Reader, WINDOW, WORDS, fill_range, new_plane, population};
use zazen_core::{Run, RunSet};

/// What one node holds of a slice, in indices; no index is in both.
#[derive(Default)]
pub(crate) struct Offer {
    pub(crate) native: RunSet,
    pub(crate) alien: RunSet,
}

/// A slice, resolved but for its contested frames.
pub(crate) struct Resolved {
    /// By node: frames that are its own without contest.
    pub(crate) loads: Vec<u64>,
    /// By node: contested frames that it holds.
    pub(crate) claims: Vec<RunSet>,
    /// By node: aliens that are not to be read there, since the frame is native elsewhere or (paper's rules)
    /// several nodes have it as an alien.
    pub(crate) knocked: Vec<RunSet>,
    /// Frames that nobody reads from its cache.
    pub(crate) residue: RunSet,
    /// Frames read as natives, contested ones included.
    pub(crate) native: u64,
    /// Frames read as aliens, contested ones included.
    pub(crate) alien: u64,
    pub(crate) contested: u64,
}

/// Resolves the indices `first .. end`, of which only those in `target` exist (all, if there is none).
pub(crate) fn resolve(rules: Rules, first: u64, end: u64, target: Option<&RunSet>, offers: &[Offer]) -> Resolved {
    let mut resolver = Resolver {
        rules,
        first,
        end,
        target: target.map(Reader::new),
        natives: offers.iter().map(|offer| Reader::new(&offer.native)).collect(),
        aliens: offers.iter().map(|offer| Reader::new(&offer.alien)).collect(),
        claims: offers.iter().map(|_| Builder::default()).collect(),
        knocked: offers.iter().map(|_| Builder::default()).collect(),
        residue: Builder::default(),
        loads: vec![0; offers.len()],
        native: 0,
        alien: 0,
        contested: 0,
        work: Work::default(),
    };
    let mut base = first - first % WINDOW;
    while base < end {
        base = match resolver.stretch(base) {
            Some(after) => after,
            None => {
                resolver.window(base);
                base + WINDOW
            }
        };
    }
    Resolved {
        loads: resolver.loads,
        claims: resolver.claims.into_iter().map(Builder::finish).collect(),
        knocked: resolver.knocked.into_iter().map(Builder::finish).collect(),
        residue: resolver.residue.finish(),
        native: resolver.native,
        alien: resolver.alien,
        contested: resolver.contested,
    }
}

struct Resolver<'a> {
    rules: Rules,
    first: u64,
    end: u64,
    target: Option<Reader<'a>>,
    natives: Vec<Reader<'a>>,
    aliens: Vec<Reader<'a>>,
    claims: Vec<Builder>,
    knocked: Vec<Builder>,
    residue: Builder,
    loads: Vec<u64>,
    native: u64,
    alien: u64,
    contested: u64,
    work: Work,
}

/// Planes that are used again for every window.
#[derive(Default)]
struct Work {
    native: Layer,
    alien: Layer,
    output: Option<Box<Plane>>,
}

/// The holders of one kind in a window.
#[derive(Default)]
struct Layer {
    planes: Vec<Box<Plane>>,
    /// The node of each plane in use.
    nodes: Vec<usize>,
    /// Some node has it; several nodes have it.
    any: Option<Box<Plane>>,
    several: Option<Box<Plane>>,
}

impl Layer {
    /// Lays out the window at `base`; returns (any, several).
    fn load(&mut self, base: u64, readers: &mut [Reader<'_>]) {
        let any = self.any.get_or_insert_with(new_plane);
        let several = self.several.get_or_insert_with(new_plane);
        any.fill(0);
        several.fill(0);
        self.nodes.clear();
        for (node, reader) in readers.iter_mut().enumerate() {
            reader.advance(base);
            if !reader.touches(base) {
                continue;
            }
            if self.planes.len() == self.nodes.len() {
                self.planes.push(new_plane());
            }
            let plane = &mut self.planes[self.nodes.len()];
            plane.fill(0);
            reader.fill(base, plane);
            for ((held, any), several) in plane.iter().zip(any.iter_mut()).zip(several.iter_mut()) {
                *several |= *any & held;
                *any |= held;
            }
            self.nodes.push(node);
        }
    }
}

impl Resolver<'_> {
    /// Resolves the window at `base` word by word.
    fn window(&mut self, base: u64) {
        let mut work = std::mem::take(&mut self.work);
        work.native.load(base, &mut self.natives);
        work.alien.load(base, &mut self.aliens);
        let mut output = work.output.take().unwrap_or_else(new_plane);
        if let (Some(any), Some(several), Some(alien_any), Some(alien_several)) =
            (&work.native.any, &work.native.several, &mut work.alien.any, &mut work.alien.several)
        {
            for (node, plane) in work.native.nodes.iter().zip(&work.native.planes) {
                self.loads[*node] += split(plane, several, &mut output);
                self.claims[*node].push_plane(base, &output);
            }
            self.native += population(any);
            self.contested += population(several);
            self.aliens_of_window(base, any, (alien_any, alien_several), &work.alien, &mut output);
        }
        work.output = Some(output);
        self.work = work;
    }
}
