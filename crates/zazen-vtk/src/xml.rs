//! VTK's XML index files.

use crate::extent::{Extent, covered_before};
use crate::tree::{Files, Tree, by_index};
use roxmltree::{Document, Node, ParsingOptions};
use zazen_core::{Error, ErrorKind, Result};

/// The most nodes of an XML document.
const NODES_MAX: u32 = 1 << 24;
/// The deepest nesting of blocks.
const DEPTH_MAX: usize = 64;

/// What an XML file lists.
pub(crate) enum Listed {
    /// The tree of one time step, and its field data (see [`field_data`]).
    Step(Leaf, Option<String>),
    /// `.pvd`: (time, part, file), in the file's order.
    Collection(Vec<(f64, usize, String)>),
    /// Data, not an index.
    Data,
}

/// A tree whose leaves are file names.
pub(crate) enum Leaf {
    Empty,
    File(String),
    /// A file of a structured piece, and the extents of earlier pieces that share cells with it.
    Covered(String, Vec<Extent>),
    Blocks(Vec<(usize, Option<String>, Leaf)>),
    Pieces(Vec<(usize, Option<String>, Leaf)>),
}

/// Types of files with data.
const DATA: [&str; 7] = [
    "ImageData",
    "RectilinearGrid",
    "StructuredGrid",
    "UnstructuredGrid",
    "PolyData",
    "HyperTreeGrid",
    "Table",
];

/// Types of parallel files whose pieces have extents.
const STRUCTURED: [&str; 3] = ["PImageData", "PRectilinearGrid", "PStructuredGrid"];

pub(crate) fn parse(text: &str) -> Result<Listed> {
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options)
        .map_err(|error| refused(format!("is no complete XML: {error}")))?;
    let root = document.root_element();
    if root.tag_name().name() != "VTKFile" {
        return Err(refused(format!("its root is {:?}, not VTKFile", root.tag_name().name())));
    }
    let kind = root.attribute("type").unwrap_or_default();
    // Files of the format's first version have the blocks right beneath VTKFile.
    let body = root.children().find(|node| node.tag_name().name() == kind).unwrap_or(root);
    match kind {
        "vtkMultiBlockDataSet" | "vtkPartitionedDataSetCollection" => {
            Ok(Listed::Step(Leaf::Blocks(entries(body, 0)?), field_data(text, root)))
        }
        "vtkMultiPieceDataSet" | "vtkPartitionedDataSet" => {
            Ok(Listed::Step(Leaf::Pieces(entries(body, 0)?), field_data(text, root)))
        }
        "Collection" => collection(body),
        _ if kind.strip_prefix('P').is_some_and(|kind| DATA.contains(&kind)) => {
            let is_structured = STRUCTURED.contains(&kind);
            Ok(Listed::Step(Leaf::Pieces(sources(body, is_structured)?), None))
        }
        _ if DATA.contains(&kind) => Ok(Listed::Data),
        _ => Err(refused(format!("its type is {kind:?}, which is no index of files that Zazen knows"))),
    }
}

fn elements<'a, 'input: 'a>(node: Node<'a, 'input>) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(Node::is_element)
}

fn entries(body: Node<'_, '_>, depth: usize) -> Result<Vec<(usize, Option<String>, Leaf)>> {
    if depth > DEPTH_MAX {
        return Err(refused(format!("its blocks nest deeper than {DEPTH_MAX}")));
    }
    let mut all = Vec::new();
    for node in elements(body) {
        let leaf = match node.tag_name().name() {
            "DataSet" => match node.attribute("file") {
                // Stock writers leave the file out for a block without data.
                None | Some("") => Leaf::Empty,
                Some(file) => Leaf::File(file.to_owned()),
            },
            "Block" => Leaf::Blocks(entries(node, depth + 1)?),
            "Piece" | "Partitions" => Leaf::Pieces(entries(node, depth + 1)?),
            // A description of the assembly, and what later versions add.
            _ => continue,
        };
        let index = match node.attribute("index") {
            None => all.len(),
            Some(text) => number(text, "index", node)?,
        };
        all.push((index, node.attribute("name").map(str::to_owned), leaf));
    }
    Ok(all)
}

fn sources(body: Node<'_, '_>, is_structured: bool) -> Result<Vec<(usize, Option<String>, Leaf)>> {
    let pieces: Vec<_> = elements(body).filter(|node| node.tag_name().name() == "Piece").collect();
    // Without its extent nobody knows which cells another piece has too: they would show twice.
    let extents: Vec<Extent> = match is_structured {
        true => pieces.iter().map(|piece| extent(*piece)).collect::<Result<_>>()?,
        false => Vec::new(),
    };
    let mut before = covered_before(&extents)?.into_iter();
    let piece = |(index, node): (usize, &Node<'_, '_>)| {
        let file = node.attribute("Source").filter(|file| !file.is_empty());
        let file = file.ok_or_else(|| lacks(*node, "Source"))?.to_owned();
        let leaf = match before.next().unwrap_or_default() {
            before if before.is_empty() => Leaf::File(file),
            before => Leaf::Covered(file, before),
        };
        Ok((index, None, leaf))
    };
    pieces.iter().enumerate().map(piece).collect()
}

fn extent(piece: Node<'_, '_>) -> Result<Extent> {
    let text = piece.attribute("Extent").unwrap_or_default();
    let numbers: Option<Vec<i32>> = text.split_whitespace().map(|number| number.parse().ok()).collect();
    let extent: Option<Extent> = numbers.and_then(|numbers| numbers.try_into().ok());
    let refuse = || refused(format!("{} has the Extent {text:?}, which is not six numbers", at(piece)));
    extent.ok_or_else(refuse)
}

/// The field data of a whole step, as a file of VTK's of its own: polygons without points.
fn field_data(text: &str, root: Node<'_, '_>) -> Option<String> {
    let node = root.descendants().find(|node| {
        let parent = node.parent();
        node.tag_name().name() == "FieldData"
            && (parent == Some(root) || parent.and_then(|parent| parent.parent()) == Some(root))
    })?;
    let plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    let attribute = |name: &str| {
        let value = root.attribute(name).filter(plain);
        value.map(|value| format!(" {name}=\"{value}\"")).unwrap_or_default()
    };
    let attributes: String =
        ["version", "byte_order", "header_type", "compressor"].into_iter().map(attribute).collect();
    let appended = elements(root).find(|node| node.tag_name().name() == "AppendedData");
    let appended = appended.and_then(|node| text.get(node.range())).unwrap_or_default();
    Some(format!(
        "<VTKFile type=\"PolyData\"{attributes}><PolyData>{}<Piece \
         NumberOfPoints=\"0\"/></PolyData>{appended}</VTKFile>",
        text.get(node.range())?
    ))
}

fn collection(body: Node<'_, '_>) -> Result<Listed> {
    let mut listed = Vec::new();
    let sets = || elements(body).filter(|node| node.tag_name().name() == "DataSet");
    let has_time = |node: &Node<'_, '_>| node.attribute("timestep").is_some_and(|text| !text.is_empty());
    let timed = sets().any(|node| has_time(&node));
    for node in sets() {
        let time = match node.attribute("timestep") {
            Some(text) if !text.is_empty() => time(text, node)?,
            // VTK shows such a file at no time, and silently.
            _ if timed => return Err(lacks(node, "timestep, and others do")),
            _ => 0.0,
        };
        let part = node.attribute("part").filter(|text| !text.is_empty());
        let part = part.map_or(Ok(0), |text| number(text, "part", node))?;
        let file = node.attribute("file").filter(|file| !file.is_empty());
        listed.push((time, part, file.ok_or_else(|| lacks(node, "file"))?.to_owned()));
    }
    Ok(Listed::Collection(listed))
}

fn time(text: &str, node: Node<'_, '_>) -> Result<f64> {
    let time = text.trim().parse().ok().filter(|time: &f64| time.is_finite());
    time.ok_or_else(|| refused(format!("{} has the time {text:?}, which is no number", at(node))))
}

fn number(text: &str, what: &str, node: Node<'_, '_>) -> Result<usize> {
    text.trim().parse().map_err(|_| refused(format!("{} has the {what} {text:?}", at(node))))
}

fn lacks(node: Node<'_, '_>, what: &str) -> Error {
    refused(format!("{} names no {what}", at(node)))
}

fn at(node: Node<'_, '_>) -> String {
    let position = node.document().text_pos_at(node.range().start);
    format!("<{}> in line {}", node.tag_name().name(), position.row)
}

pub(crate) fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

impl Leaf {
    /// The tree of a step; `below` resolves a file, which may be an index itself.
    pub(crate) fn grow(
        self,
        files: &mut Files,
        below: &mut dyn FnMut(String, &mut Files) -> Result<Tree>,
    ) -> Result<Tree> {
        let mut each = |children: Vec<(usize, Option<String>, Leaf)>, files: &mut Files| {
            let mut grown = Vec::with_capacity(children.len());
            for (index, name, leaf) in children {
                grown.push((index, name, leaf.grow(files, below)?));
            }
            by_index(grown, files)
        };
        Ok(match self {
            Leaf::Empty => Tree::Empty,
            Leaf::File(file) => below(file, files)?,
            Leaf::Covered(file, before) => {
                let known = files.listed.len();
                let tree = below(file, files)?;
                match tree {
                    // A file that two pieces name has its cells once.
                    Tree::File(at) if at >= known => drop(files.covered.insert(at, before)),
                    _ => {}
                }
                tree
            }
            Leaf::Blocks(children) => Tree::Blocks(each(children, files)?),
            Leaf::Pieces(children) => Tree::Pieces(each(children, files)?),
        })
    }
}
