//! The settings of the namespace: `[namespace]` in the file, flags that begin with `--namespace`.

use crate::peers::PeerList;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result, byte_size};
use zazen_namespace::archive::KeepFree;
use zazen_namespace_node::{Admit, ArchiveTold, Durability, NodeList};

/// The table `[namespace]`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct NamespaceTable {
    data: Option<PathBuf>,
    nodes: Option<String>,
    replicas: Option<u8>,
    durability: Option<String>,
    partitions: Option<u32>,
    verify: Option<String>,
    repair_after: Option<u32>,
    admit: Option<String>,
    root: Option<String>,
    archive: Option<PathBuf>,
    archive_rate: Option<String>,
    archive_after: Option<u32>,
    archive_free: Option<String>,
    forward: Option<PathBuf>,
}

/// The flags of the namespace.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct NamespaceArgs {
    /// Take part in the namespace, with metadata and files in this folder of a local disk; made if
    /// it doesn't exist
    #[arg(id = "namespace_data", long = "namespace", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The nodes that the namespace began with: a file with one host:port a line, or
    /// host:port,host:port; the same list on all nodes (needs --listen and --key) [default: this
    /// node alone]
    #[arg(id = "namespace_nodes", long = "namespace-nodes", value_name = "FILE|LIST")]
    pub nodes: Option<String>,
    /// This is one of the first nodes of a new namespace, if its folder is empty; without it, a
    /// node with an empty folder asks the others to let it in
    #[arg(id = "namespace_format", long = "namespace-format")]
    pub format: bool,
    /// Nodes that keep each part of the metadata of a new namespace [default: 2, or 1 on one node]
    #[arg(id = "namespace_replicas", long = "namespace-replicas", value_name = "N")]
    pub replicas: Option<u8>,
    /// When a change of metadata counts as done: memory, written or synced [default: written]
    #[arg(id = "namespace_durability", long = "namespace-durability", value_name = "LEVEL")]
    pub durability: Option<String>,
    /// Partitions of a new namespace, a power of two [default: 16 or more for each node]
    #[arg(id = "namespace_partitions", long = "namespace-partitions", value_name = "N")]
    pub partitions: Option<u32>,
    /// When bytes are compared with their checksums: open (the kernel reads local files; small ones
    /// are checked when they are opened) or always (the daemon reads and checks everything)
    /// [default: open]
    #[arg(id = "namespace_verify", long = "namespace-verify", value_name = "WHEN")]
    pub verify: Option<String>,
    /// Seconds that a node must be down before other nodes try to make new copies of its files;
    /// they may not succeed (docs/namespace.md) [default: 60]
    #[arg(id = "namespace_repair_after", long = "namespace-repair-after", value_name = "SECONDS")]
    pub repair_after: Option<u32>,
    /// Which nodes may join, of those that have the cluster key: key (all) or listed (those that
    /// the list of nodes names) [default: key]
    #[arg(id = "namespace_admit", long = "namespace-admit", value_name = "WHO")]
    pub admit: Option<String>,
    /// What root of this node is in the namespace: squash (nobody, user 65534) or trust (root)
    /// [default: squash]
    #[arg(id = "namespace_root", long = "namespace-root", value_name = "HOW")]
    pub root: Option<String>,
    /// Copy closed files to this folder of a parallel file system in the background; the same on
    /// all nodes. The folder must be there [default: none]
    #[arg(id = "namespace_archive", long = "namespace-archive", value_name = "DIR")]
    pub archive: Option<PathBuf>,
    /// The most bytes that this node copies to the archive in a second, such as 200M [default: as
    /// many as go]
    #[arg(id = "namespace_archive_rate", long = "namespace-archive-rate", value_name = "SIZE")]
    pub archive_rate: Option<String>,
    /// Seconds after its last change that a closed file is archived [default: 10]
    #[arg(id = "namespace_archive_after", long = "namespace-archive-after", value_name = "SECONDS")]
    pub archive_after: Option<u32>,
    /// How much of this node's disk to keep free: local bytes of archived files go then, such as
    /// 10% or 200G [default: 10%]
    #[arg(id = "namespace_archive_free", long = "namespace-archive-free", value_name = "SIZE|PERCENT")]
    pub archive_free: Option<String>,
    /// Let any user's programs reach the namespace as this path by `zazen run --forward`, without a
    /// mount that others see; nothing need be at the path (needs root) [default: they don't]
    #[arg(id = "namespace_forward", long = "namespace-forward", value_name = "PATH")]
    pub forward: Option<PathBuf>,
}

/// What the daemon is told of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Its folder.
    pub data: PathBuf,
    /// The nodes that it began with.
    pub nodes: Option<NodeList>,
    /// Whether an empty folder is that of a first node.
    pub format: bool,
    /// Nodes that keep each partition.
    pub replicas: u8,
    /// When a change counts as done.
    pub durability: Durability,
    /// Partitions of a new namespace.
    pub partitions: Option<u32>,
    /// Whether the daemon reads and checks all bytes itself.
    pub verify_always: bool,
    /// How long a node must be down before copies of its files are made elsewhere.
    pub repair_after: Duration,
    /// Which nodes may join.
    pub admit: Admit,
    /// Whether root of this node is root in the namespace.
    pub trusts_root: bool,
    /// Where closed files go.
    pub archive: Option<ArchiveTold>,
    /// The path by which forwarded programs reach it without a mount.
    pub forward: Option<PathBuf>,
}

fn refuse(what: String) -> Error {
    Error::new(ErrorKind::Config, what)
}

/// The archive, as flags or file say.
fn archive(
    args: &NamespaceArgs,
    root: &Option<PathBuf>,
    rate: Option<String>,
    after: Option<u32>,
    free: Option<String>,
) -> Result<Option<ArchiveTold>> {
    let rate = args.archive_rate.clone().or(rate);
    let after = args.archive_after.or(after);
    let free = args.archive_free.clone().or(free);
    let Some(root) = args.archive.clone().or(root.clone()) else {
        if rate.is_some() || after.is_some() || free.is_some() {
            return Err(refuse("namespace archive: no folder is given: give --namespace-archive DIR".into()));
        }
        return Ok(None);
    };
    if !root.is_absolute() {
        return Err(refuse(format!("namespace archive {}: give an absolute path", root.display())));
    }
    let size = |name: &str, text: &str| byte_size::parse(text).map_err(|error| error.within(name));
    let keep_free = match free.as_deref() {
        None => KeepFree::Percent(10),
        Some(text) => match text.strip_suffix('%') {
            Some(percent) => match percent.trim().parse() {
                Ok(percent @ 0..=100) => KeepFree::Percent(percent),
                _ => {
                    let why = format!("namespace archive_free {text:?}: give 0% to 100%, or a size");
                    return Err(refuse(why));
                }
            },
            None => KeepFree::Bytes(size("namespace archive_free", text)?),
        },
    };
    let bytes_per_s = rate.as_deref().map_or(Ok(0), |text| size("namespace archive_rate", text))?;
    let after = Duration::from_secs(after.unwrap_or(10).into());
    Ok(Some(ArchiveTold { root, bytes_per_s, after, keep_free }))
}

impl NamespaceConfig {
    /// Flags over file; `None` without a folder. `listens`: other nodes can reach the daemon.
    pub fn assemble(
        args: &NamespaceArgs,
        file: Option<NamespaceTable>,
        listens: bool,
    ) -> Result<Option<NamespaceConfig>> {
        let file = file.unwrap_or_default();
        let Some(data) = args.data.clone().or(file.data) else {
            let others = args.nodes.is_some() || args.format || args.replicas.is_some();
            let others = others || args.forward.is_some() || file.forward.is_some();
            if others || args.durability.is_some() || file.nodes.is_some() || file.replicas.is_some() {
                let why =
                    "namespace: no folder is given: give --namespace DIR (or data = \"DIR\" in [namespace])";
                return Err(refuse(why.to_owned()));
            }
            return Ok(None);
        };
        let data = std::path::absolute(&data)
            .map_err(|error| refuse(format!("namespace {}: {error}", data.display())))?;
        let nodes = args.nodes.clone().or(file.nodes);
        let nodes = nodes.as_deref().map(PeerList::parse).transpose();
        let nodes = nodes.map_err(|error| error.within("namespace nodes"))?.map(|list| match list {
            PeerList::File(path) => NodeList::File(path),
            PeerList::Nodes(nodes) => NodeList::Nodes(nodes),
        });
        if nodes.is_some() && !listens {
            return Err(refuse(
                "namespace nodes are given, but this daemon listens to no other node: \
                 give --listen and --key"
                    .into(),
            ));
        }
        let replicas = args.replicas.or(file.replicas).unwrap_or(if nodes.is_some() { 2 } else { 1 });
        if !(1..=8).contains(&replicas) {
            return Err(refuse(format!("namespace replicas {replicas}: give a number from 1 to 8")));
        }
        let durability = match args.durability.clone().or(file.durability).as_deref() {
            None | Some("written") => Durability::Written,
            Some("memory") => Durability::Memory,
            Some("synced") => Durability::Synced,
            Some(other) => {
                let why = format!("namespace durability {other:?}: give memory, written or synced");
                return Err(refuse(why));
            }
        };
        let partitions = args.partitions.or(file.partitions);
        if let Some(bad) =
            partitions.filter(|number| !number.is_power_of_two() || *number > zazen_namespace::PARTITIONS_MAX)
        {
            return Err(refuse(format!(
                "namespace partitions {bad}: give a power of two, at most {}",
                zazen_namespace::PARTITIONS_MAX
            )));
        }
        let verify_always = match args.verify.clone().or(file.verify).as_deref() {
            None | Some("open") => false,
            Some("always") => true,
            Some(other) => return Err(refuse(format!("namespace verify {other:?}: give open or always"))),
        };
        let repair_after = args.repair_after.or(file.repair_after).unwrap_or(60);
        let admit = match args.admit.clone().or(file.admit).as_deref() {
            None | Some("key") => Admit::Key,
            Some("listed") if nodes.is_some() => Admit::Listed,
            Some("listed") => return Err(refuse("namespace admit listed: there is no list of nodes".into())),
            Some(other) => return Err(refuse(format!("namespace admit {other:?}: give key or listed"))),
        };
        let trusts_root = match args.root.clone().or(file.root).as_deref() {
            None | Some("squash") => false,
            Some("trust") => true,
            Some(other) => return Err(refuse(format!("namespace root {other:?}: give squash or trust"))),
        };
        let archive = archive(args, &file.archive, file.archive_rate, file.archive_after, file.archive_free)?;
        let forward = args.forward.clone().or(file.forward).map(|path| {
            zazen_mount::detached::plain_path(&path).ok_or_else(|| {
                refuse(format!(
                    "namespace forward {}: give an absolute path without `..`, such as /job",
                    path.display()
                ))
            })
        });
        Ok(Some(NamespaceConfig {
            forward: forward.transpose()?,
            archive,
            data,
            nodes,
            format: args.format,
            replicas,
            durability,
            partitions,
            verify_always,
            repair_after: Duration::from_secs(repair_after.into()),
            admit,
            trusts_root,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(data: Option<&str>) -> NamespaceArgs {
        NamespaceArgs { data: data.map(PathBuf::from), ..NamespaceArgs::default() }
    }

    #[test]
    fn without_a_folder_there_is_no_namespace_and_no_setting_of_it() {
        assert_eq!(NamespaceConfig::assemble(&args(None), None, true).unwrap(), None);
        let lost = NamespaceArgs { replicas: Some(2), ..args(None) };
        assert!(
            NamespaceConfig::assemble(&lost, None, true).unwrap_err().to_string().contains("--namespace DIR")
        );
    }

    #[test]
    fn the_archive_is_a_folder_with_a_rate_and_what_is_kept_free() {
        let assemble = |args: NamespaceArgs, table: &str| {
            NamespaceConfig::assemble(&args, Some(toml::from_str(table).unwrap()), false)
                .map(|config| config.unwrap().archive)
                .map_err(|error| error.to_string())
        };
        let base = args(Some("/ns"));
        assert_eq!(assemble(base.clone(), ""), Ok(None));
        let told = ArchiveTold {
            root: "/lustre/run1".into(),
            bytes_per_s: 0,
            after: Duration::from_secs(10),
            keep_free: KeepFree::Percent(10),
        };
        assert_eq!(assemble(base.clone(), "archive = '/lustre/run1'"), Ok(Some(told.clone())));
        let flags = NamespaceArgs {
            archive: Some("/other".into()),
            archive_rate: Some("1M".into()),
            archive_free: Some("5G".into()),
            ..base.clone()
        };
        let other = ArchiveTold {
            root: "/other".into(),
            bytes_per_s: 1 << 20,
            keep_free: KeepFree::Bytes(5 << 30),
            after: Duration::from_secs(3),
        };
        assert_eq!(assemble(flags, "archive = '/lustre/run1'\narchive_after = 3"), Ok(Some(other)));
        let bad = |table: &str| assemble(base.clone(), table).unwrap_err();
        assert!(bad("archive_after = 3").contains("--namespace-archive DIR"));
        assert!(bad("archive = 'run1'").contains("absolute"));
        assert!(bad("archive = '/a'\narchive_free = '101%'").contains("0% to 100%"));
        assert!(bad("archive = '/a'\narchive_free = 'much'").contains("archive_free"));
        assert!(bad("archive = '/a'\narchive_rate = 'fast'").contains("archive_rate"));
    }

    #[test]
    fn the_path_of_forwarded_programs_is_plain() {
        let assemble = |data: Option<&str>, path: &str| {
            let args = NamespaceArgs { forward: Some(path.into()), ..args(data) };
            NamespaceConfig::assemble(&args, None, false)
                .map(|config| config.unwrap().forward)
                .map_err(|error| error.to_string())
        };
        assert_eq!(assemble(Some("/ns"), "/job/"), Ok(Some("/job".into())));
        for bad in ["job", "/", "/a/../b"] {
            assert!(assemble(Some("/ns"), bad).unwrap_err().contains("such as /job"), "{bad}");
        }
        assert!(assemble(None, "/job").unwrap_err().contains("--namespace DIR"));
        let table: NamespaceTable = toml::from_str("data = '/ns'\nforward = '/job'").unwrap();
        let config = NamespaceConfig::assemble(&args(None), Some(table), false).unwrap().unwrap();
        assert_eq!(config.forward, Some("/job".into()));
    }

    #[test]
    fn flags_go_before_the_file_and_bad_values_are_named() {
        let table: NamespaceTable =
            toml::from_str("data = \"/ssd/ns\"\nnodes = \"a:1,b:2\"\ndurability = \"synced\"").unwrap();
        let config = NamespaceConfig::assemble(&args(Some("/other")), Some(table), true).unwrap().unwrap();
        assert_eq!(config.data, PathBuf::from("/other"));
        assert_eq!(config.nodes, Some(NodeList::Nodes(vec!["a:1".into(), "b:2".into()])));
        assert_eq!((config.replicas, config.durability), (2, Durability::Synced));
        assert_eq!((config.admit, config.trusts_root), (Admit::Key, false));
        let bad = |args: NamespaceArgs, listens| {
            NamespaceConfig::assemble(&args, None, listens).unwrap_err().to_string()
        };
        let base = args(Some("/ns"));
        assert!(bad(NamespaceArgs { replicas: Some(0), ..base.clone() }, true).contains("replicas 0"));
        assert!(
            bad(NamespaceArgs { durability: Some("none".into()), ..base.clone() }, true).contains("written")
        );
        assert!(bad(NamespaceArgs { partitions: Some(3), ..base.clone() }, true).contains("power of two"));
        assert!(bad(NamespaceArgs { admit: Some("all".into()), ..base.clone() }, true).contains("listed"));
        assert!(
            bad(NamespaceArgs { admit: Some("listed".into()), ..base.clone() }, true).contains("no list")
        );
        assert!(bad(NamespaceArgs { root: Some("yes".into()), ..base.clone() }, true).contains("squash"));
        assert!(bad(NamespaceArgs { nodes: Some("a:1".into()), ..base }, false).contains("--listen"));
        assert!(toml::from_str::<NamespaceTable>("dta = \"/x\"").is_err(), "an unknown key");
    }
}
