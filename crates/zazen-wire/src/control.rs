//! Functions and messages of the control service (service 1), which every daemon has.

use crate::codec::{Message, Reader, Writer};
use zazen_core::Result;

/// Function numbers of the control service.
pub mod control_fn {
    /// () → [`super::NodeInfo`].
    pub const HELLO: u16 = 1;
    /// () → UTF-8 JSON: the daemon's status (counters, space, datasets).
    pub const STATUS: u16 = 2;
    /// () → UTF-8 text: the whole state, for a person.
    pub const DUMP: u16 = 3;
    /// () → (): liveness.
    pub const PING: u16 = 4;
}

/// Who a daemon is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Identity of the node's cache: random, made with the cache root and stored in it.
    pub node: u128,
    /// Human name (host name or configured).
    pub name: String,
    /// Software version.
    pub version: String,
    /// Absolute directories that this daemon backs, as users spell them; a dataset must be beneath one.
    pub backing_roots: Vec<String>,
    /// The cache root.
    pub cache_root: String,
    /// Readers that a client should have in flight on this node's disk (1 for a spinning one).
    pub readers: u16,
}

impl Message for NodeInfo {
    const NAME: &'static str = "NodeInfo";

    fn write(&self, writer: &mut Writer) {
        writer.u128(self.node);
        writer.text(&self.name);
        writer.text(&self.version);
        writer.list(&self.backing_roots, |writer, root| writer.text(root));
        writer.text(&self.cache_root);
        writer.u16(self.readers);
    }

    fn read(reader: &mut Reader<'_>) -> Result<NodeInfo> {
        Ok(NodeInfo {
            node: reader.u128()?,
            name: reader.free_text()?,
            version: reader.free_text()?,
            backing_roots: reader.list(4, Reader::absolute_path)?,
            cache_root: reader.absolute_path()?,
            readers: reader.u16()?,
        })
    }
}
