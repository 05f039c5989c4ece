//! Operations on directories that are split: which bucket has a name, and what an answer comes to.
//!
//! A directory with many entries is split into buckets: directories of their own, which hold the
//! entries whose places begin with the same bits. So the places, which are also the cookies of a
//! listing, go on from bucket to bucket. Whoever routes operations makes an [`Errand`] of each: it
//! says what to ask, takes the answers, and asks again if a directory was split or merged
//! meanwhile. Programs see one directory.
//!
//! Nothing here has to be right for the partitions: a name that is looked for in the wrong place is
//! answered with [`Answer::Split`], or with `ESTALE` by a bucket that is gone. A bucket's number is
//! never used twice, so it says of which split it is.

use crate::operation::{
    Answer, Create, CreateMany, Entry, Inode, Layout, Listing, ManyCreated, Operation, ReadDirectory,
};
use crate::partition::place_of;
use crate::{Attributes, Errno, InodeId, Kind};
use std::collections::BTreeMap;

/// Bits of an entry's place.
const PLACE_BITS: u32 = 63;
/// How often a directory may be split or merged while an errand looks at it.
const ROUNDS_MAX: u32 = 100;
/// The most directories whose layout is remembered.
const LAYOUTS_MAX: usize = 4096;

/// Which of `count` buckets has the entry at `place`. `count` is a power of two.
pub(crate) fn bucket_of_place(place: u64, count: usize) -> usize {
    let bits = count.max(1).ilog2();
    if bits == 0 { 0 } else { (place >> (PLACE_BITS - bits)) as usize }
}

/// Where the places of a bucket begin.
pub(crate) fn first_place_of(bucket: usize, count: usize) -> u64 {
    let bits = count.max(1).ilog2();
    if bits == 0 { 0 } else { (bucket as u64) << (PLACE_BITS - bits) }
}

/// The directories in which an operation uses names.
pub(crate) fn directories_of(operation: &Operation) -> [Option<InodeId>; 2] {
    match operation {
        Operation::Lookup(at) | Operation::Unlink(at) | Operation::RemoveDirectory(at) => {
            [Some(at.directory), None]
        }
        Operation::Create(create) => [Some(create.directory), None],
        Operation::CreateMany(many) => [Some(many.directory), None],
        Operation::MakeDirectory(make) => [Some(make.directory), None],
        Operation::Link(link) => [Some(link.directory), None],
        Operation::ReadDirectory(read) => [Some(read.directory), None],
        Operation::Rename(rename) => [Some(rename.new_directory), Some(rename.directory)],
        _ => [None, None],
    }
}

/// What is known of the directories that are split.
#[derive(Clone, Debug, Default)]
pub struct Layouts {
    buckets: BTreeMap<InodeId, Vec<InodeId>>,
    /// The directory of each bucket.
    above: BTreeMap<InodeId, InodeId>,
}

impl Layouts {
    /// Takes what a partition says. True if it was not known.
    pub fn learn(&mut self, layout: &Layout) -> bool {
        let before = self.buckets.remove(&layout.directory);
        for bucket in before.iter().flatten() {
            self.above.remove(bucket);
        }
        if layout.buckets.is_empty() {
            return before.is_some();
        }
        if self.buckets.len() >= LAYOUTS_MAX {
            self.buckets.clear();
            self.above.clear();
        }
        self.buckets.insert(layout.directory, layout.buckets.clone());
        self.above.extend(layout.buckets.iter().map(|bucket| (*bucket, layout.directory)));
        before.as_ref() != Some(&layout.buckets)
    }

    /// The directory of which `id` is a bucket, if that is known; `id` itself if it is no bucket.
    pub fn directory_of(&self, id: InodeId) -> Option<InodeId> {
        if id.is_bucket() { self.above.get(&id).copied() } else { Some(id) }
    }

    fn of(&self, directory: InodeId) -> &[InodeId] {
        self.buckets.get(&directory).map_or(&[], Vec::as_slice)
    }

    /// The directory that has the name: a bucket, or the directory itself.
    fn with_name(&self, directory: InodeId, name: &[u8]) -> InodeId {
        let buckets = self.of(directory);
        let at = bucket_of_place(place_of(name), buckets.len());
        buckets.get(at).copied().unwrap_or(directory)
    }

    /// The operation as the partition of the bucket takes it.
    fn translate(&self, operation: &Operation) -> Operation {
        let mut operation = operation.clone();
        match &mut operation {
            Operation::Lookup(at) | Operation::Unlink(at) | Operation::RemoveDirectory(at) => {
                at.directory = self.with_name(at.directory, at.name.as_bytes());
            }
            Operation::Create(Create { directory, name, .. }) => {
                *directory = self.with_name(*directory, name.as_bytes());
            }
            Operation::MakeDirectory(make) => {
                make.directory = self.with_name(make.directory, make.name.as_bytes());
            }
            Operation::Link(link) => {
                link.directory = self.with_name(link.directory, link.name.as_bytes());
            }
            Operation::Rename(rename) => {
                rename.directory = self.with_name(rename.directory, rename.name.as_bytes());
                rename.new_directory = self.with_name(rename.new_directory, rename.new_name.as_bytes());
            }
            _ => {}
        }
        operation
    }
}

/// An operation, until it is done.
#[derive(Clone, Debug)]
pub struct Errand {
    operation: Operation,
    state: State,
    rounds: u32,
    /// What was asked, by the layouts that were known.
    asked: Option<Operation>,
}

/// What an errand wants.
#[derive(Clone, Debug)]
pub enum Next {
    /// Ask these, for the same caller; then [`Errand::take`] the answers, in their order.
    Ask(Vec<Operation>),
    /// It is done.
    Done(Answer),
}

#[derive(Clone, Debug)]
enum State {
    /// The operation was asked.
    Asked,
    /// A part of a listing was asked of this bucket, of so many.
    Listing { bucket: usize, count: usize },
    /// These names were asked, each list of one bucket. And the results so far.
    Many { groups: Vec<Vec<usize>>, results: Vec<(InodeId, Option<Errno>)> },
    /// A place was stale: the layouts were asked.
    Looking { results: Option<Vec<(InodeId, Option<Errno>)>> },
    /// The answer has directories that are split: their layouts were asked.
    Layouts { answer: Answer, of: Vec<InodeId> },
    /// And the attributes of their buckets.
    Sums { answer: Answer, of: Vec<(InodeId, usize)> },
    /// The answer is a bucket: what it belongs to was asked.
    Above,
}

impl Errand {
    /// An errand, and what to ask first.
    pub fn new(operation: Operation, layouts: &Layouts) -> (Errand, Vec<Operation>) {
        let mut errand = Errand { operation, state: State::Asked, rounds: 0, asked: None };
        let asks = errand.ask(None, layouts);
        (errand, asks)
    }

    /// What it was made of.
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// What to ask, by what is known of the directories.
    fn ask(&mut self, results: Option<Vec<(InodeId, Option<Errno>)>>, layouts: &Layouts) -> Vec<Operation> {
        match &self.operation {
            Operation::ReadDirectory(read) if !layouts.of(read.directory).is_empty() => {
                // The entries behind the cookie.
                let bucket = bucket_of_place(read.cookie, layouts.of(read.directory).len());
                self.ask_listing(bucket, layouts)
            }
            Operation::CreateMany(many) if results.is_some() || !layouts.of(many.directory).is_empty() => {
                let unknown = (InodeId(0), Some(Errno::ESTALE));
                let results = results.unwrap_or_else(|| vec![unknown; many.names.len()]);
                let mut groups: BTreeMap<InodeId, Vec<usize>> = BTreeMap::new();
                for (at, name) in many.names.iter().enumerate() {
                    if results[at].1 == Some(Errno::ESTALE) {
                        let directory = layouts.with_name(many.directory, name.as_bytes());
                        groups.entry(directory).or_default().push(at);
                    }
                }
                let part = |(directory, group): (&InodeId, &Vec<usize>)| {
                    let names = group.iter().map(|at| many.names[*at].clone()).collect();
                    Operation::CreateMany(CreateMany {
                        directory: *directory,
                        names,
                        mode: many.mode,
                        copies: many.copies,
                        archived: many.archived,
                        chunk_mib: many.chunk_mib,
                    })
                };
                let asks = groups.iter().map(part).collect();
                self.state = State::Many { groups: groups.into_values().collect(), results };
                asks
            }
            operation => {
                let translated = layouts.translate(operation);
                self.state = State::Asked;
                self.asked = Some(translated.clone());
                vec![translated]
            }
        }
    }

    fn ask_listing(&mut self, bucket: usize, layouts: &Layouts) -> Vec<Operation> {
        let Operation::ReadDirectory(read) = &self.operation else { return Vec::new() };
        let buckets = layouts.of(read.directory);
        let directory = buckets.get(bucket).copied().unwrap_or(read.directory);
        self.state = State::Listing { bucket, count: buckets.len() };
        vec![Operation::ReadDirectory(ReadDirectory { directory, ..read.clone() })]
    }

    /// Takes the answers to what was asked.
    pub fn take(&mut self, mut answers: Vec<Answer>, layouts: &mut Layouts) -> Next {
        self.rounds += 1;
        for answer in &answers {
            if let Answer::Split(layout) = answer {
                layouts.learn(layout);
            }
        }
        let first = |answers: &mut Vec<Answer>| match answers.is_empty() {
            true => Answer::refused(Errno::EIO),
            false => answers.swap_remove(0),
        };
        match std::mem::replace(&mut self.state, State::Asked) {
            State::Asked => {
                let answer = first(&mut answers);
                self.answered(answer, layouts)
            }
            State::Listing { bucket, count } => {
                let answer = first(&mut answers);
                self.listed(answer, bucket, count, layouts)
            }
            State::Many { groups, results } => self.made(groups, results, answers, layouts),
            State::Looking { results: None } if self.asked == Some(layouts.translate(&self.operation)) => {
                Next::Done(Answer::refused(Errno::ESTALE))
            }
            State::Looking { results } => Next::Ask(self.ask(results, layouts)),
            State::Layouts { answer, of } => self.sum(answer, &of, layouts),
            State::Sums { answer, of } => self.summed(answer, of, &answers),
            State::Above => {
                let answer = first(&mut answers);
                self.answered(answer, layouts)
            }
        }
    }

    fn answered(&mut self, answer: Answer, layouts: &Layouts) -> Next {
        let in_names = directories_of(&self.operation);
        let may_go_on = self.rounds < ROUNDS_MAX;
        match answer {
            Answer::Split(_) if in_names[0].is_some() && may_go_on => Next::Ask(self.ask(None, layouts)),
            Answer::Split(_) if in_names[0].is_some() => Next::Done(Answer::refused(Errno::EIO)),
            Answer::Refused(refused)
                if refused.errno == Errno::ESTALE && in_names[0].is_some() && self.rounds < 8 =>
            {
                self.look(None)
            }
            Answer::Entry(Entry { id, .. })
                if id.is_bucket() && matches!(self.operation, Operation::Parent(_)) && may_go_on =>
            {
                self.state = State::Above;
                Next::Ask(vec![Operation::Parent(Inode { id })])
            }
            answer => self.completed(answer),
        }
    }

    /// Asks how the directories are split.
    fn look(&mut self, results: Option<Vec<(InodeId, Option<Errno>)>>) -> Next {
        let directories = directories_of(&self.operation).into_iter().flatten();
        let asks = directories.map(|id| Operation::Buckets(Inode { id })).collect();
        self.state = State::Looking { results };
        Next::Ask(asks)
    }

    fn listed(&mut self, answer: Answer, bucket: usize, count: usize, layouts: &Layouts) -> Next {
        match answer {
            Answer::Listing(Listing { entries, end }) => {
                let is_last = bucket + 1 >= count;
                if entries.is_empty() && !is_last {
                    return Next::Ask(self.ask_listing(bucket + 1, layouts));
                }
                self.completed(Answer::Listing(Listing { entries, end: end && is_last }))
            }
            answer => self.answered(answer, layouts),
        }
    }

    fn made(
        &mut self,
        groups: Vec<Vec<usize>>,
        mut results: Vec<(InodeId, Option<Errno>)>,
        answers: Vec<Answer>,
        layouts: &Layouts,
    ) -> Next {
        let mut again = false;
        for (group, answer) in groups.into_iter().zip(answers) {
            match answer {
                Answer::Created(ManyCreated { results: made }) => {
                    for (at, made) in group.into_iter().zip(made) {
                        results[at] = made;
                    }
                }
                Answer::Split(_) => again = true,
                Answer::Refused(refused) if refused.errno == Errno::ESTALE => again = true,
                Answer::Refused(refused) => {
                    group.into_iter().for_each(|at| results[at].1 = Some(refused.errno));
                }
                _ => group.into_iter().for_each(|at| results[at].1 = Some(Errno::EIO)),
            }
        }
        let _ = layouts;
        if again && self.rounds < ROUNDS_MAX {
            return self.look(Some(results));
        }
        Next::Done(Answer::Created(ManyCreated { results }))
    }

    /// The answer is right but for directories whose buckets are to be summed up.
    fn completed(&mut self, mut answer: Answer) -> Next {
        let mut of: Vec<InodeId> = Vec::new();
        for attributes in attributes_in(&mut answer) {
            if attributes.kind == Kind::Directory && attributes.place.is_some() {
                of.push(attributes.id);
            }
        }
        if of.is_empty() {
            return Next::Done(answer);
        }
        let asks = of.iter().map(|id| Operation::Buckets(Inode { id: *id })).collect();
        self.state = State::Layouts { answer, of };
        Next::Ask(asks)
    }

    fn sum(&mut self, answer: Answer, of: &[InodeId], layouts: &Layouts) -> Next {
        // The directories themselves too: one that was merged meanwhile has entries of its own.
        let mut asks = Vec::new();
        let mut counts = Vec::new();
        for id in of {
            let buckets = layouts.of(*id);
            counts.push((*id, buckets.len() + 1));
            asks.push(Operation::GetAttributes(Inode { id: *id }));
            asks.extend(buckets.iter().map(|id| Operation::GetAttributes(Inode { id: *id })));
        }
        self.state = State::Sums { answer, of: counts };
        Next::Ask(asks)
    }

    fn summed(&mut self, mut answer: Answer, of: Vec<(InodeId, usize)>, answers: &[Answer]) -> Next {
        let mut rest = answers;
        let mut sums = BTreeMap::new();
        let mut stale = false;
        for (id, count) in &of {
            let (parts, others) = rest.split_at((*count).min(rest.len()));
            rest = others;
            if !matches!(parts.first(), Some(Answer::Found(_))) {
                // It was removed meanwhile.
                continue;
            }
            let seen: Vec<&Attributes> = parts
                .iter()
                .filter_map(|part| match part {
                    Answer::Found(found) => Some(&found.attributes),
                    _ => None,
                })
                .collect();
            let is_split = seen.first().is_some_and(|own| own.place.is_some());
            stale |= seen.len() != *count || is_split != (*count > 1);
            if let Some((own, buckets)) = seen.split_first() {
                sums.insert(*id, total(own, buckets));
            }
        }
        if stale && self.rounds < ROUNDS_MAX {
            let of: Vec<InodeId> = of.into_iter().map(|(id, _)| id).collect();
            let asks = of.iter().map(|id| Operation::Buckets(Inode { id: *id })).collect();
            self.state = State::Layouts { answer, of };
            return Next::Ask(asks);
        }
        for attributes in attributes_in(&mut answer) {
            if attributes.kind == Kind::Directory && attributes.place.take().is_some() {
                match sums.remove(&attributes.id) {
                    Some(sum) => *attributes = sum,
                    None => attributes.bytes = 0,
                }
            }
        }
        Next::Done(answer)
    }
}

/// A directory's attributes with its buckets'.
fn total(own: &Attributes, buckets: &[&Attributes]) -> Attributes {
    let mut total = Attributes { place: None, ..own.clone() };
    for bucket in buckets {
        total.bytes += bucket.bytes;
        total.links = total.links.saturating_add(bucket.links.saturating_sub(2));
        total.version = total.version.wrapping_add(bucket.version);
        total.modified_ns = total.modified_ns.max(bucket.modified_ns);
        total.changed_ns = total.changed_ns.max(bucket.changed_ns);
    }
    total
}

/// The attributes in an answer.
fn attributes_in(answer: &mut Answer) -> Vec<&mut Attributes> {
    match answer {
        Answer::Entry(Entry { attributes: Some(attributes), .. }) => vec![attributes],
        Answer::Found(found) => vec![&mut found.attributes],
        Answer::Grant(grant) => vec![&mut grant.attributes],
        Answer::Many(many) => many.attributes.iter_mut().flatten().collect(),
        Answer::Listing(listing) => {
            listing.entries.iter_mut().filter_map(|listed| listed.entry.attributes.as_mut()).collect()
        }
        _ => Vec::new(),
    }
}
