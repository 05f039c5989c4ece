//! GET_BLOCK and GET_PIECE: give a block of a file, or a part of a frame, to the daemon of another
//! node, which has opened the file for its own caller. Only holders of the cluster key can ask.
//!
//! Invariants: a block comes from this node's cache or from the backing store, never from a third
//! node; a part of a frame comes from the cache alone; no more is read once the other daemon waits
//! no more.

use crate::fetch::{Whence, fetch, read_inline};
use crate::fetcher::Outcome;
use crate::node::Node;
use crate::opened::OpenedDataset;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use zazen_backing::SourceFile;
use zazen_call::{Caller, Line, Reply};
use zazen_core::{Blocks, Error, ErrorKind, Origin, Result, Source};
use zazen_frames::home::GIVEN_BYTES_MAX;
use zazen_frames::messages::{GetBlock, GetPiece, GivenBlock, GivenPiece};
use zazen_wire::Message;
use zazen_wire::checksum::frame_checksum;

pub(super) fn give(node: &Arc<Node>, caller: &Caller, ask: GetBlock, line: &Line) -> Result<Reply> {
    let refuse =
        |kind, why: &str| Err(Error::new(kind, format!("block {} of {}: {why}", ask.number, ask.dataset)));
    if caller.is_local() {
        return refuse(
            ErrorKind::Unsupported,
            "only daemons of other nodes ask for blocks; read it by a scan",
        );
    }
    node.admit()?;
    if Blocks::parse_pattern(&ask.pattern).is_none() {
        return refuse(ErrorKind::InvalidArgument, "its pattern is not one of blocks");
    }
    let at = node.roots.locate(&ask.dataset)?;
    let opened =
        OpenedDataset::new(at, Some(ask.pattern.clone()), node.powers.viewer(caller)?, node.stops(line))?;
    if let Some(blocks) = opened.layout()?.as_deref().and_then(|layout| layout.blocks()) {
        blocks.check_version(&ask.version)?;
    }
    let source = opened.source(ask.number)?;
    if source.length.is_none_or(|length| length > GIVEN_BYTES_MAX) {
        return refuse(ErrorKind::TooLarge, "it is too large to be given to another node");
    }
    let (given, bulk) = bring(node, &opened, &source, ask.number)?;
    node.counters.peer_blocks_given.add(1);
    Ok(Reply { payload: given.encode(), bulk, ..Reply::default() })
}

/// GET_PIECE.
pub(super) fn piece(node: &Arc<Node>, caller: &Caller, ask: &GetPiece, line: &Line) -> Result<Reply> {
    let refuse =
        |kind, why: &str| Err(Error::new(kind, format!("frame {} of {}: {why}", ask.number, ask.dataset)));
    if caller.is_local() {
        return refuse(
            ErrorKind::Unsupported,
            "only daemons of other nodes ask for parts; read it by a scan",
        );
    }
    node.admit()?;
    if ask.length == 0 || ask.length > GIVEN_BYTES_MAX {
        return refuse(ErrorKind::TooLarge, "its part has no bytes, or too many for one call");
    }
    let at = node.roots.locate(&ask.dataset)?;
    let viewer = node.powers.viewer(caller)?;
    let opened = OpenedDataset::new(at, ask.pattern.clone(), viewer, node.stops(line))?;
    opened.check(&node.store)?;
    opened.layout()?;
    let absent = "this node does not hold it";
    let Some(frame) = node.store.open_frame(&opened.series(), ask.number)? else {
        return refuse(ErrorKind::NotFound, absent);
    };
    // The caller's rights open the source, or it gets nothing.
    let file = opened.open_source(&frame.source, ask.number)?;
    let seen = file.stat().validator;
    if frame.meta.validator.is_none_or(|validator| !validator.looks_like(&seen)) {
        return refuse(ErrorKind::Stale, "what this node holds is of another version of the file");
    }
    let end = ask.offset.checked_add(ask.length).filter(|end| *end <= frame.meta.length);
    if end.is_none() {
        return refuse(ErrorKind::InvalidArgument, "it ends before that part does");
    }
    let mut bulk = vec![0; ask.length as usize];
    let read = frame.file.read_exact_at(&mut bulk, frame.offset + ask.offset);
    read.map_err(|error| Error::io(format!("read the copy of frame {}", ask.number), error))?;
    node.counters.peer_pieces_given.add(1);
    let given = GivenPiece { meta: frame.meta, source: frame.source };
    Ok(Reply { payload: given.encode(), bulk, ..Reply::default() })
}

fn bring(node: &Node, opened: &OpenedDataset, source: &Source, number: u64) -> Result<(GivenBlock, Vec<u8>)> {
    let mut file = opened.open_source(source, number)?;
    let stops = || opened.stops();
    let whence = Whence { peers: false, holder: None, stops: &stops };
    let outcome = fetch(node, opened, source, number, Origin::Alien, &mut file, whence)?;
    if matches!(outcome, Outcome::Stored(_) | Outcome::Given(_) | Outcome::Present)
        && let Some(found) = from_cache(node, opened, &*file, source, number)
    {
        return Ok(found);
    }
    if stops() {
        return Err(crate::fetch::nobody_waits());
    }
    let bytes = read_inline(opened, source, number, &*file)?;
    let validator = file.stat_now()?.validator;
    opened.check_version(&validator)?;
    Ok((GivenBlock { validator, checksum: frame_checksum(&bytes) }, bytes))
}

/// The copy in the cache, if it is of `source` in the file that was opened. The receiver compares
/// it with its checksum.
fn from_cache(
    node: &Node,
    opened: &OpenedDataset,
    file: &dyn SourceFile,
    source: &Source,
    number: u64,
) -> Option<(GivenBlock, Vec<u8>)> {
    let frame = node.store.open_frame(&opened.series(), number).ok().flatten()?;
    // Blocks of other names may have the same number, and one may have been cached since.
    if frame.source != *source {
        return None;
    }
    let validator = frame.meta.validator.filter(|validator| validator.looks_like(&file.stat().validator))?;
    let mut bytes = vec![0; usize::try_from(frame.meta.length).ok()?];
    frame.file.read_exact_at(&mut bytes, frame.offset).ok()?;
    Some((GivenBlock { validator, checksum: frame.meta.checksum }, bytes))
}
