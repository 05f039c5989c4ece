//! Lists of time steps: ParaView's `.series` files (JSON), and tables of files.

use crate::xml::refused;
use serde::Deserialize;
use zazen_core::Result;

/// A time step and its file.
#[derive(Deserialize)]
struct TimeStep {
    name: String,
    time: f64,
}

#[derive(Deserialize)]
struct Series {
    files: Vec<TimeStep>,
}

/// The (time, file) pairs of a `.series` file, in its order.
pub(crate) fn parse(text: &str) -> Result<Vec<(f64, String)>> {
    let series: Series = serde_json::from_str(text)
        .map_err(|error| refused(format!("is no complete list of time steps: {error}")))?;
    let entry = |entry: TimeStep| match entry {
        TimeStep { name, .. } if name.is_empty() => Err(refused("a time step names no file".into())),
        TimeStep { name, time } => Ok((time, name)),
    };
    series.files.into_iter().map(entry).collect()
}

/// The (time, file) pairs of a table: the first line is `time,file`, and each other line a time and
/// a file, which may hold commas.
pub(crate) fn parse_table(text: &str) -> Result<Vec<(f64, String)>> {
    let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let head = lines.next().map_or("", |(line, _)| line);
    if head.split(',').map(str::trim).collect::<Vec<_>>() != ["time", "file"] {
        return Err(refused(format!("its first line is {head:?}; a table of files begins with time,file")));
    }
    let row = |(line, at): (&str, usize)| {
        let (time, file) = line.split_once(',').unwrap_or((line, ""));
        let time = time.trim().parse().ok().filter(|time: &f64| time.is_finite());
        match (time, file.trim()) {
            (Some(time), file) if !file.is_empty() => Ok((time, file.to_owned())),
            _ => Err(refused(format!("line {at}: {line:?} is not a time and a file"))),
        }
    };
    lines.map(row).collect()
}
