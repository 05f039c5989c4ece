//! The nodes' frame caches, each asked over the network: for a plan, outside of a job.
//!
//! Within a job each node's first rank asks its own daemon instead (`zazen_client`'s
//! `Dataset::holders`).

use crate::{Located, Locations, Locator, Replica};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_call::ClusterKey;
use zazen_client::Target;
use zazen_client::cluster::Remote;
use zazen_core::{Error, ErrorKind, Layout, NameTemplate, RelPath, Result, RunSet};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The frame caches of some nodes.
#[derive(Clone, Debug)]
pub struct FrameCaches {
    /// Each node's host name, its daemon, and the key that the daemon wants.
    pub nodes: Vec<(String, Target, Option<ClusterKey>)>,
    /// The visualization's directory.
    pub directory: PathBuf,
    /// The pattern that the files follow; `None`: the directory's manifest lists them.
    pub template: Option<NameTemplate>,
}

/// What one node says: its frames, and the layout that counts them.
type Held = (RunSet, Option<Layout>);

impl FrameCaches {
    fn ask(&self, target: &Target, key: Option<&ClusterKey>) -> Result<Held> {
        let mut remote = Remote::connect_within(target, key, PATIENCE)?;
        remote.set_timeout(Some(PATIENCE));
        let pattern = self.template.as_ref().map(NameTemplate::to_string);
        let info = match remote.open(&self.directory, pattern.as_deref(), false) {
            // The node's daemon does not cache this directory.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((RunSet::new(), None)),
            info => info?,
        };
        let held = remote.query_all(info.handle)?;
        Ok((held.native.union(&held.alien), info.layout))
    }
}

impl Locator for FrameCaches {
    fn describe(&self) -> String {
        format!("the caches of {} nodes", self.nodes.len())
    }

    fn locate(&mut self, files: &[String]) -> Result<Locations> {
        let lost = || Err(Error::new(ErrorKind::Unavailable, "the thread that asked it ended early"));
        let answers: Vec<Result<Held>> = std::thread::scope(|scope| {
            let this = &*self;
            let asked: Vec<_> = this
                .nodes
                .iter()
                .map(|(_, target, key)| scope.spawn(move || this.ask(target, key.as_ref())))
                .collect();
            asked.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
        });
        let mut locations = Locations { files: sizes(&self.directory, files), silent: Vec::new() };
        for ((node, _, _), answer) in self.nodes.iter().zip(answers) {
            let (held, layout) = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    locations.silent.push((node.clone(), error));
                    continue;
                }
            };
            let Some(layout) = layout else { continue };
            let numbers = Numbers::of(&layout);
            for (file, located) in files.iter().zip(&mut locations.files) {
                // Daemons of one host are one node here.
                let known = located.replicas.iter().any(|replica| replica.node == *node);
                if !known && numbers.get(file).is_some_and(|number| held.contains(number)) {
                    located.replicas.push(Replica { node: node.clone(), bytes: located.bytes });
                }
            }
        }
        Ok(locations)
    }
}

/// The lengths of files in a mounted directory.
fn sizes(directory: &Path, files: &[String]) -> Vec<Located> {
    let size = |file: &String| {
        let bytes = std::fs::metadata(directory.join(file)).map_or(0, |found| found.len());
        Located { bytes, replicas: Vec::new(), blocks: 1 }
    };
    files.iter().map(size).collect()
}

/// The frame numbers of files.
enum Numbers<'a> {
    Template(&'a NameTemplate),
    List(BTreeMap<&'a RelPath, u64>),
    None,
}

impl Numbers<'_> {
    fn of(layout: &Layout) -> Numbers<'_> {
        match layout {
            Layout::Files(template) => Numbers::Template(template),
            Layout::List(files) => Numbers::List(files.iter().zip(0..).collect()),
            _ => Numbers::None,
        }
    }

    fn get(&self, file: &str) -> Option<u64> {
        match self {
            Numbers::Template(template) => template.number(file).map(|number| number.get()),
            Numbers::List(numbers) => numbers.get(&RelPath::new(file).ok()?).copied(),
            Numbers::None => None,
        }
    }
}
