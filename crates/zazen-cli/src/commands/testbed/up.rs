//! `zazen testbed up`: plan, record, then build; whatever fails is taken down again.

use crate::testbed::state::{self, NODES_MAX, lock};
use crate::testbed::{Host, Limits, Net, Role, State, disk, launch, net};
use crate::{output, parse};
use clap::Args;
use std::hash::Hasher;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// A unix socket's path has to fit into 108 bytes with its end mark.
const SOCKET_PATH_MAX: usize = 100;

#[derive(Args)]
pub(crate) struct Up {
    /// How many nodes
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64))]
    nodes: u16,
    /// Bytes that each node's cache may take
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse::bytes)]
    budget: u64,
    /// The directory that plays the file server [default: DIR/server]
    #[arg(long, value_name = "DIR")]
    backing: Option<PathBuf>,
    /// What the file server gives all readers together, per second (without --net)
    #[arg(long, value_name = "RATE", value_parser = parse::byte_rate, conflicts_with = "net")]
    server_rate: Option<u64>,
    /// A network namespace per node, with shaped links (needs root and iproute2)
    #[arg(long)]
    net: bool,
    /// Rate of each node's link, each way
    #[arg(long, value_name = "RATE", default_value = "160mbit", value_parser = parse::bit_rate, requires = "net")]
    link: u64,
    /// Rate of the file server's link, each way
    #[arg(long, value_name = "RATE", default_value = "160mbit", value_parser = parse::bit_rate, requires = "net")]
    server_link: u64,
    /// What each node's disk gives, per second (needs root and an I/O control group)
    #[arg(long, value_name = "RATE", value_parser = parse::byte_rate)]
    disk_bps: Option<u64>,
    /// Reads that each node's disk serves per second, whatever their size (as --disk-bps)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    disk_iops: Option<u64>,
    /// What the file server's disk gives, per second (as --disk-bps)
    #[arg(long, value_name = "RATE", value_parser = parse::byte_rate)]
    server_disk_bps: Option<u64>,
    /// Readers that each daemon lets at its disk; 1 as for a spinning one [default: by the kind of disk]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    readers: Option<u16>,
    /// The daemons hand frames out without a look at their sources (`validate = "never"`)
    #[arg(long)]
    trust_copies: bool,
}

impl Up {
    pub(crate) fn run(&self, dir: &Path) -> Result<()> {
        if self.net {
            net::check_possible()?;
        }
        make_dir(dir)?;
        let dir = &state::directory(Some(dir))?;
        let held = lock(dir)?;
        clear_old(dir)?;
        let mut state = self.plan(dir)?;
        state.save()?;
        if let Err(error) = build(&mut state) {
            super::down::take_down(&state);
            return Err(error);
        }
        drop(held);
        tell(&state);
        Ok(())
    }

    fn plan(&self, dir: &Path) -> Result<State> {
        let tag = tag(dir);
        let netns = |name: &str| self.net.then(|| format!("{tag}-{name}"));
        let host = |name: String, role| Host {
            dir: dir.join(&name),
            netns: netns(&name),
            name,
            role,
            socket: None,
            addr: None,
            process: None,
        };
        let socket_dir = (dir.as_os_str().len() + "/n63/zazend.sock".len() > SOCKET_PATH_MAX)
            .then(|| std::env::temp_dir().join(&tag));
        let nodes = (0..usize::from(self.nodes)).map(|index| {
            let node = host(format!("n{index}"), Role::Node);
            let socket = match &socket_dir {
                Some(short) => short.join(format!("{}.sock", node.name)),
                None => node.dir.join("zazend.sock"),
            };
            Host { socket: Some(socket), ..node }
        });
        let nodes = nodes.collect();
        let backing_root = self.backing_root(dir)?;
        let how = match (self.net, self.server_rate) {
            (true, _) => "shaped links",
            (false, Some(_)) => "token bucket",
            (false, None) => "none",
        };
        let server_bytes_per_s = if self.net { Some(self.server_link / 8) } else { self.server_rate };
        Ok(State {
            version: 1,
            dir: dir.to_path_buf(),
            key: dir.join("key"),
            nodes_file: dir.join("nodes.txt"),
            backing: format!("{}=", backing_root.display()),
            backing_root,
            limits: Limits { how: how.to_owned(), server_bytes_per_s },
            net: self.net.then(|| Net {
                switch: format!("{tag}-sw"),
                link_bits_per_s: self.link,
                server_link_bits_per_s: self.server_link,
            }),
            disk: self.plan_disk(dir, &tag),
            socket_dir,
            budget: self.budget,
            readers: self.readers,
            trust_copies: self.trust_copies,
            nodes,
            server: host("fs".to_owned(), Role::Server),
            sim: host("sim".to_owned(), Role::Simulation),
            tag,
        })
    }

    fn backing_root(&self, dir: &Path) -> Result<PathBuf> {
        let root = self.backing.clone().unwrap_or_else(|| dir.join("server"));
        let within = |error| Error::io(format!("file server's directory {}", root.display()), error);
        std::fs::create_dir_all(&root).map_err(within)?;
        root.canonicalize().map_err(within)
    }

    fn plan_disk(&self, dir: &Path, tag: &str) -> Option<crate::testbed::Disk> {
        let limits = disk::DiskLimits {
            bytes_per_s: self.disk_bps,
            iops: self.disk_iops,
            server_bytes_per_s: self.server_disk_bps,
        };
        limits.bytes_per_s.or(limits.iops).or(limits.server_bytes_per_s)?;
        match disk::plan(dir, tag, limits) {
            Ok(disk) => Some(disk),
            Err(error) => {
                output::note(error.to_string());
                None
            }
        }
    }
}

fn make_dir(dir: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .map_err(|error| Error::io(format!("testbed directory {}", dir.display()), error))
}

/// Takes down what a crash or a reboot has left; a testbed that runs is not touched.
fn clear_old(dir: &Path) -> Result<()> {
    let old = match State::load(dir) {
        Ok(old) => old,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if old.is_alive() {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "testbed {}: is up with {} nodes; `zazen testbed down` first",
                dir.display(),
                old.nodes.len()
            ),
        ));
    }
    super::down::take_down(&old);
    Ok(())
}

fn build(state: &mut State) -> Result<()> {
    // First what a testbed in this very directory left behind whose record was lost.
    if let Some(net) = &state.net {
        net::tear_down(state, net);
        net::set_up(state, net)?;
    }
    if let Some(limited) = &state.disk {
        disk::tear_down(state, limited);
        disk::set_up(state, limited)?;
    }
    write_key(&state.key)?;
    let sockets = state.socket_dir.iter().cloned();
    let folders: Vec<PathBuf> = state.hosts().map(|host| host.dir.clone()).chain(sockets).collect();
    for folder in &folders {
        make_dir(folder)?;
    }
    launch::start_server(state)?;
    for index in 0..state.nodes.len() {
        launch::start_node(state, index)?;
    }
    launch::write_nodes_file(state)
}

fn write_key(path: &Path) -> Result<()> {
    let text = zazen_call::ClusterKey::generate()?;
    let write = || -> std::io::Result<()> {
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.trim_end().as_bytes())?;
        file.write_all(b"\n")
    };
    write().map_err(|error| Error::io(format!("key file {}", path.display()), error))
}

/// A name for this testbed's namespaces and groups: the same directory always gets the same one (FNV-1a of its
/// path), so that what a lost record left behind is met again instead of piling up.
fn tag(dir: &Path) -> String {
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    hasher.write(dir.as_os_str().as_encoded_bytes());
    format!("zz{:06x}", hasher.finish() & 0xff_ffff)
}

fn tell(state: &State) {
    output::line(format!("testbed {}: {} nodes up", state.dir.display(), state.nodes.len()));
    output::line(super::status::limits_line(state));
    output::line(format!("next: eval \"$(zazen testbed env --dir {})\"; zazen status", state.dir.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_stable_and_short_enough_for_names_of_namespaces() {
        assert_eq!(tag(Path::new("/a")), tag(Path::new("/a")));
        assert_ne!(tag(Path::new("/a")), tag(Path::new("/b")));
        assert_eq!(tag(Path::new("/a")).len(), 8);
    }
}
