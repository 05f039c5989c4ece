//! Frames by the names of their files.

use super::Dataset;
use std::path::Path;
use zazen_core::{Error, ErrorKind, FrameNo, Layout, RelPath, Result};

/// Up to this many files, a list is searched from its begin.
const LISTED_FEW: usize = 64;

impl Dataset {
    /// The number of the frame whose file is `name`: a path beneath the dataset, or an absolute
    /// path.
    ///
    /// `NotFound` if the layout has no frame of that name (whether the file exists is not checked),
    /// `InvalidArgument` if the file holds several frames.
    pub fn number_of(&mut self, name: &str) -> Result<u64> {
        let beneath = self.beneath(name)?;
        if let Some(number) = self.names.get(&beneath).copied()
            && self.is_source(number, &beneath)
        {
            return Ok(number);
        }
        let path = self.path.display().to_string();
        let none =
            |why: &str| Error::new(ErrorKind::NotFound, format!("file {name} of dataset {path}: {why}"));
        if self.layout().is_none() {
            // Files may have come since the dataset was opened.
            self.extent()?;
        }
        let several = || {
            let text = format!("file {name} of dataset {path}: holds several frames; give a frame's number");
            Err(Error::new(ErrorKind::InvalidArgument, text))
        };
        match self.layout() {
            None => Err(none("the dataset has no frames")),
            Some(Layout::Files(template)) => {
                let number = template.number(beneath.as_str());
                let why = format!("no frame has this name; frames are named {template}");
                number.map(FrameNo::get).ok_or_else(|| none(&why))
            }
            Some(Layout::List(files)) => {
                if files.len() > LISTED_FEW {
                    if self.names.len() != files.len() {
                        self.names = files.iter().cloned().zip(0..).collect();
                    }
                    return self
                        .names
                        .get(&beneath)
                        .copied()
                        .ok_or_else(|| none("the list has no such file"));
                }
                let at = files.iter().position(|file| *file == beneath);
                at.map(|at| at as u64).ok_or_else(|| none("the list has no such file"))
            }
            Some(Layout::Pieces(pieces)) => {
                let mut held = pieces.iter().filter(|piece| piece.path == beneath);
                match (held.next(), held.next()) {
                    (None, _) => Err(none("no piece is of this file")),
                    (Some(only), None) if only.count == 1 => Ok(only.first),
                    _ => several(),
                }
            }
            Some(Layout::Trajectory(trajectory)) => {
                let held = trajectory.files.iter().find(|file| file.path == beneath);
                match held.map(|file| (file.count, file.first)) {
                    None => Err(none("no trajectory file has this name")),
                    Some((1, first)) => Ok(first),
                    Some(_) => several(),
                }
            }
            Some(Layout::Blocks(_)) => several(),
        }
    }

    fn is_source(&self, number: u64, file: &RelPath) -> bool {
        match self.layout() {
            Some(Layout::List(files)) => files.get(number as usize) == Some(file),
            _ => false,
        }
    }

    /// `name` beneath the dataset.
    fn beneath(&self, name: &str) -> Result<RelPath> {
        let relative = match Path::new(name).is_absolute() {
            true => {
                Path::new(name).strip_prefix(&self.path).ok().and_then(Path::to_str).ok_or_else(|| {
                    let text = format!("file {name} is not beneath dataset {}", self.path.display());
                    Error::new(ErrorKind::NotFound, text)
                })?
            }
            false => name,
        };
        RelPath::new(relative)
    }
}
