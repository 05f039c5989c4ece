//! The tree of a time step: blocks, pieces, and the files at its leaves.

use crate::extent::Extent;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use zazen_core::{Error, ErrorKind, Result};

/// The most files of a time step, and nodes of its tree.
pub const FILES_MAX: usize = 1 << 20;
/// What the name of a collection's part begins with; its number follows.
pub(crate) const PART: &str = "part ";

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

impl Tree {
    /// By file, which block of the visualization it is: equal texts in two steps are the same
    /// block.
    ///
    /// A block is known by its place in the tree. Parts of a collection (`part 3`) are known by
    /// their number, because a step may lack some of them.
    pub fn blocks_of_files(&self, files: usize) -> Vec<String> {
        let mut blocks = vec![None; files];
        self.name_blocks(String::new(), &mut blocks);
        blocks.into_iter().enumerate().map(|(at, block)| block.unwrap_or_else(|| format!("?{at}"))).collect()
    }

    fn name_blocks(&self, place: String, blocks: &mut [Option<String>]) {
        match self {
            Tree::Empty => {}
            Tree::File(at) => {
                if let Some(block) = blocks.get_mut(*at) {
                    block.get_or_insert(place);
                }
            }
            Tree::Blocks(children) | Tree::Pieces(children) => {
                let names: Option<Vec<&str>> = children.iter().map(|(name, _)| part_of(name)).collect();
                let is_known = |names: &Vec<&str>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
                let names = names.filter(is_known);
                for (at, (_, child)) in children.iter().enumerate() {
                    let own = match &names {
                        Some(names) => names[at].to_owned(),
                        None => at.to_string(),
                    };
                    child.name_blocks(format!("{place}/{own}"), blocks);
                }
            }
        }
    }
}

/// The name, if it is that of a numbered part.
fn part_of(name: &Option<String>) -> Option<&str> {
    let name = name.as_deref()?;
    let number = name.strip_prefix(PART)?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_by_its_place_and_a_part_by_its_number() {
        fn check(tree: &Tree, files: usize, expected: &[&str]) {
            assert_eq!(tree.blocks_of_files(files), expected);
        }
        let leaf = |name: &str, tree: Tree| (Some(name.to_owned()).filter(|name| !name.is_empty()), tree);
        let inner = Tree::Pieces(vec![leaf("", Tree::Empty), leaf("", Tree::File(1))]);
        let tree = Tree::Blocks(vec![leaf("a", Tree::Empty), leaf("b", Tree::File(0)), leaf("c", inner)]);
        check(&tree, 2, &["/1", "/2/1"]);
        let parts = Tree::Blocks(vec![leaf("part 0", Tree::File(0)), leaf("part 2", Tree::File(1))]);
        check(&parts, 2, &["/part 0", "/part 2"]);
        // Without numbers that differ, the place counts. A file that two leaves name is the first.
        let same = Tree::Blocks(vec![leaf("part 0", Tree::File(0)), leaf("part 0", Tree::File(1))]);
        check(&same, 2, &["/0", "/1"]);
        let twice = Tree::Blocks(vec![leaf("", Tree::File(0)), leaf("", Tree::File(0))]);
        check(&twice, 1, &["/0"]);
        check(&Tree::File(0), 1, &[""]);
    }
}
