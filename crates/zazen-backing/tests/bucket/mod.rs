//! A bucket of a real object store as a backing store under test. `$ZAZEN_TEST_S3` is the address
//! (`127.0.0.1:PORT`) of an S3 server, and `$ZAZEN_OBJECTS` the program that reads it; the
//! credentials are in the environment, too. If the server checks signatures,
//! `$ZAZEN_TEST_S3_SIGNER` is the address of a proxy that signs what this file asks for.
//! tests/objects/test_contract.py sets all of them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zazen_backing::objects::{self, ObjectLocation, Owner};
use zazen_backing::{Backing, DirectoryNames, ObjectBacking, Rights, SourceFile, SourceStat};
use zazen_core::{Credentials, RelPath, Result};

const BUCKET: &str = "contract";

fn server() -> Option<String> {
    std::env::var("ZAZEN_TEST_S3").ok()
}

/// Whether there is an object store for tests.
pub(crate) fn is_there() -> bool {
    if server().is_none() {
        println!("no bucket: $ZAZEN_TEST_S3 names no S3 server (tests/objects/test_contract.py starts one)");
    }
    server().is_some()
}

/// A bucket that gets what a directory has, before each question.
pub(crate) struct Mirror {
    inner: ObjectBacking,
    root: PathBuf,
    prefix: String,
    /// What the bucket has.
    put: Mutex<HashMap<String, Vec<u8>>>,
}

impl Mirror {
    pub(crate) fn of(root: &Path) -> Mirror {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("p{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let told = format!("s3://{BUCKET}/{prefix}?endpoint=http://{}", server().unwrap());
        let owner = Owner { uid: 0, gid: 0, mode: 0o444 };
        let location = ObjectLocation::parse(&told, owner).unwrap();
        let inner = ObjectBacking::new(&location, objects::program().unwrap());
        request("PUT", "", b"");
        Mirror { inner, root: root.to_owned(), prefix, put: Mutex::default() }
    }

    fn bring(&self) {
        let mut now = HashMap::new();
        collect(&self.root, "", &mut now);
        let mut put = self.put.lock().unwrap();
        // What is in a folder goes before it, and what takes a name comes after what had it.
        let mut gone: Vec<_> = put.keys().filter(|name| !now.contains_key(*name)).collect();
        gone.sort_unstable();
        for name in gone.into_iter().rev() {
            request("DELETE", &format!("{}/{name}", self.prefix), b"");
        }
        for (name, bytes) in &now {
            if put.get(name) != Some(bytes) {
                request("PUT", &format!("{}/{name}", self.prefix), bytes);
            }
        }
        *put = now;
    }
}

/// Files by their names, and folders as empty objects whose names end with a slash.
fn collect(folder: &Path, above: &str, into: &mut HashMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let name = format!("{above}{}", entry.file_name().to_str().unwrap());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            let name = format!("{name}/");
            collect(&entry.path(), &name, into);
            into.insert(name, Vec::new());
        } else if kind.is_file() {
            into.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
}

fn request(method: &str, key: &str, body: &[u8]) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let plain = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    let key: String = key.bytes().map(plain).collect();
    let server = std::env::var("ZAZEN_TEST_S3_SIGNER").ok().or_else(server).unwrap();
    let mut stream = TcpStream::connect(&server).unwrap();
    let length = body.len();
    let head = format!(
        "{method} /{BUCKET}/{key} HTTP/1.1\r\nHost: {server}\r\nContent-Length: {length}\r\nAuthorization: \
         AWS4-HMAC-SHA256 Credential=test/20261124/us-east-1/s3/aws4_request\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 20") || answer.contains("BucketAlreadyOwned"), "{answer}");
}

impl Backing for Mirror {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        self.bring();
        self.inner.stat(path)
    }
    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        self.bring();
        self.inner.stat_many(paths)
    }
    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        self.bring();
        self.inner.open(path)
    }
    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.bring();
        self.inner.list(path)
    }
    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        self.bring();
        self.inner.list_files(path)
    }
    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.bring();
        self.inner.allows(path, rights)
    }
    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        self.inner.seen_by(who)
    }
    fn traffic(&self) -> (u64, u64) {
        self.inner.traffic()
    }
}
