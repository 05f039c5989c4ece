//! `make bench`: every figure is a ratio within one run, Zazen against a peer or the raw device,
//! interleaved, with five repeats or more, median and spread. The absolute rates beside it mean
//! little on a busy machine.

mod checks;
mod cold;
mod cost;
mod holdings;
mod measure;
mod push;
mod random;
mod reads;
mod rig;
mod slowdown;
mod small;
mod warm;

use clap::{Parser, ValueEnum};
use measure::Row;
use std::process::ExitCode;
use zazen_core::{Error, ErrorKind, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Warm local reads against plain reads of the same files.
    Warm,
    /// Cold reads against fio's best on the same disk.
    Cold,
    /// Small frames, cold, against one file of the same bytes and against plain files.
    Small,
    /// Small frames one by one, in random order, against opening their files.
    Random,
    /// What the stale check and the checksum cost.
    Checks,
    /// Several readers of one node against one.
    Readers,
    /// Pushing against writing the same files locally.
    Push,
    /// A writer that is pushed from against the same writer alone.
    Slowdown,
    /// Memory, start and query of a daemon with millions of frames.
    Holdings,
}

/// Prints Zazen's figures. Needs `zazend` beside itself (`cargo build --release`), and root to drop
/// caches.
///
/// Example: zazen-bench --only warm,push --repeats 7 --json rows.json
#[derive(Parser)]
struct Arguments {
    /// Run only these groups.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Group>,
    /// Repeats of each side of a ratio.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Where the bench keeps its files (about 4 GB); on the disk that is to be measured.
    #[arg(long, default_value = "target/bench")]
    dir: std::path::PathBuf,
    /// Also write the rows as JSON here.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

fn run(arguments: &Arguments) -> Result<Vec<Row>> {
    let wanted = |group| arguments.only.is_empty() || arguments.only.contains(&group);
    let folder = rig::Folder::new(&arguments.dir)?;
    let repeats = arguments.repeats.max(1);
    let mut rows = Vec::new();
    let mut keep = |new: Vec<Row>| {
        for row in new {
            measure::print(&row);
            rows.push(row);
        }
    };
    measure::print_head();
    if wanted(Group::Warm) {
        keep(warm::warm(&folder, repeats)?);
    }
    if wanted(Group::Cold) {
        keep(cold::cold(&folder, repeats)?);
    }
    if wanted(Group::Small) {
        keep(small::small(&folder, repeats)?);
    }
    if wanted(Group::Random) {
        keep(random::random(&folder, repeats)?);
    }
    if wanted(Group::Checks) {
        keep(checks::checks(&folder, repeats)?);
    }
    if wanted(Group::Readers) {
        keep(warm::readers(&folder, repeats)?);
    }
    if wanted(Group::Push) {
        keep(push::throughput(&folder, repeats)?);
    }
    if wanted(Group::Slowdown) {
        keep(slowdown::slowdown(&folder, repeats)?);
    }
    if wanted(Group::Holdings) {
        keep(holdings::holdings(&folder, repeats)?);
    }
    Ok(rows)
}

#[allow(clippy::print_stdout, clippy::print_stderr)] // a command's own output
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let finish = |rows: &[Row]| -> Result<()> {
        let Some(path) = &arguments.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(rows)
            .map_err(|error| Error::new(ErrorKind::Io, format!("rows as JSON: {error}")))?;
        std::fs::write(path, text + "\n")
            .map_err(|error| Error::io(format!("write {}", path.display()), error))
    };
    match run(&arguments).and_then(|rows| finish(&rows)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zazen-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
