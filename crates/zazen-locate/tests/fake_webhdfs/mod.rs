//! A small stand-in for a name node's web interface. It is no HDFS: it answers operations such as
//! GETFILEBLOCKLOCATIONS from a table, in the form that Hadoop 3.4 answers. For files in folders
//! named `two`, it names two data nodes: one where nobody listens, and then itself. A [`Large`]
//! file comes in pieces.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zazen_locate::HdfsUrl;

/// A path, and its blocks: length and hosts.
pub(crate) type File<'a> = (&'a str, &'a [(u64, &'a [&'a str])]);

/// A path as in a URL, a word of the query, and the body.
pub(crate) type Answer = (String, &'static str, String);

/// The file `/large`, on two data nodes, `127.0.0.1` and `127.0.0.2`, which are both this one.
#[derive(Clone, Default)]
pub(crate) struct Large {
    pub(crate) bytes: Vec<u8>,
    /// From so many answers to GETFILESTATUS on, it is another file.
    pub(crate) replaced_after: Option<usize>,
    /// The data node that gives none of it.
    pub(crate) dead: Option<&'static str>,
    /// After how long it says so.
    pub(crate) dead_after: Duration,
    /// Answers to GETFILESTATUS so far.
    pub(crate) statuses: Arc<AtomicUsize>,
}

impl Large {
    fn answer(&self, operation: &str, query: &str, port: u16) -> (&'static str, Vec<u8>) {
        let number = |name: &str| {
            let found = query.split('&').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.and_then(|value| value.parse::<usize>().ok())
        };
        let (offset, length) = (number("offset").unwrap_or(0), self.bytes.len());
        let end = number("length").map_or(length, |count| (offset + count).min(length));
        match operation {
            "GETFILESTATUS" => {
                let before = self.statuses.fetch_add(1, Ordering::SeqCst);
                let id = 7 + usize::from(self.replaced_after.is_some_and(|after| before >= after));
                let status =
                    format!(r#"{{"FileStatus":{{"fileId":{id},"length":{length},"modificationTime":1}}}}"#);
                ("200 OK", status.into_bytes())
            }
            "GETFILEBLOCKLOCATIONS" => {
                ("200 OK", json(&[(length as u64, &["127.0.0.1", "127.0.0.2"])]).into_bytes())
            }
            "OPEN" => {
                let excluded = query.split_once("excludedatanodes=").map_or("", |(_, names)| names);
                let node = if excluded.contains("127.0.0.1") { "127.0.0.2" } else { "127.0.0.1" };
                let place = format!("http://{node}:{port}/webhdfs/v1/piece?of={node}&offset={offset}");
                let count = number("length").map(|count| format!("&length={count}")).unwrap_or_default();
                ("200 OK", format!(r#"{{"Location":"{place}{count}"}}"#).into_bytes())
            }
            _ if self.dead.is_some_and(|dead| query.contains(&format!("of={dead}"))) => {
                std::thread::sleep(self.dead_after);
                ("503 Service Unavailable", b"too busy".to_vec())
            }
            _ => ("200 OK", self.bytes[offset.min(end)..end].to_vec()),
        }
    }
}

pub(crate) struct FakeWebHdfs {
    addr: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl FakeWebHdfs {
    pub(crate) fn start(files: &[File<'_>]) -> FakeWebHdfs {
        let locations = |(path, blocks): &File<'_>| (escape(path), "op=GETFILEBLOCKLOCATIONS", json(blocks));
        FakeWebHdfs::answering(files.iter().map(locations).collect())
    }

    /// Answers by path and operation.
    pub(crate) fn answering(answers: Vec<Answer>) -> FakeWebHdfs {
        FakeWebHdfs::with(answers, Large::default())
    }

    /// Has a file that comes in pieces.
    pub(crate) fn with(answers: Vec<Answer>, large: Large) -> FakeWebHdfs {
        // Each of this machine's own addresses is a data node.
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let addr = format!("127.0.0.1:{port}");
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let note = asked.clone();
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, note, large) = (answers.clone(), note.clone(), large.clone());
                std::thread::spawn(move || serve(stream, &answers, &large, &note));
            }
        });
        FakeWebHdfs { addr, asked }
    }

    pub(crate) fn url(&self, path: &str) -> HdfsUrl {
        HdfsUrl::parse(&format!("hdfs://{}{path}", self.addr)).unwrap()
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn escape(path: &str) -> String {
    path.replace(' ', "%20")
}

fn json(blocks: &[(u64, &[&str])]) -> String {
    let block = |(length, hosts): &(u64, &[&str])| {
        format!(
            r#"{{"cachedHosts":[],"corrupt":false,"hosts":{hosts:?},"length":{length},"names":[],"offset":0,
            "storageTypes":["DISK"],"topologyPaths":[]}}"#
        )
    };
    let blocks: Vec<String> = blocks.iter().map(block).collect();
    format!(r#"{{"BlockLocations":{{"BlockLocation":[{}]}}}}"#, blocks.join(","))
}

fn is_operation(query: &str, operation: &str) -> bool {
    query.split('&').any(|word| word == operation)
}

fn serve(stream: TcpStream, answers: &[Answer], large: &Large, note: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut header = String::new();
        while reader.read_line(&mut header).unwrap_or(0) > 2 {
            header.clear();
        }
        note.lock().unwrap().push(line.clone());
        let path = line.split(' ').nth(1).unwrap_or_default();
        let path = path.strip_prefix("/webhdfs/v1").unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let known =
            answers.iter().find(|(known, operation, _)| known == path && is_operation(query, operation));
        let here = writer.local_addr().unwrap().port();
        let far = "{\"Location\": \"http://127.0.0.1:1/bytes\"}";
        let near = format!("{{\"Location\": \"http://localhost:{here}/webhdfs/v1/bytes{path}\"}}");
        let is_open = path.contains("/two/") && query.starts_with("op=OPEN");
        let operation = query.split('&').find_map(|word| word.strip_prefix("op=")).unwrap_or_default();
        let of_large = matches!(path, "/large" | "/piece").then(|| large.answer(operation, query, here));
        let (status, body) = match known {
            None if path.starts_with("/bytes") && path.ends_with(".csv") => {
                ("200 OK", "time,file\n0,a.vtu\n")
            }
            None if path.starts_with("/bytes") => ("200 OK", "bytes"),
            None if is_open && query.contains("excludedatanodes=127.0.0.1,localhost") => {
                ("403 Forbidden", "no data node is left")
            }
            None if is_open && query.contains("excludedatanodes=127.0.0.1") => ("200 OK", near.as_str()),
            None if is_open => ("200 OK", far),
            Some((_, _, body)) => ("200 OK", body.as_str()),
            None if path.starts_with("/broken/json") => ("200 OK", "{\"FileStatus\":{}}"),
            None if path.contains("/broken/status") => ("500 Internal Server Error", "no class"),
            None if path.starts_with("/broken/cut") => {
                writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").unwrap();
                return;
            }
            None => ("404 Not Found", "{\"RemoteException\":{\"exception\":\"FileNotFoundException\"}}"),
        };
        let (status, body) = of_large.unwrap_or_else(|| (status, body.as_bytes().to_vec()));
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        if writer.write_all(&[head.into_bytes(), body].concat()).is_err() {
            return;
        }
    }
}
