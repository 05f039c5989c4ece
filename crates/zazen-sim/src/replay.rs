//! Replays what a real job did, from a log of its I/O: each rank makes its operations again, with
//! the pauses that it made between them. The I/O itself takes what the simulated cluster needs.
//!
//! Logs come as [`Traced`] operations. An operation whose own times were logged is replayed as it
//! was. Where a log has only totals ([`Counted`]), operations are *synthesised*: of equal size, at
//! equal distances between the first and the last. A result that rests on them says so.

use crate::program::{At, MetaOp, MetadataNode, Op, Program, Step};
use crate::spread::Spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};

/// The most ranks of a log.
pub const RANKS_MAX: u32 = 1 << 24;
/// The most operations of a log, those of ranks that do the same counted once.
pub const OPS_MAX: usize = 1 << 24;
/// Seconds that a log can last: ten years.
const SECONDS_MAX: f64 = 3.2e8;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Opens a file.
    Open,
    /// Looks at a file's attributes.
    Stat,
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Waits until bytes are on the disk.
    Sync,
    /// Closes a file.
    Close,
}

/// An operation that was logged by itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traced(pub Kind, pub u64, pub f64, pub f64);

/// Operations of which a log has the totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// What they do.
    pub kind: Kind,
    /// How many there were, at least 1.
    pub count: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// When the first one began, in seconds since the job's beginning.
    pub first_s: f64,
    /// When the last one ended.
    pub last_s: f64,
    /// How long they took in all, of all ranks.
    pub busy_s: f64,
}

/// What one rank, or all of them together, did with one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileLog {
    /// The rank; `None`: all ranks share in the counted operations evenly.
    pub rank: Option<u32>,
    /// The file, as a number.
    pub file: u64,
    /// Operations with their own times: kind, bytes, begin and end in seconds.
    #[serde(default)]
    pub traced: Vec<Traced>,
    /// Totals.
    #[serde(default)]
    pub counted: Vec<Counted>,
}

/// What is known of the job as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The version of these lines: 1.
    pub v: u32,
    /// Ranks.
    pub ranks: u32,
    /// How long the job ran.
    pub run_s: f64,
    /// What a reader of the result must know, in words.
    pub words: Vec<String>,
}

/// A job's log.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// The job.
    pub header: Header,
    /// By rank and file.
    pub files: Vec<FileLog>,
}

/// What a replay rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// Operations whose own times were logged.
    pub traced: u64,
    /// Operations that were synthesised from totals.
    pub synthesised: u64,
    /// Operations of one rank that overlapped in time: they are replayed one after the other.
    pub overlapping: u64,
}

fn refuse<T>(why: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(ErrorKind::Corrupt, format!("log: {why}")))
}

impl Log {
    /// Reads a log: a line of JSON for the [`Header`], then one for each [`FileLog`]. `Corrupt` if
    /// it is none, was cut, or holds what cannot be.
    pub fn read(text: &str) -> Result<Log> {
        let mut lines = text.lines();
        let Some(first) = lines.next() else { return refuse("it is empty") };
        let header: Header =
            serde_json::from_str(first).or_else(|error| refuse(format!("line 1: {error}")))?;
        if header.v != 1 {
            return refuse(format!("version {} is not 1", header.v));
        }
        if !(1..=RANKS_MAX).contains(&header.ranks) {
            return refuse(format!("{} ranks; between 1 and {RANKS_MAX} are replayed", header.ranks));
        }
        let mut files = Vec::new();
        for (number, line) in lines.enumerate() {
            let number = number + 2;
            let file: FileLog =
                serde_json::from_str(line).or_else(|error| refuse(format!("line {number}: {error}")))?;
            check(&header, &file).or_else(|why| refuse(format!("line {number}: {why}")))?;
            files.push(file);
        }
        Ok(Log { header, files })
    }

    /// The ranks' program, where data lie at `at`, and what it rests on. `TooLarge` if the log has
    /// more than [`OPS_MAX`] operations.
    pub fn program(&self, at: At) -> Result<(Program, Basis)> {
        let mut mine: BTreeMap<u32, Vec<&FileLog>> = BTreeMap::new();
        for file in &self.files {
            if let Some(rank) = file.rank {
                mine.entry(rank).or_default().push(file);
            }
        }
        let all: Vec<&FileLog> = self.files.iter().filter(|file| file.rank.is_none()).collect();
        let mut builder = Builder::new(at);
        let mut ops: Vec<Timed> = Vec::new();
        for rank in 0..self.header.ranks {
            ops.clear();
            for file in mine.get(&rank).into_iter().flatten() {
                let traced = file.traced.iter();
                ops.extend(traced.map(|Traced(kind, bytes, begin_s, end_s)| Timed {
                    begin_s: *begin_s,
                    end_s: *end_s,
                    kind: *kind,
                    bytes: *bytes,
                    file: file.file,
                }));
                builder.basis.traced += file.traced.len() as u64;
                for counted in &file.counted {
                    builder.room((ops.len() as u64).saturating_add(counted.count))?;
                    spread(counted, file.file, 0..counted.count, counted.busy_s, &mut ops);
                    builder.basis.synthesised += counted.count;
                }
            }
            for file in &all {
                for counted in &file.counted {
                    let ranks = u64::from(self.header.ranks);
                    let share = share(counted.count, u64::from(rank), ranks);
                    builder.room((ops.len() as u64).saturating_add(share.end - share.start))?;
                    builder.basis.synthesised += share.end - share.start;
                    spread(counted, file.file, share, counted.busy_s / ranks as f64, &mut ops);
                }
            }
            builder.rank(&mut ops)?;
        }
        Ok((builder.program, builder.basis))
    }
}

fn check(header: &Header, file: &FileLog) -> std::result::Result<(), String> {
    let is_time = |seconds: f64| (-SECONDS_MAX..=SECONDS_MAX).contains(&seconds);
    if let Some(rank) = file.rank.filter(|rank| *rank >= header.ranks) {
        return Err(format!("rank {rank} of {} ranks", header.ranks));
    }
    if file.rank.is_none() && !file.traced.is_empty() {
        return Err("operations with times of their own, and no rank".to_owned());
    }
    for Traced(_, bytes, begin_s, end_s) in &file.traced {
        if !is_time(*begin_s) || !is_time(*end_s) || end_s < begin_s || *bytes > 1 << 60 {
            return Err(format!("an operation of {bytes} bytes from {begin_s} s to {end_s} s"));
        }
    }
    for counted in &file.counted {
        let Counted { count, bytes, first_s, last_s, busy_s, .. } = counted;
        let is_valid = *count > 0 && *bytes <= 1 << 60 && is_time(*first_s) && is_time(*last_s);
        if !is_valid || last_s < first_s || !(0.0..=SECONDS_MAX * 1e6).contains(busy_s) {
            return Err(format!("{count} operations of {bytes} bytes from {first_s} s to {last_s} s"));
        }
    }
    Ok(())
}

/// Which of `count` operations a rank makes, if all make about the same number.
fn share(count: u64, rank: u64, ranks: u64) -> std::ops::Range<u64> {
    let (each, rest) = (count / ranks, count % ranks);
    let begin = rank * each + rank.min(rest);
    begin..begin + each + u64::from(rank < rest)
}

/// An operation of a rank at its time.
#[derive(Clone, Copy)]
struct Timed {
    begin_s: f64,
    end_s: f64,
    kind: Kind,
    bytes: u64,
    file: u64,
}

/// Adds the operations `which` of the counted ones, at equal distances; all of them take `busy_s`.
fn spread(counted: &Counted, file: u64, which: std::ops::Range<u64>, busy_s: f64, ops: &mut Vec<Timed>) {
    let mine = which.end - which.start;
    if mine == 0 {
        return;
    }
    let each = counted.bytes / counted.count;
    let distance_s = (counted.last_s - counted.first_s) / mine as f64;
    let length_s = (busy_s / mine as f64).min(distance_s);
    for (place, number) in which.enumerate() {
        let is_last = number + 1 == counted.count;
        let bytes = if is_last { counted.bytes - each * (counted.count - 1) } else { each };
        let begin_s = counted.first_s + distance_s * place as f64;
        ops.push(Timed { begin_s, end_s: begin_s + length_s, kind: counted.kind, bytes, file });
    }
}

struct Builder {
    at: At,
    program: Program,
    basis: Basis,
    /// Where the steps of ranks that did this begin and end.
    known: BTreeMap<u64, (u32, u32)>,
}

const PHASES: [&str; 7] = ["open", "stat", "read", "write", "sync", "close", "compute"];
const COMPUTE: u16 = 6;

impl Builder {
    fn new(at: At) -> Builder {
        let phases = PHASES.map(str::to_owned).to_vec();
        let program = Program { phases, steps: Vec::new(), ranges: Vec::new() };
        Builder { at, program, basis: Basis::default(), known: BTreeMap::new() }
    }

    /// `TooLarge` if so many more operations are more than are replayed.
    fn room(&self, more: u64) -> Result<()> {
        if (self.program.steps.len() as u64).saturating_add(more) <= 2 * OPS_MAX as u64 {
            return Ok(());
        }
        let why = format!("log: more than {OPS_MAX} operations of ranks that differ; replay a shorter job");
        Err(Error::new(ErrorKind::TooLarge, why))
    }

    fn rank(&mut self, ops: &mut [Timed]) -> Result<()> {
        self.room(2 * ops.len() as u64)?;
        ops.sort_by(|one, other| {
            (one.begin_s, one.end_s)
                .partial_cmp(&(other.begin_s, other.end_s))
                .unwrap_or(one.kind.cmp(&other.kind))
        });
        let mut digest = crate::trace::Trace::default();
        for op in ops.iter() {
            for word in [op.begin_s.to_bits(), op.end_s.to_bits(), op.kind as u64, op.bytes, op.file] {
                digest.word(word);
            }
        }
        if let Some(range) = self.known.get(&digest.digest()) {
            self.program.ranges.push(*range);
            return Ok(());
        }
        let begin = self.program.steps.len() as u32;
        let mut now_s = 0.0_f64;
        for op in ops.iter() {
            let pause_us = (op.begin_s - now_s) * 1e6;
            if pause_us > 0.0 {
                self.program.steps.push(Step { op: Op::Compute(Spread::Constant(pause_us)), phase: COMPUTE });
            } else if pause_us < 0.0 && now_s > 0.0 {
                self.basis.overlapping += 1;
            }
            now_s = now_s.max(op.end_s);
            self.program.steps.push(Step { op: self.op(op), phase: op.kind as u16 });
        }
        let range = (begin, self.program.steps.len() as u32);
        self.known.insert(digest.digest(), range);
        self.program.ranges.push(range);
        Ok(())
    }

    fn op(&self, op: &Timed) -> Op {
        let place = match self.at {
            At::Shared => MetadataNode::Shared { in_one_directory: false },
            _ => MetadataNode::Named(op.file),
        };
        match op.kind {
            Kind::Open => Op::Meta(MetaOp::Open, place),
            Kind::Stat => Op::Meta(MetaOp::Lookup, place),
            Kind::Close => Op::Meta(MetaOp::Close, place),
            Kind::Read => Op::Read(op.bytes, self.at),
            // Bytes are written where the rank is, or to the shared store.
            Kind::Write => Op::Write(op.bytes, if self.at == At::Shared { At::Shared } else { At::Local }),
            Kind::Sync => Op::Sync,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::job::Job;
    use crate::network::Fidelity;
    use crate::work::Work;
    use std::ops::ControlFlow;

    const HEADER: &str = r#"{"v":1,"ranks":4,"run_s":10.0,"words":[]}"#;

    fn log(files: &[&str]) -> Result<Log> {
        Log::read(&[&[HEADER], files].concat().join("\n"))
    }

    /// A line of a log: `count` operations of one kind, of `bytes` in all; the times are those of
    /// the first, of the last, and of being busy.
    fn counted(rank: &str, kind: &str, (count, bytes): (u64, u64), times_s: [f64; 3]) -> String {
        let [first, last, busy] = times_s;
        let times = format!(r#""first_s":{first:?},"last_s":{last:?},"busy_s":{busy:?}"#);
        let totals = format!(r#""kind":"{kind}","count":{count},"bytes":{bytes},{times}"#);
        format!(r#"{{"rank":{rank},"file":1,"counted":[{{{totals}}}]}}"#)
    }

    fn makespan_s(program: Program, nodes: u32) -> f64 {
        let mut cluster = Cluster::intrepid();
        (cluster.disk.write_bytes_per_s, cluster.disk.read_bytes_per_s) = (100e6, 100e6);
        (cluster.disk.node_deviation, cluster.fuse.request_us) = (0.0, 0.0);
        let job = Job {
            name: "replay".to_owned(),
            nodes,
            ranks_per_node: 4_u32.div_ceil(nodes),
            network: "star".to_owned(),
            fidelity: Fidelity::Path,
            seed: 1,
            cluster,
            work: Work::Program(program),
        };
        let outcome = crate::run(&job, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
        assert_eq!(outcome.unfinished, 0);
        crate::time::seconds(outcome.makespan_ps)
    }

    /// Pauses stay; what the I/O took is replaced by what the simulated disk takes.
    #[test]
    fn traced_operations_keep_their_sizes_and_pauses() {
        let ops = r#"{"rank":2,"file":7,"traced":[["write",100000000,1.0,3.0],["write",50000000,5.0,5.5]]}"#;
        let (program, basis) = log(&[ops]).unwrap().program(At::Local).unwrap();
        assert_eq!((basis.traced, basis.synthesised, basis.overlapping), (2, 0, 0));
        // A pause of 1 s, 1 s of writing, a pause of 2 s, 0.5 s of writing.
        assert!((makespan_s(program, 4) - 4.5).abs() < 1e-6);
    }

    /// Every byte and every operation of the totals is made, whatever the number of ranks.
    #[test]
    fn totals_are_conserved() {
        for (count, bytes) in [(1, 5), (3, 1000), (4, 4096), (10, 12_345), (4099, 1 << 30)] {
            let line = counted("null", "read", (count, bytes), [1.0, 4.0, 2.0]);
            let (program, basis) = log(&[&line]).unwrap().program(At::Local).unwrap();
            assert_eq!((basis.traced, basis.synthesised), (0, count));
            let mut found = (0, 0);
            for (begin, end) in &program.ranges {
                for step in &program.steps[*begin as usize..*end as usize] {
                    if let Op::Read(bytes, _) = step.op {
                        found = (found.0 + 1, found.1 + bytes);
                    }
                }
            }
            assert_eq!(found, (count, bytes));
            assert_eq!(program.totals_of_all(4).1, bytes);
        }
    }

    /// Ranks that do the same share their steps.
    #[test]
    fn equal_ranks_share_steps() {
        let line = counted("null", "write", (4000, 4_000_000), [0.0, 9.0, 4.0]);
        let (program, _) = log(&[&line]).unwrap().program(At::Local).unwrap();
        assert!(program.steps.len() <= 2 * 1000, "{}", program.steps.len());
        assert_eq!(program.ranges.len(), 4);
        makespan_s(program, 2);
    }

    #[test]
    fn operations_at_once_are_told() {
        let line = r#"{"rank":0,"file":1,"traced":[["read",10,1.0,3.0],["read",10,2.0,3.0]]}"#;
        assert_eq!(log(&[line]).unwrap().program(At::Local).unwrap().1.overlapping, 1);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let check = |line: &str, expected: &str| {
            let message = log(&[line]).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("line 2"), "{line}: {message}");
        };
        check(r#"{"rank":4,"file":1}"#, "rank 4 of 4");
        check(r#"{"rank":0,"file":1,"traced":[["read",1,3.0,2.0]]}"#, "from 3 s to 2 s");
        check(r#"{"rank":0,"file":1,"traced":[["fly",1,3.0,4.0]]}"#, "fly");
        check(r#"{"rank":0,"file":1,"tra"#, "EOF");
        check(r#"{"rank":null,"file":1,"traced":[["read",1,1.0,2.0]]}"#, "no rank");
        check(&counted("0", "read", (0, 1), [0.0, 1.0, 0.0]), "0 operations");
        for (text, expected) in [
            ("", "empty"),
            (r#"{"v":2,"ranks":1,"run_s":1,"words":[]}"#, "version 2"),
            (r#"{"v":1,"ranks":0,"run_s":1,"words":[]}"#, "0 ranks"),
        ] {
            assert!(Log::read(text).unwrap_err().to_string().contains(expected), "{text}");
        }
        let many = counted("0", "read", (99_999_999_999, 1), [0.0, 1.0, 0.0]);
        assert!(log(&[&many]).unwrap().program(At::Local).unwrap_err().to_string().contains("more than"));
    }
}
