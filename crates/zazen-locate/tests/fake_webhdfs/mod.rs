//! A small stand-in for a name node's web interface. It is no HDFS: it answers operations such as
//! GETFILEBLOCKLOCATIONS from a table, in the form that Hadoop 3.4 answers. For files in folders
//! named `two`, it names two data nodes: one where nobody listens, and then itself.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use zazen_locate::HdfsUrl;

/// A path, and its blocks: length and hosts.
pub(crate) type File<'a> = (&'a str, &'a [(u64, &'a [&'a str])]);

/// A path as in a URL, a word of the query, and the body.
pub(crate) type Answer = (String, &'static str, String);

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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let note = asked.clone();
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, note) = (answers.clone(), note.clone());
                std::thread::spawn(move || serve(stream, &answers, &note));
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

fn serve(stream: TcpStream, answers: &[Answer], note: &Mutex<Vec<String>>) {
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
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        if writer.write_all(format!("{head}{body}").as_bytes()).is_err() {
            return;
        }
    }
}
