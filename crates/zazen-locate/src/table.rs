//! A table that says which hosts hold which files, for storage that Zazen cannot ask.

use crate::{Located, Locations, Locator, Replica};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// The longest table.
const TABLE_BYTES_MAX: u64 = 256 << 20;

/// A plain directory with a table of hosts.
///
/// Each line of the table has a path beneath the directory and the hosts that hold it:
/// `step0/block1.vtu node3 node7`. A path that ends in `/` stands for all files beneath it, and `*`
/// for all; the longest path that fits counts. `#` begins a comment.
#[derive(Clone, Debug)]
pub struct HostsTable {
    name: String,
    directory: PathBuf,
    hosts: BTreeMap<String, Vec<String>>,
}

impl HostsTable {
    /// Reads the table `file` of the files beneath `directory`. Fails with `Config`, naming the
    /// line.
    pub fn read(file: &Path, directory: &Path) -> Result<HostsTable> {
        let name = format!("table of hosts {}", file.display());
        let failed = |error| Error::io(name.clone(), error);
        // What has no length, such as a pipe, is bounded, too.
        let mut text = String::new();
        let opened = zazen_env::plain_file::open_given(file).map_err(failed)?;
        opened.take(TABLE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > TABLE_BYTES_MAX {
            let why = format!("{name}: more than {TABLE_BYTES_MAX} bytes; is it the right file?");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        let hosts = parse(&text).map_err(|error| error.within(&name))?;
        Ok(HostsTable { name, directory: directory.to_owned(), hosts })
    }

    fn hosts_of(&self, file: &str) -> &[String] {
        let above = file.match_indices('/').rev().map(|(at, _)| &file[..=at]);
        let mut places = std::iter::once(file).chain(above).chain(["*"]);
        places.find_map(|place| self.hosts.get(place)).map_or(&[], Vec::as_slice)
    }
}

impl Locator for HostsTable {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn locate(&mut self, files: &[String]) -> Result<Locations> {
        let located = |file: &String| match std::fs::metadata(self.directory.join(file)) {
            Err(_) => Located { blocks: 1, ..Located::default() },
            Ok(found) => {
                let bytes = found.len();
                let hosts = self.hosts_of(file).iter();
                let replicas = hosts.map(|node| Replica { node: node.clone(), bytes }).collect();
                Located { bytes, replicas, blocks: 1 }
            }
        };
        Ok(Locations { files: files.iter().map(located).collect(), silent: Vec::new() })
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let mut hosts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (line, at) in text.lines().zip(1..) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(path) = words.next() else { continue };
        let mut named: Vec<String> = words.map(str::to_owned).collect();
        named.sort_unstable();
        named.dedup();
        let refuse = |why: &str| Err(Error::new(ErrorKind::Config, format!("line {at}: {path} {why}")));
        if named.is_empty() {
            return refuse("is on no host; name its hosts behind it");
        }
        if hosts.insert(path.to_owned(), named).is_some() {
            return refuse("is listed twice");
        }
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_path_counts() {
        let hosts = parse("* a\ns1/ b c # two\ns1/x.vtu d\n\n# end\n").unwrap();
        let table = HostsTable { name: "t".into(), directory: "/".into(), hosts };
        let of = |file: &str| table.hosts_of(file).join(" ");
        assert_eq!((of("s1/x.vtu"), of("s1/y/z"), of("s2/x")), ("d".into(), "b c".into(), "a".into()));
        for (bad, words) in [("x", "line 1: x is on no host"), ("x a\nx b", "line 2: x is listed twice")] {
            assert!(parse(bad).unwrap_err().to_string().contains(words));
        }
    }
}
