//! A job: a program on so many nodes of a cluster; and job files.
//!
//! A job file is TOML: what the command line says otherwise, and the steps (docs/simulator.md).

use crate::cluster::Cluster;
use crate::network::Fidelity;
use crate::program::{At, LOOPS_MAX, MetaOp, MetadataNode, Op, Program};
use crate::queue::NODES_MAX;
use crate::spread::Spread;
use crate::topology;
use crate::work::{Push, Work};
use serde::Deserialize;
use zazen_core::{Error, ErrorKind, Result, byte_size};

/// The most ranks of a node.
const RANKS_PER_NODE_MAX: u32 = 4096;
/// The most bytes of one step: an exabyte.
const BYTES_MAX: u64 = 1 << 60;
/// The most steps of a program, loops not counted.
const STEPS_MAX: usize = 1 << 20;
/// The most phases of a program: their numbers have 16 bits.
const PHASES_MAX: usize = 1 << 16;

/// What is to be simulated.
#[derive(Clone, Debug)]
pub struct Job {
    /// The workload's name.
    pub name: String,
    /// Nodes.
    pub nodes: u32,
    /// Ranks on each node; rank r is on node r / ranks_per_node.
    pub ranks_per_node: u32,
    /// The network's shape, as [`topology::parse`] reads it.
    pub network: String,
    /// How closely the network is simulated.
    pub fidelity: Fidelity,
    /// The seed.
    pub seed: u64,
    /// What the nodes can do.
    pub cluster: Cluster,
    /// What it does.
    pub work: Work,
}

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

impl Job {
    /// `InvalidArgument`, `Config` or `TooLarge` if the job cannot be simulated; the message says
    /// why.
    pub fn check(&self) -> Result<()> {
        if self.nodes == 0 || self.nodes >= NODES_MAX {
            return refuse(format!("nodes: {} is not between 1 and {}", self.nodes, NODES_MAX - 1));
        }
        if !(1..=RANKS_PER_NODE_MAX).contains(&self.ranks_per_node) {
            let why = format!("{} is not between 1 and {RANKS_PER_NODE_MAX}", self.ranks_per_node);
            return refuse(format!("ranks per node: {why}"));
        }
        let ranks = u64::from(self.nodes) * u64::from(self.ranks_per_node);
        if ranks > u64::from(u32::MAX / 2) {
            return refuse(format!("{ranks} ranks are more than are simulated; at most {}", u32::MAX / 2));
        }
        match &self.work {
            Work::Program(program) => self.check_program(program)?,
            Work::Push(push) => {
                if self.ranks_per_node > 1 {
                    let why = format!("{}: each node has one writer", self.ranks_per_node);
                    return refuse(format!("ranks per node: {why}"));
                }
                check_push(push)?;
            }
            Work::Names(names) => {
                if !(1..=1_000_000).contains(&names.files) || names.split_entries < 2 {
                    return refuse(format!(
                        "names: {} files a rank, directories split at {}; \
                         between 1 and 1000000, and from 2 on",
                        names.files, names.split_entries
                    ));
                }
            }
            Work::Fetching(fetching) => {
                let is_possible = (1..=1_000_000).contains(&fetching.frames)
                    && (0.0..=1.0).contains(&fetching.missing)
                    && (1..=BYTES_MAX).contains(&fetching.frame_bytes)
                    && (0.0..=1e12).contains(&fetching.compute_us)
                    && (1..=4096).contains(&fetching.fetchers);
                if !is_possible {
                    return refuse(format!("an analysis that cannot be: {fetching:?}"));
                }
            }
            Work::View(view) => {
                let ranks = zazen_match::RANKS_MAX as u64;
                if self.ranks() > ranks {
                    let why = format!("{} ranks; files are matched to at most {ranks}", self.ranks());
                    return refuse(format!("view: {why}"));
                }
                if view.files_each == 0 || view.replicas == 0 || view.file_bytes > BYTES_MAX {
                    return refuse(format!("a view that cannot be: {view:?}"));
                }
            }
            Work::Assign(assign) => {
                if assign.frames_each == 0 || assign.frames_each > 1 << 30 {
                    return refuse(format!("{} frames a rank: not between 1 and 2^30", assign.frames_each));
                }
            }
        }
        self.cluster.check()?;
        self.check_failures()?;
        topology::parse(&self.network)?.of(self.nodes).map(|_| ())
    }

    /// A job that has no failures in its model must not seem to have survived them.
    fn check_failures(&self) -> Result<()> {
        let failures = &self.cluster.failures;
        let (dead, failing) = match &self.work {
            Work::Program(_) | Work::View(_) => (true, true),
            Work::Push(_) | Work::Fetching(_) => (true, false),
            Work::Names(_) | Work::Assign(_) => (false, false),
        };
        for (name, value, is_modelled) in
            [("dead_fraction", failures.dead_fraction, dead), ("mtbf_hours", failures.mtbf_hours, failing)]
        {
            if value > 0.0 && !is_modelled {
                let why = "this workload does not model such failures";
                return refuse(format!("failures.{name} = {value}: {why}"));
            }
        }
        Ok(())
    }

    fn check_program(&self, program: &Program) -> Result<()> {
        if program.steps.is_empty() {
            return refuse(format!("job {:?} has no steps", self.name));
        }
        if program.ranges.is_empty() && program.steps.len() > STEPS_MAX {
            return refuse(format!("job {:?} has more than {STEPS_MAX} steps", self.name));
        }
        if program.phases.len() > PHASES_MAX {
            return refuse(format!("job {:?} has more than {PHASES_MAX} phases", self.name));
        }
        if program.totals_of_all(self.ranks()).1 == u64::MAX {
            let (name, ranks) = (&self.name, self.ranks());
            let why = format!("job {name:?}: its {ranks} ranks move more than 16 EiB together");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        let beyond = |(begin, end): &(u32, u32)| begin > end || *end as usize > program.steps.len();
        if program.ranges.iter().any(beyond) {
            return refuse(format!("job {:?}: a rank's steps are not among the steps", self.name));
        }
        if program.ranges.len() as u64 > self.ranks() {
            let (logged, ranks) = (program.ranges.len(), self.ranks());
            return refuse(format!(
                "{logged} ranks were logged, and {} nodes with {} ranks each are {ranks}; give --nodes or \
                 --ranks-per-node",
                self.nodes, self.ranks_per_node
            ));
        }
        for step in &program.steps {
            match &step.op {
                Op::Compute(spread) => spread.check("compute")?,
                Op::Write(bytes, _) | Op::Read(bytes, _) | Op::Allreduce(bytes) if *bytes > BYTES_MAX => {
                    return refuse(format!("a step of {bytes} bytes; at most {BYTES_MAX} are simulated"));
                }
                Op::Write(_, at) if !matches!(at, At::Local | At::Shared) => {
                    return refuse("a step writes elsewhere than to the own disk or the shared store");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Ranks on all nodes.
    pub fn ranks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.ranks_per_node)
    }
}

fn check_push(push: &Push) -> Result<()> {
    let within = |name: &str, value: f64, low: f64, high: f64| match (low..=high).contains(&value) {
        true => Ok(()),
        false => refuse(format!("push: {name} = {value} is not between {low} and {high}")),
    };
    within("frames", f64::from(push.frames), 1.0, 1e9)?;
    within("frame_bytes", push.frame_bytes as f64, 1.0, BYTES_MAX as f64)?;
    within("interval_us", push.interval_us, 0.0, 86_400e6)?;
    within("budget_bytes", push.budget_bytes as f64, 1.0, u64::MAX as f64)?;
    within("old_bytes", push.old_bytes as f64, 0.0, push.budget_bytes as f64)?;
    within("window_frames", push.window_frames as f64, 1.0, 1e6)
}

/// A job file. What is missing keeps the command line's or the default value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobFile {
    /// The job's name.
    pub name: Option<String>,
    /// Nodes, as on the command line: `4096`, or `512..16384`.
    pub nodes: Option<NodesText>,
    /// Ranks on each node.
    pub ranks_per_node: Option<u32>,
    /// The network's shape.
    pub net: Option<String>,
    /// How closely the network is simulated.
    pub fidelity: Option<String>,
    /// The seed.
    pub seed: Option<u64>,
    /// A cluster's name, or the path of a cluster.toml.
    pub cluster: Option<String>,
    /// Where the data of a replayed log lie: local, random or shared.
    pub data: Option<String>,
    /// The steps.
    #[serde(default, rename = "step")]
    pub steps: Vec<StepFile>,
}

/// A number of nodes or a range of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "nodes: write a number such as 4096, or a range in quotes, such as \"512..4096\""
)]
pub enum NodesText {
    /// One scale.
    One(u32),
    /// A range or a list.
    Text(String),
}

/// A step of a job file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepFile {
    /// What happens: open, insert, lookup, close, remove, write, read, sync, barrier, allreduce,
    /// compute, repeat.
    #[serde(rename = "do")]
    pub what: String,
    /// The name in reports; without it, `what`.
    pub phase: Option<String>,
    /// Bytes, such as `4MB`.
    pub bytes: Option<String>,
    /// Where: local, cached, next, random, shared for data; hashed, own, directory, shared for
    /// metadata.
    pub at: Option<String>,
    /// Parts of the directory.
    pub parts: Option<u32>,
    /// Of computing.
    pub time_us: Option<Spread>,
    /// Of a repetition.
    pub times: Option<u32>,
    /// Steps of a repetition.
    #[serde(default, rename = "step")]
    pub steps: Vec<StepFile>,
}

impl JobFile {
    /// Reads a job file. `Config` with line and reason if it is none.
    pub fn from_toml(text: &str) -> Result<JobFile> {
        toml::from_str(text).map_err(|error| Error::new(ErrorKind::Config, error.to_string()))
    }

    /// The steps as a program.
    pub fn program(&self) -> Result<Program> {
        add_steps(Program::new(), &self.steps, 0)
    }
}

impl StepFile {
    /// What a step has must mean something to it: whoever writes it expects that it does.
    fn check_fields(&self) -> Result<()> {
        let takes: &[&str] = match self.what.as_str() {
            "repeat" => &["times", "step"],
            "open" | "insert" | "lookup" | "close" | "remove" => &["phase", "at", "parts"],
            "write" | "read" => &["phase", "bytes", "at"],
            "allreduce" => &["phase", "bytes"],
            "compute" => &["phase", "time_us"],
            "sync" | "barrier" => &["phase"],
            // It is refused by its name.
            _ => return Ok(()),
        };
        let has = [
            ("phase", self.phase.is_some()),
            ("bytes", self.bytes.is_some()),
            ("at", self.at.is_some()),
            ("parts", self.parts.is_some()),
            ("time_us", self.time_us.is_some()),
            ("times", self.times.is_some()),
            ("step", !self.steps.is_empty()),
        ];
        let what = &self.what;
        if self.parts == Some(0) {
            return config(format!("{what}: parts = 0; a directory has at least 1"));
        }
        match has.iter().find(|(name, has)| *has && !takes.contains(name)) {
            None => Ok(()),
            Some(("step", _)) => {
                config(format!("{what}: it has steps of its own ([[step.step]]), and only a repeat may"))
            }
            Some((name, _)) => {
                config(format!("{what}: {name} means nothing to it; it takes {}", takes.join(", ")))
            }
        }
    }
}

fn add_steps(mut program: Program, steps: &[StepFile], depth: u8) -> Result<Program> {
    for step in steps {
        step.check_fields()?;
        if step.what != "repeat" {
            let phase = step.phase.as_deref().unwrap_or(&step.what);
            program.add(phase, op_of(step)?);
            continue;
        }
        let Some(times) = step.times.filter(|times| (1..=100_000_000).contains(times)) else {
            return config("repeat: give times between 1 and 100000000");
        };
        if usize::from(depth) >= LOOPS_MAX {
            return config(format!("repeat: loops nest {LOOPS_MAX} deep at most"));
        }
        if step.steps.is_empty() {
            return config("repeat: it has no steps; write [[step.step]] beneath it");
        }
        let mut inner = Ok(());
        program = program.repeat(times, depth, |program| match add_steps(program, &step.steps, depth + 1) {
            Ok(program) => program,
            Err(error) => {
                inner = Err(error);
                Program::new()
            }
        });
        inner?;
    }
    Ok(program)
}

fn config<T>(why: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(ErrorKind::Config, format!("job file: {why}")))
}

fn op_of(step: &StepFile) -> Result<Op> {
    let what = step.what.as_str();
    let bytes = || match &step.bytes {
        Some(text) => byte_size::parse(text),
        None => config(format!("{what}: give bytes, such as bytes = \"4MB\"")),
    };
    let data = || match step.at.as_deref().unwrap_or("local") {
        "local" => Ok(At::Local),
        "cached" => Ok(At::Cached),
        "next" => Ok(At::Next),
        "random" => Ok(At::Random),
        "shared" => Ok(At::Shared),
        other => config(format!("{what}: at = {other:?}; there are local, cached, next, random, shared")),
    };
    let place = || match (step.at.as_deref().unwrap_or("hashed"), step.parts) {
        ("hashed", None) => Ok(MetadataNode::Hashed),
        ("own", None) => Ok(MetadataNode::Own),
        ("directory", parts) => Ok(MetadataNode::Directory { parts: parts.unwrap_or(1).max(1) }),
        ("shared", None) => Ok(MetadataNode::Shared { in_one_directory: false }),
        ("shared-directory", None) => Ok(MetadataNode::Shared { in_one_directory: true }),
        (other, parts) => {
            let parts = parts.map_or(String::new(), |parts| format!(" with parts = {parts}"));
            let known = "hashed, own, directory (with parts), shared, shared-directory";
            config(format!("{what}: at = {other:?}{parts}; there are {known}"))
        }
    };
    match what {
        "open" => Ok(Op::Meta(MetaOp::Open, place()?)),
        "insert" => Ok(Op::Meta(MetaOp::Insert, place()?)),
        "lookup" => Ok(Op::Meta(MetaOp::Lookup, place()?)),
        "close" => Ok(Op::Meta(MetaOp::Close, place()?)),
        "remove" => Ok(Op::Meta(MetaOp::Remove, place()?)),
        "write" => Ok(Op::Write(bytes()?, data()?)),
        "read" => Ok(Op::Read(bytes()?, data()?)),
        "sync" => Ok(Op::Sync),
        "barrier" => Ok(Op::Barrier),
        "allreduce" => Ok(Op::Allreduce(bytes()?)),
        "compute" => match &step.time_us {
            Some(time) => Ok(Op::Compute(time.clone())),
            None => config("compute: give time_us, such as time_us = 500.0"),
        },
        other => config(format!(
            "do = {other:?}; there are open, insert, lookup, close, remove, write, read, sync, barrier, \
             allreduce, compute and repeat"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_file_becomes_a_program() {
        let text = "
            name = \"mine\"\nnodes = \"512..1024\"
            [[step]]\ndo = \"open\"
            [[step]]\ndo = \"repeat\"\ntimes = 3
            [[step.step]]\ndo = \"write\"\nbytes = \"4MB\"\nphase = \"dump\"
            [[step.step]]\ndo = \"compute\"\ntime_us = { mean_us = 5.0 }
            [[step]]\ndo = \"close\"\nat = \"directory\"\nparts = 16";
        let program = JobFile::from_toml(text).unwrap().program().unwrap();
        assert_eq!(program.totals(), (1 + 3 * 2 + 1, 12_000_000));
        assert_eq!(program.phases, ["open", "dump", "compute", "close"]);
        assert_eq!(program.steps[4].op, Op::Meta(MetaOp::Close, MetadataNode::Directory { parts: 16 }));
    }

    #[test]
    fn a_wrong_job_file_says_what_is_wrong() {
        let check = |text: &str, expected: &str| {
            let error = JobFile::from_toml(text).and_then(|file| file.program()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("[[step]]\ndo = \"fly\"", "do = \"fly\"; there are open");
        check("[[step]]\ndo = \"write\"", "give bytes");
        check("[[step]]\ndo = \"write\"\nbytes = \"4X\"", "4X");
        check("[[step]]\ndo = \"read\"\nbytes = \"4\"\nat = \"moon\"", "moon");
        check("[[step]]\ndo = \"repeat\"\ntimes = 0", "times between 1");
        check("[[step]]\ndo = \"repeat\"\ntimes = 2", "no steps");
        check("[[step]]\ndo = \"compute\"", "time_us");
        check("speed = 1", "unknown field `speed`");
        check("nodes = -1", "write a number such as 4096");
        check("[[step]]\ndo = \"open\"\nat = \"own\"\nparts = 3", "parts = 3");
        // What a step does not take is refused, and not left out.
        let inner = "[[step.step]]\ndo = \"barrier\"";
        check(&format!("[[step]]\ndo = \"write\"\nbytes = \"1\"\n{inner}"), "only a repeat may");
        check("[[step]]\ndo = \"barrier\"\nbytes = \"4MB\"", "bytes means nothing to it; it takes phase");
        check("[[step]]\ndo = \"write\"\nbytes = \"1\"\ntimes = 3", "write: times means nothing");
        check("[[step]]\ndo = \"sync\"\nat = \"shared\"", "sync: at means nothing");
        check("[[step]]\ndo = \"open\"\nat = \"directory\"\nparts = 0", "parts = 0");
        let named = "[[step]]\ndo = \"repeat\"\ntimes = 2\nphase = \"x\"";
        check(&format!("{named}\n{inner}"), "repeat: phase means nothing");
    }

    #[test]
    fn what_a_workload_does_not_model_is_refused() {
        let job = |name: &str| {
            let workload = crate::workloads::named(name).unwrap();
            Job {
                name: name.to_owned(),
                nodes: 64,
                ranks_per_node: 1,
                network: "star".to_owned(),
                fidelity: Fidelity::Path,
                seed: 1,
                cluster: Cluster::intrepid(),
                work: (workload.work)(64),
            }
        };
        for (name, dead, failing) in [
            ("fusionfs", true, true),
            ("view", true, true),
            ("push", true, false),
            ("analysis-fetch", true, false),
            ("namespace", false, false),
            ("assign", false, false),
        ] {
            let mut job = job(name);
            assert!(job.check().is_ok(), "{name}");
            job.cluster.failures.dead_fraction = 0.1;
            assert_eq!(job.check().is_ok(), dead, "{name}");
            job.cluster.failures.dead_fraction = 0.0;
            job.cluster.failures.mtbf_hours = 1.0;
            assert_eq!(job.check().is_ok(), failing, "{name}");
        }
        let several = Job { ranks_per_node: 2, ..job("push") };
        assert!(several.check().unwrap_err().to_string().contains("one writer"));
    }

    /// Sums of bytes must fit, or rates would be made up.
    #[test]
    fn a_job_that_moves_too_much_is_refused() {
        let job = |times: u32| Job {
            name: "huge".to_owned(),
            nodes: 2_000_376,
            ranks_per_node: 1,
            network: "star".to_owned(),
            fidelity: Fidelity::Path,
            seed: 1,
            cluster: Cluster::intrepid(),
            work: Work::Program(
                Program::new()
                    .repeat(times, 0, |program| program.then("write", Op::Write(1 << 40, At::Local))),
            ),
        };
        assert!(job(8).check().is_ok());
        let error = job(9).check().unwrap_err();
        assert!(error.kind() == ErrorKind::TooLarge && error.to_string().contains("16 EiB"), "{error}");
    }
}
