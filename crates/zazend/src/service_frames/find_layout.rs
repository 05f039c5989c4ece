//! Finds a layout for calls that are otherwise quick.

use crate::node::Node;
use crate::opened::OpenedDataset;
use std::time::Duration;
use zazen_call::Caller;
use zazen_core::Result;

/// How long a heavy call waits for its user's other heavy calls: all ranks of a job may open a
/// large directory at once.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Looks for the layout of a dataset that had none when it was opened: it may have files by now.
/// That can take as long as opening, so it takes the same share. A layout that cannot be had is no
/// error.
pub(super) fn find_layout(node: &Node, caller: &Caller, opened: &OpenedDataset) -> Result<()> {
    if opened.has_layout() {
        return Ok(());
    }
    let _share = node.shares.heavy.wait(caller, PATIENCE, || opened.stops())?;
    opened.layout().ok();
    Ok(())
}
