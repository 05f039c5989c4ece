//! Bytes of files in HDFS, over WebHDFS.
//!
//! The name node names a data node for each call. For a client on a data node that has a replica,
//! that is the client's own, so the bytes do not cross the network. If a data node fails, the name
//! node is asked for another one.

use super::{ANSWER_BYTES_MAX, AT_ONCE, Hdfs, each};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::ToSocketAddrs;
use std::path::Path;
use std::time::Duration;
use zazen_core::{Error, ErrorKind, Result};

/// How long a data node may be silent.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Data nodes that are tried for one file.
const TRIES_MAX: usize = 5;
/// HDFS takes no smaller blocks unless its administrator says so.
const BLOCK_BYTES_MIN: u64 = 1 << 20;
/// The length of a block is a multiple of this, the bytes of a checksum.
const CHECKSUM_BYTES: u64 = 512;
/// A file of more bytes comes in pieces, from all its data nodes at once.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
struct Redirect {
    #[serde(rename = "Location")]
    location: String,
}

/// Where bytes go. A try that failed may have left some there.
pub(super) trait Sink: Write {
    /// Forgets what came so far.
    fn restart(&mut self) -> io::Result<()>;
}

impl Sink for File {
    fn restart(&mut self) -> io::Result<()> {
        self.rewind().and_then(|()| self.set_len(0))
    }
}

/// Memory for at most so many bytes.
struct Memory {
    bytes: Vec<u8>,
    bytes_max: u64,
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.bytes_max {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("more than {} bytes", self.bytes_max),
            ));
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Memory {
    fn restart(&mut self) -> io::Result<()> {
        self.bytes.clear();
        Ok(())
    }
}

impl Hdfs {
    /// Writes the bytes of `file` into `into` from its beginning, and returns their number. They
    /// come from one data node: this host's, if it has them.
    ///
    /// Fails with `NotFound`, or with `Unavailable` if no data node gives them, or if their number
    /// is not `bytes`.
    pub fn fetch(&self, file: &str, bytes: u64, into: &mut File) -> Result<u64> {
        self.fetch_into(file, Some(bytes), into)
    }

    /// As [`Self::fetch`], for a file that this host has not: of a large one, each data node that
    /// has it gives pieces, and one with less to do gives more of them.
    pub fn fetch_from_all(&self, file: &str, bytes: u64, into: &mut File) -> Result<u64> {
        if bytes > WHOLE_BYTES_MAX && self.fetch_pieces(file, bytes, into) {
            return Ok(bytes);
        }
        self.fetch_into(file, Some(bytes), into)
    }

    pub(super) fn missing(&self, file: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("{}: HDFS has no such file", self.path_of(file)))
    }

    /// The bytes of a file of at most `bytes_max` bytes, such as an index.
    pub fn read(&self, file: &str, bytes_max: u64) -> Result<Vec<u8>> {
        let mut memory = Memory { bytes: Vec::new(), bytes_max };
        self.fetch_into(file, None, &mut memory)?;
        Ok(memory.bytes)
    }

    fn fetch_into(&self, file: &str, bytes: Option<u64>, into: &mut dyn Sink) -> Result<u64> {
        let mut excluded: Vec<String> = Vec::new();
        let mut last = None;
        while excluded.len() < TRIES_MAX {
            let (node, url) = match self.data_node(file, "OPEN", &excluded) {
                Ok(redirect) => redirect,
                // What the data nodes said tells more than that no other is left.
                Err(error) => return Err(last.unwrap_or(error)),
            };
            let failed = |why: String| self.failed(file, &format!("data node {node}"), why);
            match self.copy(&url, bytes, into) {
                Ok(got) if bytes.is_none_or(|bytes| bytes == got) => return Ok(got),
                Ok(got) => {
                    last = Some(failed(format!("gave {got} bytes of {}", bytes.unwrap_or_default())));
                }
                Err(why) => last = Some(failed(why)),
            }
            excluded.push(node);
        }
        Err(last.unwrap_or_else(|| self.failed(file, "HDFS", "no data node gives it".into())))
    }

    /// Copies files beneath `from` to the same names beneath the directory in HDFS, each in one
    /// block with `copies` replicas. Returns their bytes.
    pub fn load(&self, from: &Path, files: &[String], copies: u32) -> Result<u64> {
        let sent = each(files.len(), AT_ONCE / 2, &|at| self.store(from, &files[at], copies))?;
        Ok(sent.into_iter().sum())
    }

    fn store(&self, from: &Path, file: &str, copies: u32) -> Result<u64> {
        let path = from.join(file);
        let io = |error| Error::io(path.display().to_string(), error);
        let source = File::open(&path).map_err(io)?;
        let bytes = source.metadata().map_err(io)?.len();
        let block = bytes.next_multiple_of(CHECKSUM_BYTES).max(BLOCK_BYTES_MIN);
        let operation = format!("CREATE&overwrite=true&replication={copies}&blocksize={block}");
        let (node, url) = self.data_node(file, &operation, &[])?;
        let failed = |why: String| self.failed(file, &format!("data node {node}"), why);
        let reply = self.data_agent.put(&url).send(source).map_err(|error| failed(super::why(&error)))?;
        match reply.status().as_u16() {
            201 => Ok(bytes),
            status => Err(failed(refusal(status, reply))),
        }
    }

    /// The data node that the name node names for an operation: `host:port`, and the address.
    pub(super) fn data_node(
        &self,
        file: &str,
        operation: &str,
        excluded: &[String],
    ) -> Result<(String, String)> {
        let failed = |why: String| self.failed(file, &format!("name node {}", self.url.authority), why);
        let mut url = self.address(file, operation) + "&noredirect=true";
        if !excluded.is_empty() {
            // By host alone: with a port, it would have to be that of HDFS's own protocol.
            let hosts: Vec<String> = excluded.iter().map(|node| known_host(node)).collect();
            url += &format!("&excludedatanodes={}", hosts.join(","));
        }
        let method = if operation.starts_with("OPEN") {
            self.agent.get(&url).call()
        } else {
            self.agent.put(&url).send_empty()
        };
        let mut reply = method.map_err(|error| failed(super::why(&error)))?;
        match reply.status().as_u16() {
            200 => {}
            404 => return Err(self.missing(file)),
            status => return Err(failed(refusal(status, reply))),
        }
        let body = reply.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let body = body.map_err(|error| failed(super::why(&error)))?;
        let redirect: Redirect = serde_json::from_str(&body)
            .map_err(|error| failed(format!("its answer names no data node ({error})")))?;
        let node = redirect.location.split('/').nth(2).unwrap_or_default().to_owned();
        Ok((node, redirect.location))
    }

    /// Copies what a data node gives, and one byte more than the file has at most.
    pub(super) fn copy(
        &self,
        url: &str,
        bytes: Option<u64>,
        mut into: &mut dyn Sink,
    ) -> std::result::Result<u64, String> {
        let reply = self.data_agent.get(url).call().map_err(|error| super::why(&error))?;
        match reply.status().as_u16() {
            200 => {}
            status => return Err(refusal(status, reply)),
        }
        into.restart().map_err(|error| error.to_string())?;
        let bytes_max = bytes.map_or(u64::MAX, |bytes| bytes.saturating_add(1));
        let bytes = io::copy(&mut reply.into_body().into_reader().take(bytes_max), &mut into);
        bytes.and_then(|bytes| into.flush().map(|()| bytes)).map_err(|error| error.to_string())
    }

    fn failed(&self, file: &str, whom: &str, why: String) -> Error {
        Error::new(ErrorKind::Unavailable, format!("{whom}, file {}: {why}", self.path_of(file)))
    }
}

/// What a node says that refuses.
fn refusal(status: u16, mut reply: ureq::http::Response<ureq::Body>) -> String {
    let body = reply.body_mut().with_config().limit(1 << 16).read_to_string().unwrap_or_default();
    format!("HTTP status {status}: {}", body.chars().take(300).collect::<String>())
}

/// The host of `host:port` as a name node looks it up: by its address. A name that does not resolve
/// stays a name.
fn known_host(node: &str) -> String {
    let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
    let address =
        (host.trim_matches(['[', ']']), 0).to_socket_addrs().ok().and_then(|mut found| found.next());
    address.map_or_else(|| host.to_owned(), |address| address.ip().to_string())
}
