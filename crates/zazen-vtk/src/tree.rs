//! The tree of a time step: blocks, pieces, and the files at its leaves.

use crate::extent::Extent;
use serde::Serialize;
use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, Result};

/// The most files of a time step, and nodes of its tree.
pub const FILES_MAX: usize = 1 << 20;

/// A node of the tree. All ranks have the same tree; a leaf that another rank reads is empty there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tree {
    /// Nothing: the index leaves this block out.
    Empty,
    /// A file, by its position in the step's list.
    File(usize),
    /// Blocks, each with its name or without one.
    Blocks(Vec<(Option<String>, Tree)>),
    /// Pieces of one whole.
    Pieces(Vec<(Option<String>, Tree)>),
}

/// The files of a step while its tree is read: a file that two blocks name is listed once.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) listed: Vec<String>,
    /// By file, the extents of earlier pieces that share cells with it.
    pub(crate) covered: BTreeMap<usize, Vec<Extent>>,
    /// Field data of the whole step.
    pub(crate) field_data: Option<String>,
    known: BTreeMap<String, usize>,
    nodes: usize,
}

impl Files {
    pub(crate) fn add(&mut self, file: String) -> Tree {
        if let Some(at) = self.known.get(&file) {
            return Tree::File(*at);
        }
        let at = self.listed.len();
        self.known.insert(file.clone(), at);
        self.listed.push(file);
        Tree::File(at)
    }

    /// Counts a node of the tree.
    pub(crate) fn count(&mut self, nodes: usize) -> Result<()> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > FILES_MAX {
            let why = format!("more than {FILES_MAX} blocks and pieces in a time step");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        Ok(())
    }
}

/// Children by their index; what is left out between them is empty.
pub(crate) fn by_index(
    mut children: Vec<(usize, Option<String>, Tree)>,
    files: &mut Files,
) -> Result<Vec<(Option<String>, Tree)>> {
    children.sort_by_key(|(index, _, _)| *index);
    let length = children.last().map_or(0, |(index, _, _)| index.saturating_add(1));
    files.count(length)?;
    let mut placed = Vec::with_capacity(length);
    for (index, name, tree) in children {
        if index < placed.len() {
            let why = format!("two entries have the index {index}");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        placed.resize_with(index, || (None, Tree::Empty));
        placed.push((name, tree));
    }
    Ok(placed)
}
