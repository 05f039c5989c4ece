//! Real daemons with a namespace, for tests.

#![allow(dead_code, unreachable_pub)]

use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zazen_call::Connection;
use zazen_namespace_client::Namespace;
use zazen_testbed::{Daemon, Launch, Site};

const PROGRAM: &str = env!("CARGO_BIN_EXE_zazend");
/// How long anything may take that a test waits for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Daemons of one namespace.
pub struct Cluster {
    // Before their folders: a daemon that lives would make files there again.
    nodes: Vec<Node>,
    dir: tempfile::TempDir,
    site: Site,
}

struct Node {
    site: Site,
    data: PathBuf,
    launch: Launch,
    daemon: Option<Daemon>,
}

impl Cluster {
    /// One node.
    pub fn alone() -> Cluster {
        Cluster::with(1, &[])
    }

    /// `nodes` nodes, each with these flags.
    pub fn with(nodes: usize, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster::prepare(nodes, flags);
        cluster.begin();
        cluster
    }

    /// The same, before its daemons are started.
    pub fn prepare(nodes: usize, flags: &[&str]) -> Cluster {
        let dir = tempfile::Builder::new().prefix("zns").tempdir_in("/tmp").unwrap();
        let site = Site::make(dir.path()).unwrap();
        let list = dir.path().join("nodes");
        let mut cluster = Cluster { nodes: Vec::new(), dir, site };
        for at in 0..nodes {
            let site = cluster.site.node(at);
            let data = cluster.dir.path().join(format!("ns{at}"));
            let mut launch = Launch { name: Some(format!("n{at}")), ..site.launch() };
            launch = launch.with(["--namespace".as_ref(), data.as_os_str()]);
            launch = launch.with(["--namespace-root", "trust"]).with(flags);
            if nodes > 1 {
                launch = launch.with(["--namespace-nodes".as_ref(), list.as_os_str()]);
                launch = launch.with(["--namespace-format"]);
            }
            cluster.nodes.push(Node { site, data, launch, daemon: None });
        }
        cluster
    }

    /// Starts the daemons, and waits until the namespace answers on each node.
    pub fn begin(&mut self) {
        (0..self.nodes.len()).for_each(|at| self.start(at));
        let list = self.dir.path().join("nodes");
        let address = |node: &Node| node.daemon.as_ref().unwrap().ready().listen.clone().unwrap();
        let text: String = self.nodes.iter().map(|node| address(node) + "\n").collect();
        std::fs::write(list.with_extension("new"), text).unwrap();
        std::fs::rename(list.with_extension("new"), &list).unwrap();
        (0..self.nodes.len()).for_each(|at| drop(self.client(at)));
    }

    /// Starts the daemon of a node, at its old address if it had one.
    pub fn start(&mut self, at: usize) {
        let folder = self.dir.path().join(format!("d{at}"));
        std::fs::create_dir_all(&folder).unwrap();
        let node = &mut self.nodes[at];
        let daemon = Daemon::start(Path::new(PROGRAM), &node.launch, &folder).unwrap();
        node.launch.listen = daemon.ready().listen.clone();
        node.daemon = Some(daemon);
    }

    /// Kills the daemon of a node, as `kill -9` does.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut daemon) = self.nodes[at].daemon.take() {
            daemon.kill();
        }
    }

    /// Stops the daemon of a node, as a machine does that hangs.
    pub fn pause(&self, at: usize) {
        self.nodes[at].daemon.as_ref().unwrap().signal(Signal::STOP).unwrap();
    }

    /// Lets it go on.
    pub fn resume(&self, at: usize) {
        self.nodes[at].daemon.as_ref().unwrap().signal(Signal::CONT).unwrap();
    }

    /// The log of a node's daemon.
    pub fn log(&self, at: usize) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("d{at}/zazend.log"))).unwrap_or_default()
    }

    /// Where a node's daemon listens.
    pub fn address(&self, at: usize) -> String {
        self.nodes[at].launch.listen.clone().unwrap()
    }

    /// The file of the cluster key.
    pub fn key(&self) -> PathBuf {
        self.site.key.clone()
    }

    /// The folder of a node's namespace.
    pub fn data(&self, at: usize) -> &Path {
        &self.nodes[at].data
    }

    /// Takes away what was on a dead node's disk.
    pub fn wipe(&self, at: usize) {
        assert!(self.nodes[at].daemon.is_none(), "node {at} runs");
        std::fs::remove_dir_all(&self.nodes[at].data).unwrap();
    }

    /// A program of a node.
    pub fn client(&self, at: usize) -> Namespace {
        let started = Instant::now();
        loop {
            match Namespace::local(&self.nodes[at].site.socket) {
                Ok(namespace) => return namespace,
                Err(error) if started.elapsed() > PATIENCE => panic!("node {at}: {error}\n{}", self.log(at)),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// A connection without the library.
    pub fn raw(&self, at: usize) -> Connection {
        Connection::unix(&self.nodes[at].site.socket, Duration::from_secs(5)).unwrap()
    }

    /// Ends a program's connections, as its death would.
    pub fn cut(&self, namespace: Namespace) {
        namespace.abandon();
    }

    /// How many objects are on a node's disk.
    pub fn objects(&self, at: usize) -> usize {
        let folders = std::fs::read_dir(self.nodes[at].data.join("objects")).unwrap();
        folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
    }
}

/// A small disk, for as long as it is held.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it at `at`, for the daemon's user alone.
    pub fn mount(at: &Path, size: &str) -> SmallDisk {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("size={size},mode=700");
        let mut mount = std::process::Command::new("mount");
        assert!(mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(at).status().unwrap().success());
        SmallDisk(at.to_path_buf())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// Waits until `look` says yes.
pub fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let started = Instant::now();
    while !look() {
        assert!(started.elapsed() < Duration::from_secs(90), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// This thread acts as `uid` from now on.
pub fn become_user(uid: u32) {
    use rustix::process::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
}

/// Bytes that follow from a seed and do not repeat.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let word = |at: u64| zazen_core::fnv::mixed(at.wrapping_mul(0x9e37_79b9) ^ seed).to_le_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}
