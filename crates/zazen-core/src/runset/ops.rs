//! Union, intersection and difference in one pass over both sets.
//!
//! Where spans do not overlap, segments pass unchanged. Where two runs overlap, closed forms
//! decide. If no closed form fits, only the windows of the overlap are decoded, combined word by
//! word and brought back to their smallest form. Time and memory grow with the segments and with
//! the decoded windows, never with the numbers in runs.

use super::RunSet;
use super::run::Run;
use super::segment::{Seg, Window, base_of, window_end};

impl RunSet {
    /// The numbers in either set.
    pub fn union(&self, other: &RunSet) -> RunSet {
        match (self.is_empty(), other.is_empty()) {
            (_, true) => self.clone(),
            (true, false) => other.clone(),
            _ => combine(self, other, Op::Union, false),
        }
    }

    /// The numbers in both sets.
    pub fn intersection(&self, other: &RunSet) -> RunSet {
        combine(self, other, Op::Intersection, false)
    }

    /// The numbers of this set that are not in `other`.
    pub fn difference(&self, other: &RunSet) -> RunSet {
        combine(self, other, Op::Difference, false)
    }

    /// Whether every number of this set is in `other`.
    pub fn is_subset(&self, other: &RunSet) -> bool {
        self.len <= other.len && combine(self, other, Op::Difference, true).is_empty()
    }

    /// Whether no number is in both sets.
    pub fn is_disjoint(&self, other: &RunSet) -> bool {
        combine(self, other, Op::Intersection, true).is_empty()
    }
}

/// What a result keeps of two sets `a` and `b`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Union,
    Intersection,
    Difference,
}

impl Op {
    fn keeps_only_a(self) -> bool {
        self != Op::Intersection
    }

    fn keeps_only_b(self) -> bool {
        self == Op::Union
    }

    fn word(self, a: u64, b: u64) -> u64 {
        match self {
            Op::Union => a | b,
            Op::Intersection => a & b,
            Op::Difference => a & !b,
        }
    }
}

/// From this ratio of steps on, it is faster to cut the dense run at each number of the sparse one
/// than to decode windows.
const THIN_RATIO: u64 = 1024;
/// Two runs of at least this step are merged number by number: a window would be almost empty.
const THIN_STEP: u64 = 512;

/// A position in a set. The head is the rest of a run of which a part was taken.
#[derive(Clone)]
struct Cursor<'a> {
    segs: &'a [Seg],
    rest: Option<Run>,
}

#[derive(Clone, Copy)]
enum Head<'a> {
    Run(Run),
    Block(&'a Seg),
}

impl Head<'_> {
    fn first(&self) -> u64 {
        match self {
            Head::Run(run) => run.first,
            Head::Block(seg) => seg.first(),
        }
    }

    fn last(&self) -> u64 {
        match self {
            Head::Run(run) => run.last(),
            Head::Block(seg) => seg.last(),
        }
    }

    /// Whether it holds every number of `other`'s span.
    fn covers(&self, other: &Head<'_>) -> bool {
        matches!(self, Head::Run(run)
            if run.step == 1 && run.first <= other.first()
            && run.last() >= other.last())
    }
}

impl<'a> Cursor<'a> {
    fn new(set: &'a RunSet) -> Cursor<'a> {
        Cursor { segs: &set.segs, rest: None }
    }

    fn head(&self) -> Option<Head<'a>> {
        match (self.rest, self.segs.first()) {
            (Some(rest), _) => Some(Head::Run(rest)),
            (None, Some(Seg::Run(run))) => Some(Head::Run(*run)),
            (None, Some(block)) => Some(Head::Block(block)),
            (None, None) => None,
        }
    }

    /// Drops the head, except `rest` of its run.
    fn leave(&mut self, rest: Option<Run>) {
        if rest.is_none() {
            self.segs = &self.segs[1..];
        }
        self.rest = rest;
    }

    /// Moves all numbers up to the window's end into the window.
    fn drain(&mut self, window: &mut Window) {
        let end = window_end(window.base);
        while let Some(head) = self.head()
            && head.first() <= end
        {
            match head {
                Head::Block(block) => {
                    window.or_seg(block);
                    self.leave(None);
                }
                Head::Run(run) => {
                    let (now, later) = run.split(end.saturating_add(1));
                    if let Some(now) = now {
                        window.or_run(now);
                    }
                    self.leave(later);
                }
            }
        }
    }
}

fn emit(out: &mut RunSet, head: &Head<'_>) {
    match head {
        Head::Run(run) => out.append_run(*run),
        Head::Block(block) => out.append_block(block),
    }
}

/// `op` of `a` and `b`. With `stop_early` the answer may be cut short once it is not empty.
fn combine(a: &RunSet, b: &RunSet, op: Op, stop_early: bool) -> RunSet {
    let mut sweep =
        Sweep { out: RunSet::new(), op, left: Cursor::new(a), right: Cursor::new(b), windows: None };
    while let (Some(x), Some(y)) = (sweep.left.head(), sweep.right.head()) {
        if stop_early && !sweep.out.is_empty() {
            break;
        }
        if x.last() < y.first() {
            sweep.pass_left(&x);
        } else if y.last() < x.first() {
            sweep.pass_right(&y);
        } else {
            sweep.overlap(x, y);
        }
    }
    while let Some(x) = sweep.left.head().filter(|_| op.keeps_only_a()) {
        sweep.pass_left(&x);
    }
    while let Some(y) = sweep.right.head().filter(|_| op.keeps_only_b()) {
        sweep.pass_right(&y);
    }
    sweep.out.seal();
    sweep.out
}

struct Sweep<'a> {
    out: RunSet,
    op: Op,
    left: Cursor<'a>,
    right: Cursor<'a>,
    windows: Option<(Window, Window)>,
}

impl<'a> Sweep<'a> {
    fn pass_left(&mut self, head: &Head<'a>) {
        if self.op.keeps_only_a() {
            emit(&mut self.out, head);
        }
        self.left.leave(None);
    }

    fn pass_right(&mut self, head: &Head<'a>) {
        if self.op.keeps_only_b() {
            emit(&mut self.out, head);
        }
        self.right.leave(None);
    }

    fn overlap(&mut self, x: Head<'a>, y: Head<'a>) {
        match (x, y) {
            (Head::Run(run), Head::Run(other)) => self.overlapping_runs(run, other),
            _ if x.covers(&y) && self.op != Op::Difference => {
                if self.op == Op::Intersection {
                    emit(&mut self.out, &y);
                }
                self.right.leave(None);
            }
            _ if y.covers(&x) => {
                if self.op == Op::Intersection {
                    emit(&mut self.out, &x);
                }
                self.left.leave(None);
            }
            _ => self.through_window(x, y),
        }
    }

    /// Combines two overlapping runs up to where the shorter ends, or a window of them where no
    /// closed form fits.
    fn overlapping_runs(&mut self, run: Run, other: Run) {
        let low = run.first.max(other.first);
        let high = run.last().min(other.last());
        let (a, b) = (run.clip(low, high), other.clip(low, high));
        let closed = closed_form(self.op, a, b);
        if closed.is_none() && !piecewise_pays(a, b) {
            return self.through_window(Head::Run(run), Head::Run(other));
        }
        let before = if run.first < low { run.split(low).0 } else { other.split(low).0 };
        let kept = if run.first < low { self.op.keeps_only_a() } else { self.op.keeps_only_b() };
        if let Some(before) = before.filter(|_| kept) {
            self.out.append_run(before);
        }
        match closed {
            Some(runs) => runs.iter().flatten().for_each(|run| self.out.append_run(*run)),
            None => piecewise(&mut self.out, self.op, a, b),
        }
        self.left.leave(run.split(high + 1).1);
        self.right.leave(other.split(high + 1).1);
    }

    /// Combines the window where the overlap begins. The part of a run before the window passes
    /// first.
    fn through_window(&mut self, x: Head<'a>, y: Head<'a>) {
        let base = base_of(x.first().max(y.first()));
        let sides =
            [(&mut self.left, x, self.op.keeps_only_a()), (&mut self.right, y, self.op.keeps_only_b())];
        for (cursor, head, kept) in sides {
            if let Head::Run(run) = head
                && run.first < base
            {
                let (before, rest) = run.split(base);
                if let Some(before) = before.filter(|_| kept) {
                    self.out.append_run(before);
                }
                cursor.leave(rest);
            }
        }
        let (ours, theirs) = self.windows.get_or_insert_with(|| (Window::new(base), Window::new(base)));
        ours.reset(base);
        theirs.reset(base);
        self.left.drain(ours);
        self.right.drain(theirs);
        for (a, b) in ours.words.iter_mut().zip(theirs.words.iter()) {
            *a = self.op.word(*a, *b);
        }
        self.out.append_words(ours.base, &ours.words[..]);
    }
}

/// `op` of two runs that were cut to one span, as up to three ascending runs; `None` if three runs
/// cannot express it.
fn closed_form(op: Op, a: Option<Run>, b: Option<Run>) -> Option<[Option<Run>; 3]> {
    let (Some(a), Some(b)) = (a, b) else {
        let a = a.filter(|_| op.keeps_only_a());
        let b = b.filter(|_| op.keeps_only_b());
        return Some([a.or(b), None, None]);
    };
    let common = a.intersection(&b);
    match (op, common) {
        (Op::Intersection, _) => Some([common, None, None]),
        (Op::Difference, None) => Some([Some(a), None, None]),
        (Op::Difference, Some(common)) => minus(a, common),
        (Op::Union, Some(common)) if common.count == a.count => Some([Some(b), None, None]),
        (Op::Union, Some(common)) if common.count == b.count => Some([Some(a), None, None]),
        (Op::Union, Some(_)) => None,
        (Op::Union, None) if a.last() < b.first => Some([Some(a), Some(b), None]),
        (Op::Union, None) if b.last() < a.first => Some([Some(b), Some(a), None]),
        (Op::Union, None) => {
            let meshed = a.step == b.step && a.step == 2 * (a.first.abs_diff(b.first) % a.step);
            let run = Run { first: a.first.min(b.first), count: a.count + b.count, step: a.step / 2 };
            meshed.then_some([Some(run), None, None])
        }
    }
}

/// `a` without `common`, which is part of it.
fn minus(a: Run, common: Run) -> Option<[Option<Run>; 3]> {
    let middle = match common.step / a.step {
        _ if common.count == 1 => None,
        1 => None,
        2 => Some(Run::normal(common.first + a.step, common.count - 1, common.step)),
        _ => return None,
    };
    let tail = if common.last() == a.last() { None } else { a.clip(common.last() + 1, a.last()) };
    Some([a.split(common.first).0, middle, tail])
}

/// Whether the runs alternate so rarely that it is cheap to cut one at each number of the other.
fn piecewise_pays(a: Option<Run>, b: Option<Run>) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return false;
    };
    let gap = |run: Run| if run.count == 1 { u64::MAX } else { run.step };
    let (small, large) = (gap(a).min(gap(b)), gap(a).max(gap(b)));
    small >= THIN_STEP || large / small >= THIN_RATIO
}

fn piecewise(out: &mut RunSet, op: Op, mut a: Option<Run>, mut b: Option<Run>) {
    let put = |out: &mut RunSet, run: Option<Run>, kept: bool| {
        if let Some(run) = run.filter(|_| kept) {
            out.append_run(run);
        }
    };
    while let (Some(x), Some(y)) = (a, b) {
        if x.first < y.first {
            let (before, rest) = x.split(y.first);
            put(out, before, op.keeps_only_a());
            a = rest;
        } else if y.first < x.first {
            let (before, rest) = y.split(x.first);
            put(out, before, op.keeps_only_b());
            b = rest;
        } else {
            put(out, Some(Run::single(x.first)), op != Op::Difference);
            (a, b) = (x.ranks(1, x.count), y.ranks(1, y.count));
        }
    }
    put(out, a, op.keeps_only_a());
    put(out, b, op.keeps_only_b());
}
