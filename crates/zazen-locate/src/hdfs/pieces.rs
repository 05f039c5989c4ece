//! A large file from all its data nodes at once.
//!
//! A data node whose disk has other work gives fewer pieces: each node begins with an area of its
//! own, and one that is done takes from the end of the largest area that is left. Areas are read
//! from their beginning, since a data node reads ahead.

use super::Hdfs;
use super::bytes::Sink;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Data nodes that are asked at once.
const NODES_AT_ONCE: usize = 4;
/// A data node reads 4 MiB ahead of a request for more bytes than these, also beyond its end.
const SHORT_BYTES: u64 = 256 << 10;
/// A piece of a file in which areas are so long that this does no harm.
const LONG_BYTES: u64 = 4 << 20;
/// A file of more bytes comes in long pieces.
const SHORT_FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Deserialize)]
struct StatusAnswer {
    #[serde(rename = "FileStatus")]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// Before Hadoop 2.3 files had none.
    #[serde(default)]
    file_id: u64,
    length: u64,
    #[serde(rename = "modificationTime")]
    modified: u64,
}

/// What is left of a file, in pieces.
struct Left {
    /// One for each node.
    areas: Vec<Range<u64>>,
    given_back: Vec<u64>,
}

impl Left {
    fn of(pieces: u64, nodes: usize) -> Left {
        let nodes = nodes as u64;
        let areas = (0..nodes).map(|node| pieces * node / nodes..pieces * (node + 1) / nodes).collect();
        Left { areas, given_back: Vec::new() }
    }

    /// The next piece for a node.
    fn take(&mut self, node: usize) -> Option<u64> {
        if let Some(piece) = self.given_back.pop() {
            return Some(piece);
        }
        if let Some(piece) = self.areas[node].next() {
            return Some(piece);
        }
        self.areas.iter_mut().max_by_key(|area| area.end.saturating_sub(area.start))?.next_back()
    }

    fn is_empty(&self) -> bool {
        self.given_back.is_empty() && self.areas.iter().all(Range::is_empty)
    }
}

fn lock(left: &Mutex<Left>) -> MutexGuard<'_, Left> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A part of a file that is fetched.
struct Piece<'a> {
    into: &'a File,
    at: u64,
    end: u64,
}

impl Write for Piece<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.end - self.at {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes than were asked for"));
        }
        let put = self.into.write_at(bytes, self.at)?;
        self.at += put as u64;
        Ok(put)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Piece<'_> {
    /// Each try has a piece of its own.
    fn restart(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A data node as it is asked for pieces.
struct Source {
    /// The other nodes that have the file.
    others: Vec<String>,
    /// Its address for the file, once the name node has told it.
    url: Option<String>,
}

impl Hdfs {
    /// Fetches a file from several data nodes at once. False if that can't be done, or if the file
    /// is not what it was: then some of its bytes may be in `into`.
    pub(super) fn fetch_pieces(&self, file: &str, bytes: u64, into: &File) -> bool {
        let Ok(located) = self.located(file) else { return false };
        let holders: Vec<&str> = located.replicas.iter().map(|replica| replica.node.as_str()).collect();
        if located.blocks != 1 || located.bytes != bytes || holders.len() < 2 {
            return false;
        }
        let Some(before) = self.version(file) else { return false };
        if into.set_len(bytes).is_err() {
            return false;
        }
        let count = holders.len().min(NODES_AT_ONCE);
        let piece = if bytes > SHORT_FILE_BYTES_MAX { LONG_BYTES } else { SHORT_BYTES };
        let left = Mutex::new(Left::of(bytes.div_ceil(piece), count));
        // A node that fails leaves its piece to the others. Whether it was the last one's turn is
        // known late, since a node that is off takes no connection for a while: so they get a turn
        // more, and the file need not come again as a whole.
        let work = |node: usize, first: u64| {
            let others = holders.iter().filter(|other| **other != holders[node]);
            let mut source = Source { others: others.map(ToString::to_string).collect(), url: None };
            let mut next = Some(first);
            while let Some(number) = next {
                let at = number * piece;
                if self.fetch_piece(file, at, piece.min(bytes - at), &mut source, into).is_err() {
                    lock(&left).given_back.push(number);
                    return false;
                }
                next = lock(&left).take(node);
            }
            true
        };
        let mut nodes: Vec<usize> = (0..count).collect();
        while !nodes.is_empty() && !lock(&left).is_empty() {
            // Each has a piece from the beginning, so none is left out because it begins late.
            let turns: Vec<_> =
                nodes.iter().map_while(|node| Some((*node, lock(&left).take(*node)?))).collect();
            nodes = std::thread::scope(|scope| {
                let work = &work;
                let begin = |(node, first)| (node, scope.spawn(move || work(node, first)));
                let under_way: Vec<_> = turns.into_iter().map(begin).collect();
                // A piece must not be lost with its thread.
                let ended = |turn: std::thread::ScopedJoinHandle<'_, bool>| {
                    turn.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                let worked = under_way.into_iter().filter_map(|(node, turn)| ended(turn).then_some(node));
                worked.collect()
            });
        }
        // Pieces of two files must not be mixed.
        lock(&left).is_empty() && self.version(file) == Some(before)
    }

    /// Writes `bytes` of a file at `at` into `into`.
    fn fetch_piece(
        &self,
        file: &str,
        at: u64,
        bytes: u64,
        source: &mut Source,
        into: &File,
    ) -> std::result::Result<(), String> {
        let url = match source.url.take() {
            Some(url) => with_range(&url, at, bytes),
            None => {
                let operation = format!("OPEN&offset={at}&length={bytes}");
                self.data_node(file, &operation, &source.others).map_err(|error| error.to_string())?.1
            }
        };
        let mut piece = Piece { into, at, end: at + bytes };
        let got = self.copy(&url, Some(bytes), &mut piece)?;
        source.url = Some(url);
        if got == bytes { Ok(()) } else { Err(format!("gave {got} bytes of {bytes} at {at}")) }
    }

    /// What differs for other contents of the same name: which file it is, how long, and when it
    /// was written. `None` if HDFS does not tell.
    fn version(&self, file: &str) -> Option<(u64, u64, u64)> {
        let status = self.ask::<StatusAnswer>(file, "GETFILESTATUS").ok()??.status;
        (status.file_id != 0).then_some((status.file_id, status.length, status.modified))
    }
}

/// A data node's address for another range of the same file.
fn with_range(url: &str, at: u64, bytes: u64) -> String {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let is_kept =
        |word: &&str| !word.is_empty() && !word.starts_with("offset=") && !word.starts_with("length=");
    let mut words: Vec<&str> = query.split('&').filter(is_kept).collect();
    let (offset, length) = (format!("offset={at}"), format!("length={bytes}"));
    words.extend([offset.as_str(), length.as_str()]);
    format!("{place}?{}", words.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_is_taken_once_and_a_nodes_own_area_first() {
        for (pieces, nodes) in [(1, 2), (2, 2), (7, 2), (10, 3), (3, 4), (137, 4)] {
            let mut left = Left::of(pieces, nodes);
            let mut taken = Vec::new();
            // Node 0 is fast: it has three turns for each of the others'.
            for turn in 0.. {
                let node = if turn % 4 < 3 { 0 } else { 1 + turn / 4 % (nodes - 1) };
                let Some(piece) = left.take(node) else { break };
                taken.push(piece);
                if turn == 2 {
                    taken.pop();
                    left.given_back.push(piece);
                }
            }
            assert!(left.is_empty());
            taken.sort_unstable();
            assert_eq!(taken, (0..pieces).collect::<Vec<_>>());
        }
        let mut left = Left::of(10, 2);
        let order: Vec<_> = [0, 1, 0, 1, 1, 1, 1, 1, 0, 0].into_iter().map(|node| left.take(node)).collect();
        assert_eq!(order, [0, 5, 1, 6, 7, 8, 9, 4, 2, 3].map(Some));
    }

    #[test]
    fn an_address_is_that_of_another_range() {
        let told = "http://n1:9864/webhdfs/v1/o/a?op=OPEN&namenoderpcaddress=n0:9000&length=5&offset=0";
        let next = "http://n1:9864/webhdfs/v1/o/a?op=OPEN&namenoderpcaddress=n0:9000&offset=7&length=9";
        assert_eq!(with_range(told, 7, 9), next);
        assert_eq!(with_range(next, 7, 9), next);
        assert_eq!(with_range("http://n1/a", 7, 9), "http://n1/a?offset=7&length=9");
    }
}
