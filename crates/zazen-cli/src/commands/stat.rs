//! `zazen stat`: all that is known of one frame.

use super::ls::{UNSEEN, for_each_row, origin, row_json};
use crate::output::{self, Lines, Table, human_bytes};
use crate::target::{self, Done, OpenedSeries, Pattern, Targets};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use zazen_backing::directory::stat_local;
use zazen_core::{Error, ErrorKind, FrameNo, Layout, NameTemplate, Request, Result, Validator};
use zazen_frames::messages::ListRow;

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen stat /lustre/sim1 42
  zazen stat /lustre/sim1 frame-0000042.dcd --nodes nodes.txt --json

A copy is `current` if its source still looks as it did when it was copied (size, times, inode), and
`stale` if not. It is `too young to tell` if the source had changed just before; then the next read
fetches the frame again. It is `unchecked` if the source cannot be seen from here.")]
pub(crate) struct Stat {
    /// The dataset's directory
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// The frame's number or its file
    #[arg(value_name = "N|FILE")]
    frame: String,
    #[command(flatten)]
    pattern: Pattern,
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Stat) -> Result<Done> {
    let dataset = target::dataset_path(&arguments.dataset)?;
    let answers = arguments.targets.open_cached(&arguments.dataset, arguments.pattern.get())?;
    let (mut nodes, missed) = (answers.given, answers.missed);
    let number = arguments.number(&nodes)?;
    let mut copies: Vec<(String, ListRow, &'static str)> = Vec::new();
    for node in &mut nodes {
        for_each_row(node, Some(Request::new(number, number, 1)?), |name, row| {
            let freshness = freshness(&dataset.join(row.source.path.as_str()), row.meta.validator);
            copies.push((name.to_owned(), row.clone(), freshness));
        })?;
    }
    if arguments.json {
        let copies = copies.iter().map(|(node, row, freshness)| {
            let mut value = row_json(node, row);
            value["freshness"] = json!(freshness);
            value
        });
        output::json(&json!({
            "dataset": dataset,
            "frame": number,
            "copies": copies.collect::<Vec<_>>(),
            "missed": target::missed_json(&missed),
        }));
    } else if copies.is_empty() {
        output::line(format!(
            "frame {number} of {}: on none of the {} nodes that answer",
            dataset.display(),
            nodes.len()
        ));
    } else {
        output::print(&as_table(number, &dataset, &copies));
    }
    Ok(target::judge(&missed, UNSEEN))
}

impl Stat {
    fn number(&self, nodes: &[OpenedSeries]) -> Result<u64> {
        if let Ok(number) = self.frame.parse::<u64>() {
            return FrameNo::new(number).map(FrameNo::get);
        }
        let name = Path::new(&self.frame).file_name().and_then(|name| name.to_str()).unwrap_or(&self.frame);
        let mut templates = nodes.iter().filter_map(|node| match &node.info.layout {
            Some(Layout::Files(template)) => Some(template),
            _ => None,
        });
        let spelled =
            |template: &NameTemplate| template.number(name).or_else(|| template.number(&self.frame));
        let number = templates.clone().find_map(spelled);
        number.map(FrameNo::get).ok_or_else(|| {
            let how = match templates.next() {
                Some(template) => format!("files of this dataset are called {template}"),
                _ => "the cache has no file per frame of it; give the frame's number".to_owned(),
            };
            Error::new(
                ErrorKind::InvalidArgument,
                format!("{}: not a frame of {}: {how}", self.frame, self.dataset.display()),
            )
        })
    }
}

fn freshness(source: &Path, copied: Option<Validator>) -> &'static str {
    let (Some(copied), Ok(now)) = (copied, stat_local(source)) else { return "unchecked" };
    match (copied.agrees_with(&now.validator), copied.unsettled) {
        (true, _) => "current",
        (false, true) => "too young to tell",
        (false, false) => "stale",
    }
}

fn as_table(number: u64, dataset: &Path, copies: &[(String, ListRow, &'static str)]) -> Lines {
    let first = &copies[0].1;
    let mut text = Lines::default();
    text.line(format!(
        "frame {number} of {}: {} at {} of {}",
        dataset.to_string_lossy(),
        human_bytes(first.meta.length),
        first.source.offset,
        first.source.path.as_str()
    ));
    let mut table = Table::new(&["node", "origin", "freshness", "checksum", "file"]);
    for (node, row, freshness) in copies {
        table.row(vec![
            node.clone(),
            origin(row.origin).to_owned(),
            (*freshness).to_owned(),
            format!("{:016x}", row.meta.checksum),
            row.path.clone(),
        ]);
    }
    text.add(&table.render());
    text
}
