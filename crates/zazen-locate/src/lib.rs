//! Which nodes hold the files of a visualization.
//!
//! A [`Locator`] answers for all files at one moment; [`contract`] is the test suite that each
//! locator runs. A node that does not answer holds nothing: its files are read remotely, which is
//! no error.

pub mod contract;
mod frame_cache;
mod hdfs;
mod namespace;
mod opened;
mod table;

pub use frame_cache::FrameCaches;
pub use hdfs::replica::{Block, data_dirs_of_environment};
pub use hdfs::{Hdfs, HdfsUrl};
pub use namespace::{InNamespace, within_namespace};
pub use opened::{OpenedIndex, Storage, open_index, open_index_with};
pub use table::HostsTable;
pub use zazen_vtk::{is_index, place};

use zazen_core::{Error, Result};

/// A node that holds a file, or some of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The node's host name.
    pub node: String,
    /// Bytes of the file there.
    pub bytes: u64,
}

/// A file and its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// The file's length; 0 if it is not known.
    pub bytes: u64,
    /// The nodes, each once.
    pub replicas: Vec<Replica>,
    /// Blocks that the file is kept in, where they may lie on different nodes; otherwise 1.
    pub blocks: usize,
}

/// Where files are, at one moment.
#[derive(Debug, Default)]
pub struct Locations {
    /// In the order in which the files were asked for.
    pub files: Vec<Located>,
    /// Nodes that did not answer, and why. They count as holding nothing.
    pub silent: Vec<(String, Error)>,
}

/// Knows which nodes hold files. Every locator runs [`contract::holds`].
pub trait Locator {
    /// What it asks, for messages.
    fn describe(&self) -> String;

    /// Who holds `files`: paths beneath the visualization's directory. The answer has one entry for
    /// each, in their order. A file that nobody holds, or that does not exist, has no replicas.
    ///
    /// Fails only if nothing can be said at all.
    fn locate(&mut self, files: &[String]) -> Result<Locations>;
}

impl Located {
    /// The nodes with the most bytes of the file: reading there is local.
    pub fn holders(&self) -> Vec<String> {
        let most = self.replicas.iter().map(|replica| replica.bytes).max().unwrap_or(0);
        let best = self.replicas.iter().filter(|replica| replica.bytes == most);
        best.map(|replica| replica.node.clone()).collect()
    }

    /// The share of the file that `node` lacks, in bytes.
    pub fn remote_bytes(&self, node: &str) -> u64 {
        let here = self.replicas.iter().find(|replica| replica.node == node);
        self.bytes.saturating_sub(here.map_or(0, |replica| replica.bytes))
    }
}
