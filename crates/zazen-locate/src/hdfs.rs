//! HDFS, asked over WebHDFS (plain HTTP and JSON): where the blocks of files are.
//!
//! The name node answers for one file a call, so several threads ask. Bytes are never read here.

use crate::{Located, Locations, Locator, Replica};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

/// The name node's web port, if the URL gives none.
const WEB_PORT: u16 = 9870;
/// How long the name node may take for one answer.
const PATIENCE: Duration = Duration::from_secs(10);
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

/// A name node, and the directory of a visualization in it.
pub struct Hdfs {
    url: HdfsUrl,
    user: Option<String>,
    agent: ureq::Agent,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "BlockLocations")]
    locations: BlockLocations,
}

#[derive(Deserialize)]
struct BlockLocations {
    #[serde(rename = "BlockLocation")]
    blocks: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    length: u64,
    hosts: Vec<String>,
    #[serde(default)]
    corrupt: bool,
}

impl Hdfs {
    /// The name node of `url`, asked as `user` (`None`: as its default user).
    pub fn new(url: HdfsUrl, user: Option<String>) -> Hdfs {
        let config =
            ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).build();
        Hdfs { url, user, agent: config.into() }
    }

    /// The blocks of a file; `None` if there is no such file.
    fn blocks(&self, file: &str) -> Result<Option<Vec<Block>>> {
        let failed = |why: String| {
            let place = format!("name node {}, file {}/{file}", self.url.authority, self.url.path);
            Error::new(ErrorKind::Unavailable, format!("{place}: {why}"))
        };
        let path = escaped(&format!("{}/{file}", self.url.path));
        let user = self.user.as_ref().map(|user| format!("&user.name={}", escaped(user))).unwrap_or_default();
        let url = format!("http://{}/webhdfs/v1{path}?op=GETFILEBLOCKLOCATIONS{user}", self.url.authority);
        let mut reply = self.agent.get(&url).call().map_err(|error| failed(error.to_string()))?;
        let status = reply.status().as_u16();
        let body = reply.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let body = body.map_err(|error| failed(error.to_string()))?;
        match status {
            200 => serde_json::from_str(&body)
                .map(|answer: Answer| Some(answer.locations.blocks))
                .map_err(|error| failed(format!("its answer is no list of block locations ({error})"))),
            404 => Ok(None),
            _ => {
                let shown: String = body.chars().take(300).collect();
                Err(failed(format!("HTTP status {status}: {shown}")))
            }
        }
    }

    fn located(&self, file: &str) -> Result<Located> {
        let Some(blocks) = self.blocks(file)? else { return Ok(Located { blocks: 1, ..Located::default() }) };
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
        let next = AtomicUsize::new(0);
        let found = Mutex::new(vec![None; files.len()]);
        let first_error = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(files.len()) {
                scope.spawn(|| {
                    while let Some((at, file)) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, files.get(at)?)))
                    {
                        match self.located(file) {
                            Ok(located) => {
                                found.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(located);
                            }
                            Err(error) => {
                                first_error
                                    .lock()
                                    .unwrap_or_else(PoisonError::into_inner)
                                    .get_or_insert(error);
                                return;
                            }
                        }
                    }
                });
            }
        });
        if let Some(error) = first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Locations {
            files: found.into_iter().map(Option::unwrap_or_default).collect(),
            silent: Vec::new(),
        })
    }
}

/// `text` for a URL's path: every byte that means something there is written as `%XX`.
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
