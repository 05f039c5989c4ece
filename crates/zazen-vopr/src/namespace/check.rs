//! What clients saw of names and of files, and whether one file system could have shown it.

use super::chunks::{self, Chunks};
use super::names::{self, Entries, Key, Names};
use super::order::{Model, Recorded, Verdict, order};
use super::versions::{self, Version, Versions};
use std::collections::BTreeMap;
use zazen_namespace::InodeId;

/// Names that are renamed to each other: the pairs of neighbours. Those of directories that clients
/// work in stay alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Family(u8);

/// A call that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Names(Family, usize),
    Versions(InodeId, usize),
    Chunks(InodeId, usize),
}

/// All calls.
#[derive(Default)]
pub(crate) struct History {
    names: BTreeMap<Family, Vec<Recorded<names::Asked, names::Seen>>>,
    versions: BTreeMap<InodeId, Vec<Recorded<versions::Asked, versions::Seen>>>,
    chunks: BTreeMap<InodeId, Vec<Recorded<chunks::Asked, chunks::Seen>>>,
    pub(crate) answered: u64,
}

/// The family of a name.
pub(crate) fn family((_, of): Key) -> Family {
    if of < names::NAMES as u8 { Family(of / 2) } else { Family(of) }
}

impl History {
    pub(crate) fn begin(&mut self, asked: names::Asked, at_ns: u64) -> Record {
        let family = family(asked.key());
        let calls = self.names.entry(family).or_default();
        calls.push(Recorded { asked, at_ns, answer: None });
        Record::Names(family, calls.len() - 1)
    }

    pub(crate) fn begin_version(&mut self, file: InodeId, asked: versions::Asked, at_ns: u64) -> Record {
        let calls = self.versions.entry(file).or_default();
        calls.push(Recorded { asked, at_ns, answer: None });
        Record::Versions(file, calls.len() - 1)
    }

    pub(crate) fn begin_chunks(&mut self, file: InodeId, asked: chunks::Asked, at_ns: u64) -> Record {
        let calls = self.chunks.entry(file).or_default();
        calls.push(Recorded { asked, at_ns, answer: None });
        Record::Chunks(file, calls.len() - 1)
    }

    /// What was asked about names.
    pub(crate) fn asked(&self, record: Record) -> Option<names::Asked> {
        let Record::Names(family, at) = record else { return None };
        Some(self.names.get(&family)?.get(at)?.asked)
    }

    pub(crate) fn end(&mut self, record: Record, at_ns: u64, seen: names::Seen) {
        self.answered += 1;
        if let Record::Names(family, at) = record
            && let Some(call) = self.names.get_mut(&family).and_then(|calls| calls.get_mut(at))
        {
            call.answer = Some((at_ns, seen));
        }
    }

    pub(crate) fn end_version(&mut self, record: Record, at_ns: u64, seen: versions::Seen) {
        self.answered += 1;
        if let Record::Versions(file, at) = record
            && let Some(call) = self.versions.get_mut(&file).and_then(|calls| calls.get_mut(at))
        {
            call.answer = Some((at_ns, seen));
        }
    }

    pub(crate) fn end_chunks(&mut self, record: Record, at_ns: u64, seen: chunks::Seen) {
        self.answered += 1;
        if let Record::Chunks(file, at) = record
            && let Some(call) = self.chunks.get_mut(&file).and_then(|calls| calls.get_mut(at))
        {
            call.answer = Some((at_ns, seen));
        }
    }

    /// The first names, or the first file, that show more than one file system could have shown.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let names = self.names.iter().find_map(|(family, calls)| {
            contradicts::<Names>(Entries::new(), calls, || format!("names {family:?}"))
        });
        let versions = || {
            self.versions.iter().find_map(|(file, calls)| {
                contradicts::<Versions>(Version::default(), calls, || format!("versions of {file}"))
            })
        };
        let chunks = || {
            self.chunks.iter().find_map(|(file, calls)| {
                contradicts::<Chunks>(chunks::File::default(), calls, || format!("chunks of {file}"))
            })
        };
        names.or_else(versions).or_else(chunks)
    }
}

fn contradicts<M: Model>(
    initial: M::State,
    calls: &[Recorded<M::Asked, M::Seen>],
    of: impl Fn() -> String,
) -> Option<String> {
    let why = match order::<M>(initial.clone(), calls) {
        Verdict::Order => return None,
        Verdict::NoOrder => "not linearizable",
        Verdict::Undecided => "whether it is linearizable was not found out",
    };
    let calls = until_it_breaks::<M>(initial, calls);
    let lines: Vec<String> = calls.iter().map(|call| format!("\n  {call:?}")).collect();
    Some(format!("{why}: {}:{}", of(), lines.concat()))
}

/// The calls until the first answer that is wrong.
fn until_it_breaks<M: Model>(
    initial: M::State,
    calls: &[Recorded<M::Asked, M::Seen>],
) -> Vec<Recorded<M::Asked, M::Seen>> {
    let until = |end_ns: u64| -> Vec<_> {
        let begun = calls.iter().filter(|call| call.at_ns <= end_ns).cloned();
        let known = |call: Recorded<M::Asked, M::Seen>| Recorded {
            answer: call.answer.filter(|(answered_ns, _)| *answered_ns <= end_ns),
            ..call
        };
        begun.map(known).collect()
    };
    let mut ends: Vec<u64> = calls.iter().filter_map(|call| Some(call.answer.as_ref()?.0)).collect();
    ends.sort_unstable();
    let first = ends.partition_point(|end_ns| order::<M>(initial.clone(), &until(*end_ns)) == Verdict::Order);
    until(ends.get(first).copied().unwrap_or(u64::MAX))
}
