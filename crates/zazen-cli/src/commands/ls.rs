//! `zazen ls`: which frames of a dataset are cached where.

use super::assign::runs_text;
use crate::output::{self, Table, human_bytes};
use crate::parse;
use crate::target::{self, Answers, Done, OpenedSeries, Pattern, Targets};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Origin, Request, Result, RunSet};
use zazen_frames::messages::ListRow;

/// Rows asked for at a time.
const PAGE_ROWS: u32 = 1000;
/// What a node that was not reached means for a list.
pub(crate) const UNSEEN: &str = "what they hold is not shown";

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen ls /lustre/sim1                       # by node: which frame numbers, as first+count*step
  zazen ls /lustre/sim1 --long --frames 0-99  # a line per frame
  zazen ls /lustre/sim1 --nodes nodes.txt --json")]
pub(crate) struct Ls {
    /// The dataset's directory
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// Only these frames: BEGIN-END or BEGIN-END:STRIDE
    #[arg(long, value_name = "RANGE", value_parser = parse::frame_range)]
    frames: Option<Request>,
    /// A row per frame: origin, length, checksum, file
    #[arg(long, short)]
    long: bool,
    #[command(flatten)]
    pattern: Pattern,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Ls) -> Result<Done> {
    let nodes = arguments.targets.open_cached(&arguments.dataset, arguments.pattern.get())?;
    match arguments.long {
        true => arguments.long(nodes),
        false => arguments.summary(nodes),
    }
}

impl Ls {
    fn summary(&self, nodes: Answers<OpenedSeries>) -> Result<Done> {
        let mut table =
            Table::new(&["node", "pattern", ">native", ">alien", "native frames", "alien frames"]);
        let mut all = Vec::new();
        for mut node in nodes.given {
            let (begin, end, stride) =
                self.frames.map_or((0, FRAME_NO_MAX, 1), |r| (r.begin(), r.end(), r.stride()));
            let held = node.remote.query(node.info.handle, begin, end, stride)?;
            let (native, alien) = (triples(&held.native), triples(&held.alien));
            table.row(vec![
                node.name.clone(),
                node.pattern.clone(),
                held.native.len().to_string(),
                held.alien.len().to_string(),
                runs_text(&native),
                runs_text(&alien),
            ]);
            all.push(json!({
                "node": node.name,
                "pattern": node.pattern,
                "native_frames": held.native.len(),
                "alien_frames": held.alien.len(),
                "native": native,
                "alien": alien,
            }));
        }
        match self.json {
            true => output::json(&json!({
                "dataset": self.dataset, "nodes": all, "missed": target::missed_json(&nodes.missed),
            })),
            false => output::print(&table.render()),
        }
        Ok(target::judge(&nodes.missed, UNSEEN))
    }

    fn long(&self, nodes: Answers<OpenedSeries>) -> Result<Done> {
        let mut table = Table::new(&[">frame", "node", "origin", ">size", "checksum", "file"]);
        let mut rows = Vec::new();
        for mut node in nodes.given {
            for_each_row(&mut node, self.frames, |name, row| {
                rows.push((row.meta.number.get(), row_json(name, row)));
                if !self.json {
                    table.row(vec![
                        row.meta.number.to_string(),
                        name.to_owned(),
                        origin(row.origin).to_owned(),
                        human_bytes(row.meta.length),
                        format!("{:016x}", row.meta.checksum),
                        row.path.clone(),
                    ]);
                }
            })?;
        }
        rows.sort_by_key(|(number, _)| *number);
        match self.json {
            true => {
                let rows: Vec<Value> = rows.into_iter().map(|(_, row)| row).collect();
                output::json(&json!({
                    "dataset": self.dataset, "rows": rows, "missed": target::missed_json(&nodes.missed),
                }));
            }
            false => output::print(&table.render()),
        }
        Ok(target::judge(&nodes.missed, UNSEEN))
    }
}

/// Calls `each` with the node's name and every cached frame of `wanted` (all if `None`), ascending.
pub(crate) fn for_each_row(
    node: &mut OpenedSeries,
    wanted: Option<Request>,
    mut each: impl FnMut(&str, &ListRow),
) -> Result<()> {
    let last = wanted.map_or(FRAME_NO_MAX, |request| request.end());
    let mut from = Some(wanted.map_or(0, |request| request.begin()));
    while let Some(start) = from.filter(|start| *start <= last) {
        let page = node.remote.list(node.info.handle, start, PAGE_ROWS)?;
        let is_wanted = |number| wanted.is_none_or(|request| request.index_of(number).is_some());
        for row in page.rows.iter().filter(|row| is_wanted(row.meta.number.get())) {
            each(&node.name, row);
        }
        from = page.next;
    }
    Ok(())
}

/// A cached frame as JSON.
pub(crate) fn row_json(node: &str, row: &ListRow) -> Value {
    json!({
        "frame": row.meta.number.get(),
        "node": node,
        "origin": origin(row.origin),
        "bytes": row.meta.length,
        "checksum": format!("{:016x}", row.meta.checksum),
        "source": row.source.path.as_str(),
        "offset": row.source.offset,
        "validator": row.meta.validator.map(|v| json!({
            "size": v.size, "mtime_ns": v.mtime_ns, "ctime_ns": v.ctime_ns, "inode": v.inode,
            "settled": !v.unsettled,
        })),
        "uid": row.meta.uid,
        "gid": row.meta.gid,
        "mode": format!("{:04o}", row.meta.mode),
        "path": row.path,
    })
}

pub(crate) fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Native => "native",
        Origin::Alien => "alien",
    }
}

fn triples(set: &RunSet) -> Vec<[u64; 3]> {
    set.runs().map(|run| [run.first, run.count, run.step]).collect()
}
