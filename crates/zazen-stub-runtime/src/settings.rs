//! Where a connection goes, and how it is made.

use std::path::PathBuf;
use std::time::Duration;
use zazen_call::{Carrier, ClusterKey, Connection, Identity};
use zazen_core::{Error, ErrorKind, Result};

/// A daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The one of this machine, wherever it listens.
    Default,
    /// The one behind this socket.
    Socket(PathBuf),
    /// The one at host:port.
    Tcp(String),
}

impl Address {
    /// `None` or empty means this machine's daemon. A text with a `/` is a socket's path, any other
    /// is HOST:PORT. A prefix `unix:` or `tcp:` also says which.
    pub fn parse(text: Option<&str>) -> Result<Address> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Address::Default) };
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Socket(path.into()));
        }
        let tcp = text.strip_prefix("tcp:").map(|addr| addr.trim_start_matches("//"));
        if tcp.is_none() && text.contains('/') {
            return Ok(Address::Socket(text.into()));
        }
        let addr = tcp.unwrap_or(text);
        match addr.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Address::Tcp(addr.to_owned()))
            }
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("address {text:?} is neither a socket's path (with a /) nor HOST:PORT"),
            )),
        }
    }
}

/// How a connection is made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to.
    pub address: Address,
    /// What carries the calls to a local daemon: `Auto`, `Unix` or `Shm`.
    pub carrier: Carrier,
    /// This process's MPI rank; -1 if it has none.
    pub rank: i32,
    /// How many ranks there are; -1 if it has none.
    pub ranks: i32,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long an answer may take; `None`: as long as the far side lives.
    pub call_timeout: Option<Duration>,
    /// The cluster key's file, for other nodes.
    pub key_file: Option<PathBuf>,
}

impl Settings {
    /// The defaults: ranks as the launcher says, 10 seconds for connecting, the key of
    /// `$ZAZEN_KEY`.
    pub fn new(address: Address) -> Settings {
        let (rank, ranks) = launched();
        Settings {
            address,
            carrier: Carrier::Auto,
            rank,
            ranks,
            connect_timeout: Duration::from_secs(10),
            call_timeout: None,
            key_file: std::env::var_os("ZAZEN_KEY").filter(|key| !key.is_empty()).map(PathBuf::from),
        }
    }

    /// Whether the daemon is another machine's, as far as the carrier is concerned.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.address, Address::Tcp(_))
    }

    /// A connection to the daemon.
    pub(crate) fn connect(&self) -> Result<Connection> {
        let mut connection = match &self.address {
            Address::Default => {
                let path = zazen_env::socket_path::find_socket_path();
                Connection::local(&path, self.carrier, self.connect_timeout)?
            }
            Address::Socket(path) => Connection::local(path, self.carrier, self.connect_timeout)?,
            Address::Tcp(addr) => {
                let file = self.key_file.as_ref().ok_or_else(|| {
                    Error::new(
                        ErrorKind::Config,
                        format!("a daemon at {addr} wants the cluster key: set $ZAZEN_KEY or key_file"),
                    )
                })?;
                let key = ClusterKey::from_file(file)?;
                Connection::tcp(addr, &key, &Identity::of_this_process(), self.connect_timeout)?
            }
        };
        connection.set_timeout(self.call_timeout);
        Ok(connection)
    }
}

/// This process's rank and how many there are, as its launcher says; (-1, -1) outside a launcher.
fn launched() -> (i32, i32) {
    let told = zazen_core::launcher::rank_of_ranks(|name| std::env::var(name).ok());
    told.and_then(|(rank, ranks)| Some((rank.try_into().ok()?, ranks.try_into().ok()?))).unwrap_or((-1, -1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        let check = |text: &str, expected: Address| assert_eq!(Address::parse(Some(text)).unwrap(), expected);
        assert_eq!(Address::parse(None).unwrap(), Address::Default);
        check("", Address::Default);
        check("/run/zazen/zazend.sock", Address::Socket("/run/zazen/zazend.sock".into()));
        check("./s", Address::Socket("./s".into()));
        check("unix:s", Address::Socket("s".into()));
        check("node7:7345", Address::Tcp("node7:7345".into()));
        check("tcp://[::1]:80", Address::Tcp("[::1]:80".into()));
        for bad in ["node7", ":7345", "node7:http", "tcp:node7"] {
            assert_eq!(Address::parse(Some(bad)).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
