//! The explanation as text for a terminal.

use crate::output::{Lines, Table};
use std::time::{SystemTime, UNIX_EPOCH};
use zazen_core::RunSet;
use zazen_explain::{Explanation, Finding, What, seconds};
use zazen_frames::scan_record::{Part, ScanRecord};

/// Columns of a bar.
const BAR: u64 = 40;
/// Runs of numbers that are named.
const RUNS_MAX: usize = 6;

/// A finding's kind in a word, as JSON has it.
pub(super) fn word(explanation: &Explanation, finding: &Finding) -> String {
    match finding.what {
        What::Frames(at) => explanation.causes[at].cause.word().to_owned(),
        What::SlowStore => "slow store".to_owned(),
        What::SlowRank(_) => "slow rank".to_owned(),
        What::Assign => "assignment".to_owned(),
    }
}

/// Frame numbers, the first runs of them.
pub(super) fn numbers(set: &RunSet) -> String {
    let mut runs = set.runs();
    let shown: Vec<String> = runs
        .by_ref()
        .take(RUNS_MAX)
        .map(|run| match (run.count, run.step) {
            (1, _) => run.first.to_string(),
            (_, 1) => format!("{}-{}", run.first, run.last()),
            (_, step) => format!("{}-{}:{step}", run.first, run.last()),
        })
        .collect();
    let more = if runs.next().is_some() { ",…" } else { "" };
    format!("{}{more}", shown.join(","))
}

/// What a part is, for people.
pub(super) fn about(part: Part) -> &'static str {
    match part {
        Part::Assign => "agreeing on who reads what",
        Part::Daemon => "waiting for the daemon",
        Part::Disk => "this node's disk or memory",
        Part::Peer => "other nodes' caches",
        Part::Backing => "the backing store",
        Part::Checksum => "checking frames",
        Part::Consumer => "the program itself",
    }
}

/// All of it; `back` of `count` analyses on record.
pub(super) fn text(explanation: &Explanation, back: usize, count: usize) -> Lines {
    let slow = &explanation.ranks[explanation.slowest];
    let usual = &explanation.ranks[explanation.median];
    let mut text = Lines::default();
    text.line(&explanation.verdict);
    if !explanation.mend.is_empty() {
        text.line(format!("  {}", explanation.mend));
    }
    text.line("");
    text.line(heading(explanation, slow));
    text.add(&waterfall(slow, (explanation.ranks.len() > 1).then_some(usual)));
    if !explanation.causes.is_empty() {
        let all = explanation.near_frames + explanation.far_frames;
        text.line("");
        text.line(format!("{} of {all} frames were not on their reader's node", explanation.far_frames));
        let mut table = Table::new(&["cause", ">frames", ">cost", "node", "frame numbers", ""]);
        for cause in &explanation.causes {
            table.row(vec![
                cause.cause.word().to_owned(),
                cause.frames.to_string(),
                seconds(cause.cost_ns),
                cause.node.clone(),
                numbers(&cause.set),
                cause.detail.clone(),
            ]);
        }
        text.add(&table.render());
    }
    let others: Vec<_> = explanation.findings.iter().skip(1).collect();
    if !others.is_empty() {
        text.line("");
        text.line("Also:");
        for finding in others {
            text.line(format!("- {}", finding.sentence));
            text.line(format!("    {}", finding.mend));
        }
    }
    text.line("");
    text.line(format!(
        "With all frames on their readers' nodes: at most {} instead of {}.",
        seconds(explanation.all_local_ns),
        seconds(explanation.wall_ns)
    ));
    for remark in &explanation.remarks {
        text.line(format!("Note: {remark}."));
    }
    let left = count.saturating_sub(back + 1);
    match left {
        0 => {}
        1 => text.line(format!("An earlier analysis is on record (--back {}).", back + 1)),
        _ => text.line(format!("{left} earlier analyses are on record (--back {}).", back + 1)),
    }
    text
}

/// When it began, for people: a quick analysis leaves no record, so this may be an older one.
fn ago(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} min ago", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

fn heading(explanation: &Explanation, slow: &ScanRecord) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let began = ago(now.saturating_sub(slow.began_ms));
    let on = if slow.node.is_empty() { &slow.host } else { &slow.node };
    match explanation.ranks.len() {
        1 => format!("Where {} went (on {on}; it began {began})", seconds(explanation.wall_ns)),
        ranks => format!(
            "Where {} went: rank {} (on {on}; it began {began}), the slowest of {ranks}, beside the median \
             rank {}",
            seconds(explanation.wall_ns),
            slow.rank,
            explanation.ranks[explanation.median].rank
        ),
    }
}

fn waterfall(slow: &ScanRecord, usual: Option<&ScanRecord>) -> Lines {
    let mut table = match usual {
        Some(_) => Table::new(&["part", ">slowest", ">median", "", ""]),
        None => Table::new(&["part", ">time", "", ""]),
    };
    let mut before = 0u64;
    for part in Part::ALL {
        let ns = slow.spent(part);
        let wall = slow.wall_ns.max(1);
        // Parts that claim more than the whole fill the bar.
        let column = |ns: u64| (u128::from(ns) * u128::from(BAR) / u128::from(wall)).min(BAR.into()) as usize;
        let from = column(before);
        before = before.saturating_add(ns);
        let to = column(before);
        let bar = format!("{}{}", " ".repeat(from), "█".repeat(to.saturating_sub(from)));
        let mut row = vec![part.word().to_owned(), seconds(ns)];
        row.extend(usual.map(|usual| seconds(usual.spent(part))));
        row.extend([format!("{bar:40}"), about(part).to_owned()]);
        table.row(row);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::ago;

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let check = |seconds: u64, expected| assert_eq!(ago(seconds * 1000 + 999), expected);
        check(0, "0 s ago");
        check(119, "119 s ago");
        check(120, "2 min ago");
        check(7199, "119 min ago");
        check(7200, "2 h ago");
        check(172_799, "47 h ago");
        check(172_800, "2 days ago");
    }
}
