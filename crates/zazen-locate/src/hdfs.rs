//! HDFS, asked over WebHDFS (plain HTTP and JSON): where the blocks of files are.
//!
//! The name node answers for one file a call, so several threads ask. `bytes.rs` reads and writes
//! files, `pieces.rs` large ones; `replica.rs` opens those that this host's data node has.

use crate::{Located, Locations, Locator, Replica};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

mod bytes;
mod pieces;
pub(crate) mod replica;

/// The name node's web port, if the URL gives none.
const WEB_PORT: u16 = 9870;
/// How long a node may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How long the name node may take for one answer. One that collects garbage, or has much to do, is
/// silent for tens of seconds; Hadoop's own clients wait as long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Calls under way at once.
const AT_ONCE: usize = 8;
/// The longest answer: a file of a million blocks fits.
const ANSWER_BYTES_MAX: u64 = 512 << 20;

/// `hdfs://HOST[:WEB PORT]/DIRECTORY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HdfsUrl {
    /// `host:port` of the name node's web interface.
    pub authority: String,
    /// The directory, absolute.
    pub path: String,
}

impl HdfsUrl {
    /// Parses `hdfs://host[:port]/path`, where the port is that of the web interface (9870).
    /// Fails with `InvalidArgument`.
    pub fn parse(text: &str) -> Result<HdfsUrl> {
        let refuse = || {
            let why = format!("{text:?}: is not hdfs://HOST[:WEB PORT]/DIRECTORY");
            Error::new(ErrorKind::InvalidArgument, why)
        };
        let rest = text.strip_prefix("hdfs://").ok_or_else(refuse)?;
        let (authority, path) = rest.split_once('/').ok_or_else(refuse)?;
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if host.is_empty() || !authority.bytes().all(plain) {
            return Err(refuse());
        }
        let authority = match authority.contains(':') {
            true => authority.to_owned(),
            false => format!("{authority}:{WEB_PORT}"),
        };
        Ok(HdfsUrl { authority, path: format!("/{}", path.trim_end_matches('/')) })
    }
}

impl std::fmt::Display for HdfsUrl {
    fn fmt(&self, into: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(into, "hdfs://{}{}", self.authority, self.path)
    }
}

/// A name node, and the directory of a visualization in it.
pub struct Hdfs {
    url: HdfsUrl,
    user: Option<String>,
    agent: ureq::Agent,
    /// For bytes: no limit on the whole transfer, but one on each read.
    data_agent: ureq::Agent,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "BlockLocations")]
    locations: BlockLocations,
}

#[derive(Deserialize)]
struct BlockLocations {
    #[serde(rename = "BlockLocation")]
    blocks: Vec<HdfsBlock>,
}

#[derive(Deserialize)]
struct HdfsBlock {
    length: u64,
    hosts: Vec<String>,
    #[serde(default)]
    corrupt: bool,
}

impl Hdfs {
    /// The name node of `url`, asked as `user` (`None`: as its default user).
    pub fn new(url: HdfsUrl, user: Option<String>) -> Hdfs {
        Hdfs::with_patience(url, user, PATIENCE)
    }

    fn with_patience(url: HdfsUrl, user: Option<String>, patience: Duration) -> Hdfs {
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_global(Some(patience))
            .http_status_as_error(false)
            .build();
        let data_config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_per_read(Some(bytes::PATIENCE))
            .timeout_per_write(Some(bytes::PATIENCE))
            .http_status_as_error(false)
            .build();
        Hdfs { url, user, agent: config.into(), data_agent: data_config.into() }
    }

    /// The user that `$HADOOP_USER_NAME` names, as Hadoop's own clients do.
    pub fn of_environment(url: HdfsUrl) -> Hdfs {
        Hdfs::new(url, std::env::var("HADOOP_USER_NAME").ok().filter(|user| !user.is_empty()))
    }

    /// What the name node is asked about `file`, a path beneath the directory or an absolute one.
    fn address(&self, file: &str, operation: &str) -> String {
        let path = escaped(&self.path_of(file));
        let user = self.user.as_ref().map(|user| format!("&user.name={}", escaped(user))).unwrap_or_default();
        format!("http://{}/webhdfs/v1{path}?op={operation}{user}", self.url.authority)
    }

    fn path_of(&self, file: &str) -> String {
        match file.starts_with('/') {
            true => file.to_owned(),
            false => format!("{}/{file}", self.url.path.trim_end_matches('/')),
        }
    }

    /// What the name node answers to an operation on a file; `None` if there is no such file.
    fn ask<T: serde::de::DeserializeOwned>(&self, file: &str, operation: &str) -> Result<Option<T>> {
        let failed = |why: String| {
            let place = format!("name node {}, file {}", self.url.authority, self.path_of(file));
            Error::new(ErrorKind::Unavailable, format!("{place}, {operation}: {why}"))
        };
        let url = self.address(file, operation);
        let mut reply = self.agent.get(&url).call().map_err(|error| failed(why(&error)))?;
        let status = reply.status().as_u16();
        let body = reply.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let body = body.map_err(|error| failed(why(&error)))?;
        match status {
            200 => serde_json::from_str(&body)
                .map(Some)
                .map_err(|error| failed(format!("its answer is not in HDFS's form ({error})"))),
            404 => Ok(None),
            _ => {
                let shown: String = body.chars().take(300).collect();
                Err(failed(format!("HTTP status {status}: {shown}")))
            }
        }
    }

    fn located(&self, file: &str) -> Result<Located> {
        let Some(answer) = self.ask::<Answer>(file, "GETFILEBLOCKLOCATIONS")? else {
            return Ok(Located { blocks: 1, ..Located::default() });
        };
        let blocks = answer.locations.blocks;
        let mut by_node: BTreeMap<String, u64> = BTreeMap::new();
        for block in blocks.iter().filter(|block| !block.corrupt) {
            let mut hosts = block.hosts.clone();
            hosts.sort_unstable();
            hosts.dedup();
            for host in hosts {
                *by_node.entry(host).or_default() += block.length;
            }
        }
        let replicas = by_node.into_iter().map(|(node, bytes)| Replica { node, bytes }).collect();
        let bytes = blocks.iter().map(|block| block.length).sum();
        Ok(Located { bytes, replicas, blocks: blocks.len().max(1) })
    }
}

impl Locator for Hdfs {
    fn describe(&self) -> String {
        format!("HDFS at {}", self.url.authority)
    }

    fn locate(&mut self, files: &[String]) -> Result<Locations> {
        let found = each(files.len(), AT_ONCE, &|at| self.located(&files[at]))?;
        Ok(Locations { files: found, silent: Vec::new() })
    }
}

/// `work` for each of `count` items, on up to `threads` threads; fails as the first that failed.
fn each<T: Send>(count: usize, threads: usize, work: &(dyn Fn(usize) -> Result<T> + Sync)) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    let first_error = Mutex::new(None);
    let run = || {
        while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < count) {
            match work(at) {
                Ok(value) => done.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(value),
                Err(error) => {
                    next.store(count, Ordering::Relaxed);
                    first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..threads.min(count)).for_each(|_| drop(scope.spawn(run))));
    match first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()),
    }
}

/// `text` for a URL's path: every byte that means something there is written as `%XX`.
/// What went wrong with a call, as its user understands it.
fn why(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect) => "it takes no connection".to_owned(),
        ureq::Error::Timeout(_) => "it did not answer in time; it may be down or busy: try again".to_owned(),
        other => other.to_string(),
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(byte as char)
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name node that takes connections and says nothing.
    #[test]
    fn a_silent_name_node_is_named() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = HdfsUrl::parse(&format!("hdfs://{}/ocean", silent.local_addr().unwrap())).unwrap();
        let hdfs = Hdfs::with_patience(url.clone(), None, Duration::from_millis(20));
        let error = hdfs.located("ts.pvd").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let said = error.to_string();
        assert!(said.contains(&url.authority) && said.contains("did not answer in time"), "{said}");
    }

    #[test]
    fn urls_name_the_web_interface() {
        let parsed = |text: &str| HdfsUrl::parse(text).map(|url| (url.authority, url.path)).ok();
        assert_eq!(parsed("hdfs://nn/ocean/"), Some(("nn:9870".into(), "/ocean".into())));
        assert_eq!(parsed("hdfs://nn:50070/a/b"), Some(("nn:50070".into(), "/a/b".into())));
        for bad in ["http://nn/a", "hdfs://", "hdfs:///a", "hdfs://nn", "hdfs://a b/c", "hdfs://u@nn/c"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
        assert_eq!(escaped("/a b/é?&%.vtu"), "/a%20b/%C3%A9%3F%26%25.vtu");
    }
}
