//! What the ranks of a job do: one program that all ranks run, with loops.

use crate::spread::Spread;

/// A metadata operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaOp {
    /// Open a file that exists, or the handle of a new one.
    Open,
    /// Add a name.
    Insert,
    /// Look a name up.
    Lookup,
    /// Commit a file's size.
    Close,
    /// Remove a name.
    Remove,
}

/// Which node has the rows of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataNode {
    /// Each operation's name hashes to a node of its own.
    Hashed,
    /// The rank's own node.
    Own,
    /// The name whose hash this is, the same for all ranks.
    Named(u64),
    /// One directory for all ranks, split into as many parts; each part is on one node.
    Directory {
        /// Parts.
        parts: u32,
    },
    /// The shared store; whether all ranks use one directory there.
    Shared {
        /// Whether they do.
        in_one_directory: bool,
    },
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// On the rank's own disk.
    Local,
    /// In the rank's own page cache.
    Cached,
    /// On the next node's disk: node i reads from node i + 1, the last one from the first.
    Next,
    /// On the disk of a node that is drawn for each rank and step.
    Random,
    /// On the disk of this node; its copies lie on the nodes that follow.
    On(u32),
    /// In the shared store.
    Shared,
    /// For this part of the bytes (in 1/65,536) in the shared store, otherwise on the own disk:
    /// what an analysis does whose cache lacks some of its frames.
    Missing(u32),
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// The processor is busy.
    Compute(Spread),
    /// A metadata operation.
    Meta(MetaOp, MetadataNode),
    /// Write a contiguous piece; to the own disk or the shared store.
    Write(u64, At),
    /// Read a contiguous piece.
    Read(u64, At),
    /// Wait until the own node's dirty bytes are on its disk.
    Sync,
    /// Wait for all ranks.
    Barrier,
    /// Wait for all ranks, and reduce so many bytes among them.
    Allreduce(u64),
    /// Go back to a step, so that what begins there runs so often in all.
    Repeat {
        /// The first step of the loop.
        back: u32,
        /// How often it runs; at least 1.
        times: u32,
        /// Which of the two loop counters of a rank counts.
        counter: u8,
    },
}

/// A step and the name under which its times are reported.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What happens.
    pub op: Op,
    /// Index into [`Program::phases`].
    pub phase: u16,
}

/// Nesting of loops.
pub const LOOPS_MAX: usize = 2;

/// The steps of all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Names of the phases.
    pub phases: Vec<String>,
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// By rank: which of the steps are its own, the first and the one after the last. Empty: all
    /// ranks run all steps. Ranks beyond the end do nothing.
    pub ranges: Vec<(u32, u32)>,
}

impl Program {
    /// A program without a step.
    pub fn new() -> Program {
        Program::default()
    }

    /// Adds a step.
    pub fn then(mut self, phase: &str, op: Op) -> Program {
        self.add(phase, op);
        self
    }

    /// Adds a step.
    pub fn add(&mut self, phase: &str, op: Op) {
        let index = self.phases.iter().position(|known| known == phase).unwrap_or_else(|| {
            self.phases.push(phase.to_owned());
            self.phases.len() - 1
        });
        self.steps.push(Step { op, phase: index as u16 });
    }

    /// Adds what `body` adds, to run `times` times. Loops nest [`LOOPS_MAX`] deep at most, and
    /// `depth` says how deep this one is, from 0.
    pub fn repeat(mut self, times: u32, depth: u8, body: impl FnOnce(Program) -> Program) -> Program {
        let back = self.steps.len() as u32;
        self = body(self);
        if times > 1 && self.steps.len() as u32 > back {
            let phase = self.steps[back as usize].phase;
            self.steps.push(Step { op: Op::Repeat { back, times, counter: depth }, phase });
        }
        self
    }

    /// Where the steps of a rank begin, and where they end.
    pub fn range(&self, rank: u32) -> (u32, u32) {
        if self.ranges.is_empty() {
            return (0, self.steps.len() as u32);
        }
        self.ranges.get(rank as usize).copied().unwrap_or((0, 0))
    }

    /// Steps that all of `ranks` ranks make, and bytes that they move. Ranges have no loops.
    pub fn totals_of_all(&self, ranks: u64) -> (u64, u64) {
        if self.ranges.is_empty() {
            let (steps, bytes) = self.totals();
            return (steps.saturating_mul(ranks), bytes.saturating_mul(ranks));
        }
        let mut before = vec![0_u64];
        for step in &self.steps {
            let bytes = match step.op {
                Op::Write(bytes, _) | Op::Read(bytes, _) => bytes,
                _ => 0,
            };
            before.push(before[before.len() - 1].saturating_add(bytes));
        }
        let each = self.ranges.iter().take(ranks as usize);
        each.fold((0, 0), |(steps, bytes), (begin, end)| {
            let moved = before[*end as usize] - before[*begin as usize];
            (steps + u64::from(end - begin), bytes.saturating_add(moved))
        })
    }

    /// Steps that a rank makes in all, and bytes that it moves.
    pub fn totals(&self) -> (u64, u64) {
        let bytes = |op: &Op| match op {
            Op::Write(bytes, _) | Op::Read(bytes, _) => *bytes,
            _ => 0,
        };
        let mut sums: Vec<(u64, u64)> = vec![(0, 0)];
        for step in &self.steps {
            let (count, moved) = sums[sums.len() - 1];
            let after = match step.op {
                Op::Repeat { back, times, .. } => {
                    let (count_before, moved_before) = sums[back as usize];
                    let again = u64::from(times - 1);
                    (
                        count.saturating_add((count - count_before).saturating_mul(again)),
                        moved.saturating_add((moved - moved_before).saturating_mul(again)),
                    )
                }
                ref op => (count + 1, moved.saturating_add(bytes(op))),
            };
            sums.push(after);
        }
        sums[sums.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_count_loops() {
        let program =
            Program::new().then("open", Op::Meta(MetaOp::Open, MetadataNode::Own)).repeat(3, 0, |outer| {
                outer
                    .then("write", Op::Write(10, At::Local))
                    .repeat(4, 1, |inner| inner.then("read", Op::Read(1, At::Next)))
            });
        assert_eq!(program.totals(), (1 + 3 * (1 + 4), 3 * (10 + 4)));
        assert_eq!(Program::new().totals(), (0, 0));
    }
}
