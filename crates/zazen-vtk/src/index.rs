//! From an index file to time steps.

use crate::path::beside;
use crate::series;
use crate::tree::{Files, PART, Tree};
use crate::xml::{self, Listed, refused};
use serde::Serialize;
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};

/// The most time steps of an index.
pub const STEPS_MAX: usize = 1 << 20;
/// How deep index files may name other index files.
const DEPTH_MAX: usize = 8;
/// Endings of index files in XML.
const INDEXES: [&str; 11] =
    ["vtm", "vtmb", "vtpd", "vtpc", "pvd", "pvtu", "pvti", "pvtr", "pvts", "pvtp", "pvthtg"];
/// Endings of files with data.
const DATA: [&str; 9] = ["vtu", "vti", "vtr", "vts", "vtp", "htg", "vtt", "vtk", "vtkhdf"];

/// A visualization over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Index {
    /// Ascending by time; at least one.
    pub steps: Vec<Step>,
}

/// One time step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The time.
    pub time: f64,
    /// The files, each once.
    pub files: Vec<String>,
    /// The blocks.
    pub tree: Tree,
    /// By file of a structured piece: extents (first and last point along x, y and z) of other
    /// pieces that have some of its cells too, as ghost layers do.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub covered: BTreeMap<usize, Vec<[i32; 6]>>,
    /// Field data of the whole step, as a file of VTK's of its own (`.vtp` without points).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_data: Option<String>,
    /// Why the step cannot be shown: its own index file is missing or damaged. Then it has no
    /// files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl Step {
    /// A step that can be shown.
    pub fn new(time: f64, files: Vec<String>, tree: Tree) -> Step {
        Step { time, files, tree, covered: BTreeMap::new(), field_data: None, trouble: None }
    }
}

impl Index {
    /// The files of each step.
    pub fn files(&self) -> Vec<Vec<String>> {
        self.steps.iter().map(|step| step.files.clone()).collect()
    }
}

/// Reads the index `name`, a file name; `read` gives the bytes of an index file by its path
/// relative to the index's directory, or absolute.
///
/// Fails if the index itself is damaged or of another kind. If the index file of one time step is,
/// then the step says so in [`Step::trouble`].
pub fn read_index(name: &str, read: &mut dyn FnMut(&str) -> Result<Vec<u8>>) -> Result<Index> {
    let mut reading = Reading { read };
    let mut steps = reading.steps(name).map_err(|error| error.within(name))?;
    if steps.is_empty() {
        return Err(refused(format!("{name}: lists no time step")));
    }
    steps.sort_by(|one, other| one.time.total_cmp(&other.time));
    if let Some(pair) = steps.windows(2).find(|pair| pair[0].time == pair[1].time) {
        return Err(refused(format!("{name}: two time steps have the time {}", pair[0].time)));
    }
    Ok(Index { steps })
}

struct Reading<'a> {
    read: &'a mut dyn FnMut(&str) -> Result<Vec<u8>>,
}

impl Reading<'_> {
    fn text(&mut self, path: &str) -> Result<String> {
        let bytes = (self.read)(path)?;
        String::from_utf8(bytes).map_err(|_| refused("is not UTF-8 text".into()))
    }

    fn steps(&mut self, name: &str) -> Result<Vec<Step>> {
        let listed = match ending(name).as_str() {
            "series" => series::parse(&self.text(name)?)?,
            "csv" => {
                let listed = series::parse_table(&self.text(name)?)?;
                return Ok(self.grouped(name, with_parts(listed)));
            }
            "pvd" => match xml::parse(&self.text(name)?)? {
                Listed::Collection(listed) => return Ok(self.grouped(name, listed)),
                _ => return Err(refused("a .pvd file is a Collection, and this is none".into())),
            },
            _ => vec![(0.0, name.to_owned())],
        };
        check_count(listed.len())?;
        let known = |(_, file): &(f64, String)| is_known(file);
        if let Some((_, file)) = listed.iter().find(|entry| !known(entry)) {
            return Err(unknown(file));
        }
        match listed[..] {
            // Without a list of steps, the file is the index, and its faults are the index's.
            [(time, ref file)] if file == name => Ok(vec![self.step(time, name)?]),
            _ => Ok(listed
                .into_iter()
                .map(|(time, file)| self.step_or_trouble(time, &beside(name, &file)))
                .collect()),
        }
    }

    /// Steps of several files each. A step of one file is that file's own tree.
    fn grouped(&mut self, name: &str, mut listed: Vec<(f64, usize, String)>) -> Vec<Step> {
        listed.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut steps = Vec::new();
        for parts in listed.chunk_by(|one, other| one.0 == other.0) {
            let time = parts[0].0;
            if let [(_, _, file)] = parts {
                steps.push(self.step_or_trouble(time, &beside(name, file)));
                continue;
            }
            let mut files = Files::default();
            let grow = |(_, part, file): &(f64, usize, String)| {
                let tree = self.below(beside(name, file), &mut files, 1)?;
                Ok((Some(format!("{PART}{part}")), tree))
            };
            let children: Result<Vec<_>> = parts.iter().map(grow).collect();
            steps.push(match children {
                Ok(children) => {
                    let tree = Tree::Blocks(children);
                    Step { covered: files.covered, ..Step::new(time, files.listed, tree) }
                }
                Err(error) => troubled(time, &error),
            });
        }
        steps
    }

    fn step_or_trouble(&mut self, time: f64, path: &str) -> Step {
        self.step(time, path).unwrap_or_else(|error| troubled(time, &error.within(path)))
    }

    fn step(&mut self, time: f64, path: &str) -> Result<Step> {
        let mut files = Files::default();
        let tree = self.below(path.to_owned(), &mut files, 0)?;
        let field_data = files.field_data.take();
        Ok(Step { covered: files.covered, field_data, ..Step::new(time, files.listed, tree) })
    }

    /// The tree of `path`, which is an index or a file with data.
    fn below(&mut self, path: String, files: &mut Files, depth: usize) -> Result<Tree> {
        if !INDEXES.contains(&ending(&path).as_str()) {
            return if is_known(&path) { Ok(files.add(path)) } else { Err(unknown(&path)) };
        }
        if depth > DEPTH_MAX {
            return Err(refused(format!("index files name each other deeper than {DEPTH_MAX}")));
        }
        let text = self.text(&path)?;
        match xml::parse(&text)? {
            Listed::Step(leaf, field_data) => {
                if depth == 0 {
                    files.field_data = field_data;
                }
                leaf.grow(files, &mut |file, files| {
                    let file = beside(&path, &file);
                    self.below(file.clone(), files, depth + 1).map_err(|error| error.within(&file))
                })
            }
            Listed::Data => Ok(files.add(path)),
            Listed::Collection(_) => Err(refused("time steps within a time step".into())),
        }
    }
}

/// Whether a file of this name is an index of time steps or blocks.
pub fn is_index(name: &str) -> bool {
    let ending = ending(name);
    ending == "series" || INDEXES.contains(&ending.as_str())
}

/// The files of each time are its parts, in the table's order.
fn with_parts(listed: Vec<(f64, String)>) -> Vec<(f64, usize, String)> {
    let mut parts: BTreeMap<u64, usize> = BTreeMap::new();
    let part = |(time, file): (f64, String)| {
        let next = parts.entry(time.to_bits()).or_default();
        *next += 1;
        (time, *next - 1, file)
    };
    listed.into_iter().map(part).collect()
}

fn troubled(time: f64, error: &Error) -> Step {
    Step { trouble: Some(error.to_string()), ..Step::new(time, Vec::new(), Tree::Empty) }
}

fn check_count(steps: usize) -> Result<()> {
    match steps > STEPS_MAX {
        true => Err(Error::new(ErrorKind::TooLarge, format!("{steps} time steps, the limit is {STEPS_MAX}"))),
        false => Ok(()),
    }
}

fn ending(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').map_or(String::new(), |(_, ending)| ending.to_ascii_lowercase())
}

fn is_known(path: &str) -> bool {
    let ending = ending(path);
    INDEXES.contains(&ending.as_str()) || DATA.contains(&ending.as_str())
}

fn unknown(file: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{file} is neither an index (.series, .pvd, .vtm, .vtpd, .vtpc, .pvtu and alike, .csv) nor a \
             file with data (.{})",
            DATA.join(", .")
        ),
    )
}

#[cfg(test)]
mod tests;
