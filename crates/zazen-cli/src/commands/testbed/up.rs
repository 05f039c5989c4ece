//! `zazen testbed up`: plan, record, then build; whatever fails is taken down again.

use crate::testbed::state::{KEY_NAME, NODES_MAX, NODES_NAME, SERVER_NAME, VERSION};
use crate::testbed::{Folder, Host, Limits, Net, Role, State, disk, launch, net};
use crate::{output, parse};
use clap::Args;
use std::os::unix::fs::DirBuilderExt;
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
        let folder = Folder::make(dir)?;
        // Daemons and clients must spell the backing store alike: links in the path are resolved once, here.
        let dir = folder.path();
        let _held = folder.lock()?;
        clear_old(dir)?;
        let state = self.plan(&folder).and_then(|mut state| {
            state.save()?;
            match build(&mut state) {
                Ok(()) => Ok(state),
                Err(error) => super::down::take_down(&state).and(Err(error)),
            }
        });
        if state.is_err() {
            folder.remove_lock();
        }
        tell(&state?);
        Ok(())
    }

    fn plan(&self, folder: &Folder) -> Result<State> {
        let dir = folder.path();
        let tag = fresh_tag()?;
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
            .then(|| socket_dir(&tag))
            .transpose()?;
        let nodes = (0..usize::from(self.nodes)).map(|index| {
            let node = host(format!("n{index}"), Role::Node);
            let socket = match &socket_dir {
                Some(short) => short.join(format!("{}.sock", node.name)),
                None => node.dir.join("zazend.sock"),
            };
            Host { socket: Some(socket), ..node }
        });
        let nodes = nodes.collect();
        let backing_root = self.backing_root(folder)?;
        let how = match (self.net, self.server_rate) {
            (true, _) => "shaped links",
            (false, Some(_)) => "token bucket",
            (false, None) => "none",
        };
        let server_bytes_per_s = if self.net { Some(self.server_link / 8) } else { self.server_rate };
        Ok(State {
            version: VERSION,
            dir: dir.to_path_buf(),
            key: dir.join(KEY_NAME),
            nodes_file: dir.join(NODES_NAME),
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

    fn backing_root(&self, folder: &Folder) -> Result<PathBuf> {
        let Some(root) = &self.backing else {
            folder.make_folder(SERVER_NAME)?;
            return Ok(folder.path().join(SERVER_NAME));
        };
        let within = |error| Error::io(format!("file server's directory {}", root.display()), error);
        std::fs::create_dir_all(root).map_err(within)?;
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

/// The path of a folder for sockets that nobody could know before.
fn socket_dir(tag: &str) -> Result<PathBuf> {
    Ok(std::env::temp_dir().join(format!("{tag}-{:08x}", zazen_env::random_u128()? as u32)))
}

/// Makes it; one that is there already is somebody else's.
fn make_socket_dir(dir: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o755).create(dir);
    made.map_err(|error| Error::io(format!("testbed: folder for sockets {}", dir.display()), error))
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
    super::down::take_down(&old)
}

fn build(state: &mut State) -> Result<()> {
    if let Some(net) = &state.net {
        net::set_up(state, net)?;
    }
    if let Some(limited) = &state.disk {
        disk::set_up(state, limited)?;
    }
    let folder = state.folder()?;
    let key = zazen_call::ClusterKey::generate()?;
    folder.write(KEY_NAME, &format!("{}\n", key.trim_end()), 0o600)?;
    state.hosts().try_for_each(|host| folder.make_folder(&host.name))?;
    state.socket_dir.as_deref().map_or(Ok(()), make_socket_dir)?;
    launch::start_server(state)?;
    for index in 0..state.nodes.len() {
        launch::start_node(state, index)?;
    }
    launch::write_nodes_file(state)
}

/// A name for this testbed's namespaces and groups that nothing on this machine has: what bears it later is ours.
fn fresh_tag() -> Result<String> {
    loop {
        let tag = format!("zz{:06x}", zazen_env::random_u128()? & 0xff_ffff);
        if !net::is_taken(&tag) && !disk::is_taken(&tag) {
            return Ok(tag);
        }
    }
}

fn tell(state: &State) {
    output::line(format!("testbed {}: {} nodes up", state.dir.display(), state.nodes.len()));
    output::line(super::status::limits_line(state));
    output::line(format!("next: eval \"$(zazen testbed env --dir {})\"; zazen status", state.dir.display()));
}
