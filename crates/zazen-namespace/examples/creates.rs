//! How fast one partition executes, and how much memory a file takes.
//!
//! ```text
//! cargo run --release -p zazen-namespace --example creates [FILES]
//! ```
//!
//! Prints CPU-nanoseconds for an operation of `Partition::step` and of `Partition::apply`, bytes of
//! records for a create, and bytes of memory for a file in one directory. No network and no disk.
#![allow(clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use zazen_core::Credentials;
use zazen_namespace::operation::*;
use zazen_namespace::partition::{Action, Event, Partition, Settings};
use zazen_namespace::{Epoch, Incarnation, InodeId, Name, NodeNo, PartitionNo};

/// Counts the bytes that are allocated, as the allocator rounds them.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

fn rounded(layout: Layout) -> usize {
    // glibc: 8 bytes before each block, multiples of 16, at least 32.
    (layout.size() + 8).next_multiple_of(16).max(32)
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(rounded(layout), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(rounded(layout), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// CPU time of this process so far.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds on a CPU")
}

fn request(number: u64, operation: Operation) -> Event {
    let request = Request {
        client: 1,
        number,
        oldest: number.saturating_sub(64),
        node: NodeNo(1),
        incarnation: Incarnation(1),
        epoch: Epoch(1),
        credentials: Credentials { uid: 1000, gid: 1000, groups: vec![] },
        operation,
        place: None,
        knows_chunks: Some(true),
    };
    Event::Request { token: number, request }
}

fn name(prefix: &str, number: u64) -> Name {
    Name::new(format!("{prefix}{number:08}.vtu").as_bytes()).expect("a name")
}

fn create(prefix: &str, number: u64) -> Operation {
    Operation::Create(Create::file(InodeId::ROOT, name(prefix, number)))
}

struct Bed {
    partition: Partition,
    backup: Partition,
    number: u64,
}

impl Bed {
    /// Executes operations; prints nanoseconds for each of `each` that an operation counts.
    fn run(&mut self, what: &str, each: u64, operations: Vec<Operation>) {
        let count = operations.len() as u64 * each;
        let events: Vec<_> = operations
            .into_iter()
            .map(|operation| {
                self.number += 1;
                request(self.number, operation)
            })
            .collect();
        let (mut actions, mut records) = (Vec::new(), Vec::new());
        let begin = cpu_ns();

        for event in events {
            self.partition.step(1, event, &mut actions);
            if actions.len() > 1000 {
                records.extend(actions.drain(..).filter_map(|action| match action {
                    Action::Log(record) => Some(record),
                    _ => None,
                }));
            }
        }
        let spent = cpu_ns() - begin;
        records.extend(actions.into_iter().filter_map(|action| match action {
            Action::Log(record) => Some(record),
            _ => None,
        }));
        let bytes: usize = records.iter().map(Vec::len).sum();
        let begin = cpu_ns();
        for record in &records {
            self.backup.apply(record).expect("applies");
        }
        let applied = cpu_ns() - begin;
        println!(
            "{what}: step {} ns, apply {} ns, record {} bytes",
            spent / count,
            applied / count,
            bytes as u64 / count
        );
    }
}

fn main() {
    let files: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let settings = Settings { root_mode: 0o777, ..Settings::default() };
    let new = || Partition::new(PartitionNo(0), settings.clone());
    let mut bed = Bed { partition: new(), backup: new(), number: 0 };
    let before = BYTES.load(Ordering::Relaxed);
    bed.run("create", 1, (0..files).map(|number| create("a", number)).collect());
    // The backup has the same tables.
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    println!("memory for a file: {} bytes", bytes as u64 / files / 2);
    let many = |batch| {
        let names = (0..64).map(|at| name("b", batch * 64 + at)).collect();
        Operation::CreateMany(CreateMany {
            directory: InodeId::ROOT,
            names,
            mode: 0o644,
            copies: 0,
            archived: None,
            chunk_mib: None,
        })
    };
    bed.run("create_many(64), each", 64, (0..files / 64).map(many).collect());
    let at = |number| At { directory: InodeId::ROOT, name: name("a", number) };
    bed.run("lookup", 1, (0..files).map(|number| Operation::Lookup(at(number))).collect());
    bed.run("unlink", 1, (0..files).map(|number| Operation::Unlink(at(number))).collect());
}
