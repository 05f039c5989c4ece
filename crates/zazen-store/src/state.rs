//! What a dataset keeps besides frames: whether it is pinned, its last use, its name templates, its
//! layout.
//!
//! One text file, replaced as a whole. Templates are durable before a record names them by number,
//! and are never reordered.

use crate::own_file::{quote, read_text, seal, unquote, write_text};
use std::sync::Arc;
use zazen_core::trajectory::{Format, Trouble};
use zazen_core::{Error, ErrorKind, FrameNo, Layout, NameTemplate, Piece, RelPath, Result, Source};
use zazen_core::{Trajectory, TrajectoryFile, Validator};
use zazen_env::{Disk, DiskFile, DiskPath};

const TITLE: &str = "zazen dataset 1";
/// Templates that a dataset may have; further names go to the names file.
const TEMPLATES_MAX: usize = 16;

/// The contents of a dataset's state file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) pinned: bool,
    pub(crate) last_use: u64,
    pub(crate) templates: Vec<NameTemplate>,
    pub(crate) layout: Option<Layout>,
}

impl State {
    pub(crate) fn path(dataset: &RelPath) -> DiskPath {
        DiskPath::own(dataset, "state")
    }

    pub(crate) fn load<D: Disk>(disk: &D, dataset: &RelPath) -> Result<State> {
        let path = State::path(dataset);
        let Some(text) = read_text(disk, &path)? else { return Ok(State::default()) };
        match text.strip_prefix("zazen dataset ").and_then(|rest| rest.split_once('\n')) {
            Some(("1", rest)) => State::parse(rest)
                .ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("{path}: not a dataset's state"))),
            Some((version, _)) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{path}: version {version}; this build reads version 1 only"),
            )),
            None => Err(Error::new(ErrorKind::Corrupt, format!("{path}: not a dataset's state"))),
        }
    }

    pub(crate) fn save<D: Disk>(&self, disk: &D, dataset: &RelPath, temporary: &DiskPath) -> Result<u64> {
        let text = self.print();
        write_text(disk, &State::path(dataset), &DiskPath::own_dir(dataset), temporary, &text)?;
        Ok(text.len() as u64 + 13)
    }

    /// Writes it to an unfinished file that is neither durable nor in its place; returns its bytes.
    pub(crate) fn prepare<D: Disk>(&self, disk: &D, temporary: &DiskPath) -> Result<u64> {
        let text = seal(&self.print());
        disk.create(temporary)?.write_all_at(text.as_bytes(), 0)?;
        Ok(text.len() as u64)
    }

    fn print(&self) -> String {
        let mut text = format!("{TITLE}\npinned {}\nused {}\n", u8::from(self.pinned), self.last_use);
        for template in &self.templates {
            text.push_str(&format!("template {}\n", quote(&template.to_string())));
        }
        match &self.layout {
            None => {}
            Some(Layout::Files(template)) => {
                text.push_str(&format!("files {}\n", quote(&template.to_string())));
            }
            Some(Layout::List(files)) => {
                text.push_str("list\n");
                for file in files.iter() {
                    text.push_str(&format!("listed {}\n", quote(file.as_str())));
                }
            }
            Some(Layout::Pieces(pieces)) => {
                text.push_str("pieces\n");
                for piece in pieces {
                    let Piece { path, first, count, step, offset, frame_bytes } = piece;
                    let path = quote(path.as_str());
                    text.push_str(&format!("piece {first} {count} {step} {offset} {frame_bytes} {path}\n"));
                }
            }
            Some(Layout::Trajectory(trajectory)) => {
                let Trajectory { format, n_atoms, single, files } = &**trajectory;
                text.push_str(&format!("trajectory {format} {} {n_atoms}\n", u8::from(*single)));
                for TrajectoryFile { path, first, count, trouble, .. } in files {
                    let path = quote(path.as_str());
                    text.push_str(&format!("holds {first} {count} {path}"));
                    if let Some(Trouble { offset, why, .. }) =
                        trouble.as_ref().filter(|damage| !damage.unfinished)
                    {
                        text.push_str(&format!(" {offset} {}", quote(why)));
                    }
                    text.push('\n');
                }
            }
            // This layout is of one version of one file, but its series has blocks of many files.
            Some(Layout::Blocks(_)) => {}
        }
        text
    }

    fn parse(text: &str) -> Option<State> {
        let mut state = State::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            match words.next()? {
                "pinned" => state.pinned = words.next()? == "1",
                "used" => state.last_use = words.next()?.parse().ok()?,
                "template" => state.templates.push(NameTemplate::parse(&unquote(words.next()?)?).ok()?),
                "files" => {
                    state.layout = Some(Layout::Files(NameTemplate::parse(&unquote(words.next()?)?).ok()?));
                }
                "list" => state.layout = Some(Layout::List(Arc::default())),
                "listed" => {
                    let Some(Layout::List(files)) = &mut state.layout else { return None };
                    Arc::make_mut(files).push(RelPath::new(&unquote(words.next()?)?).ok()?);
                }
                "pieces" => state.layout = Some(Layout::Pieces(Vec::new())),
                "piece" => {
                    let Some(Layout::Pieces(pieces)) = &mut state.layout else { return None };
                    let mut number = || words.next()?.parse().ok();
                    let (first, count, step) = (number()?, number()?, number()?);
                    let (offset, frame_bytes) = (number()?, number()?);
                    let path = RelPath::new(&unquote(words.next()?)?).ok()?;
                    pieces.push(Piece { path, first, count, step, offset, frame_bytes });
                }
                "trajectory" => {
                    let format = Format::named(words.next()?)?;
                    let (single, n_atoms) = (words.next()? == "1", words.next()?.parse().ok()?);
                    let trajectory = Trajectory { format, n_atoms, single, files: Vec::new() };
                    state.layout = Some(Layout::Trajectory(Arc::new(trajectory)));
                }
                "holds" => {
                    let Some(Layout::Trajectory(trajectory)) = &mut state.layout else { return None };
                    let (first, count) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                    let path = RelPath::new(&unquote(words.next()?)?).ok()?;
                    let trouble = match words.next() {
                        Some(offset) => {
                            let (offset, why) = (offset.parse().ok()?, unquote(words.next()?)?);
                            Some(Trouble { offset, unfinished: false, why })
                        }
                        None => None,
                    };
                    let file = TrajectoryFile {
                        path,
                        first,
                        count,
                        table: None,
                        header: Arc::default(),
                        seen: Validator::default(),
                        trouble,
                        samples: None,
                    };
                    Arc::make_mut(trajectory).files.push(file);
                }
                _ => return None,
            }
        }
        Some(state)
    }

    /// The template that gives `source` for frame `number`.
    pub(crate) fn template_of(&self, source: &Source, number: FrameNo) -> Option<u32> {
        if source.offset != 0 || source.length.is_some() {
            return None;
        }
        let path = source.path.as_str();
        let fits = |template: &NameTemplate| template.number(path) == Some(number);
        self.templates.iter().position(fits).map(|at| at as u32)
    }

    /// A template to add for `source`, if it is a whole file whose name contains its number.
    pub(crate) fn new_template(&self, source: &Source, number: FrameNo) -> Option<NameTemplate> {
        if source.offset != 0 || source.length.is_some() || self.templates.len() >= TEMPLATES_MAX {
            return None;
        }
        let path = source.path.as_str();
        let mut end = path.len();
        // The last run of digits is the number; an earlier one may be a time step's folder.
        while let Some(last) = path[..end].rfind(|c: char| c.is_ascii_digit()) {
            let start = path[..=last].trim_end_matches(|c: char| c.is_ascii_digit()).len();
            let digits = &path[start..=last];
            if digits.parse() == Ok(number.get()) {
                let width = if digits.starts_with('0') { digits.len() } else { 0 };
                let template = NameTemplate::new(&path[..start], width, &path[last + 1..]).ok()?;
                return (template.number(path) == Some(number)).then_some(template);
            }
            end = start;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> Source {
        Source { path: RelPath::new(path).unwrap(), offset: 0, length: None }
    }

    #[test]
    fn prints_and_parses_back() {
        let template = |text: &str| NameTemplate::parse(text).unwrap();
        let piece = |path: &str, first| Piece {
            path: RelPath::new(path).unwrap(),
            first,
            count: 3,
            step: 2,
            offset: 96,
            frame_bytes: 430_000,
        };
        let held = |path: &str, first| TrajectoryFile {
            path: RelPath::new(path).unwrap(),
            first,
            count: 5,
            table: None,
            header: Arc::default(),
            seen: Validator::default(),
            trouble: None,
            samples: None,
        };
        let damage = Trouble { offset: 77, unfinished: false, why: "no magic %".into() };
        let damaged = TrajectoryFile { trouble: Some(damage), ..held("a b.xtc", 0) };
        let files = vec![damaged, held("c/d.xtc", 6)];
        let trajectory = Trajectory { format: Format::Xtc, n_atoms: 9, single: false, files };
        let states = [
            State::default(),
            State {
                pinned: true,
                last_use: 77,
                templates: vec![template("a b-{n:07}.dcd"), template("{n}")],
                layout: Some(Layout::Files(template("x%{n}"))),
            },
            State {
                layout: Some(Layout::Pieces(vec![piece("a\nb.xtc", 0), piece("c/d.xtc", 7)])),
                ..State::default()
            },
            State { layout: Some(Layout::Pieces(Vec::new())), ..State::default() },
            State { layout: Some(Layout::Trajectory(Arc::new(trajectory))), ..State::default() },
            State {
                layout: Some(Layout::List(
                    vec![RelPath::new("a b/c").unwrap(), RelPath::new("d%").unwrap()].into(),
                )),
                ..State::default()
            },
        ];
        for state in states {
            let text = state.print();
            assert_eq!(State::parse(text.split_once('\n').unwrap().1), Some(state), "{text}");
        }
    }

    #[test]
    fn templates_are_found_in_names() {
        let check = |path: &str, number: u64, expected: Option<&str>| {
            let found = State::default().new_template(&file(path), FrameNo::new(number).unwrap());
            assert_eq!(found.map(|template| template.to_string()).as_deref(), expected, "{path}");
        };
        check("frame-0000012.dcd", 12, Some("frame-{n:07}.dcd"));
        check("frame-12.dcd", 12, Some("frame-{n}.dcd"));
        check("step12/data-3.vtu", 12, Some("step{n}/data-3.vtu"));
        check("ubq3_0012.pdb", 12, Some("ubq3_{n:04}.pdb"));
        check("0", 0, Some("{n}"));
        check("last.pdb", 12, None);
        check("frame-13.dcd", 12, None);
        check("é12é", 12, Some("é{n}é"));
    }
}
