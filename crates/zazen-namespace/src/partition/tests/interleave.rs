//! Two operations at once, in every order in which their messages can arrive; and late copies of
//! all their messages.

use super::super::mutant::Mutant;
use super::simulate::{Simulation, times};
use super::world::{Flight, NO_FAULTS};
use crate::operation::*;
use crate::{InodeId, Kind, Name, PartitionNo};
use std::collections::BTreeMap;
use zazen_core::Credentials;

/// So many orders of one scenario are tried, times `ZAZEN_NAMESPACE_TIMES`.
const ORDERS_MAX: usize = 400;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn at(directory: InodeId, text: &str) -> At {
    At { directory, name: name(text) }
}

fn create(directory: InodeId, text: &str) -> Operation {
    let (kind, device, target) = (Kind::File, 0, Vec::new());
    let name = name(text);
    Operation::Create(Create { kind, mode: 0o777, device, target, ..Create::file(directory, name) })
}

fn mkdir(directory: InodeId, text: &str) -> Operation {
    Operation::MakeDirectory(MakeDirectory { directory, name: name(text), mode: 0o777 })
}

fn rename(from: (InodeId, &str), to: (InodeId, &str)) -> Operation {
    Operation::Rename(Rename {
        directory: from.0,
        name: name(from.1),
        new_directory: to.0,
        new_name: name(to.1),
        no_replace: false,
        exchange: false,
    })
}

fn exchange(from: (InodeId, &str), to: (InodeId, &str)) -> Operation {
    match rename(from, to) {
        Operation::Rename(rename) => Operation::Rename(Rename { exchange: true, ..rename }),
        other => other,
    }
}

fn unlink(directory: InodeId, text: &str) -> Operation {
    Operation::Unlink(at(directory, text))
}

fn rmdir(directory: InodeId, text: &str) -> Operation {
    Operation::RemoveDirectory(at(directory, text))
}

fn link(id: InodeId, directory: InodeId, text: &str) -> Operation {
    Operation::Link(Link { id, directory, name: name(text) })
}

/// Directories `a` (partition 1) and `b` (partition 2) in the root (partition 0), a file `a/f`, a
/// file `b/g`, and directories `a/v` and `b/w`, which are empty and elsewhere than their parents.
struct Tree {
    a: InodeId,
    b: InodeId,
    f: InodeId,
    v: InodeId,
    w: InodeId,
}

const ROOT: InodeId = InodeId::ROOT;

/// Makes a directory that lies in the partition.
fn directory_in(bed: &mut Simulation, partition: u32, home: InodeId, text: &str) -> InodeId {
    for number in 0.. {
        let tried = format!("try{number}");
        let Answer::Entry(entry) = bed.do_alone(mkdir(home, &tried)) else { panic!("no directory") };
        if entry.id.partition() == PartitionNo(partition) {
            bed.do_alone(rename((home, &tried), (home, text)));
            return entry.id;
        }
        bed.do_alone(rmdir(home, &tried));
    }
    unreachable!()
}

fn plant(bed: &mut Simulation) -> Tree {
    let (a, b) = (directory_in(bed, 1, ROOT, "a"), directory_in(bed, 2, ROOT, "b"));
    let Answer::Entry(f) = bed.do_alone(create(a, "f")) else { panic!("no file") };
    bed.do_alone(create(b, "g"));
    let (v, w) = (directory_in(bed, 2, a, "v"), directory_in(bed, 1, b, "w"));
    Tree { a, b, f: f.id, v, w }
}

fn scenarios(tree: &Tree) -> Vec<(&'static str, [Operation; 2])> {
    let Tree { a, b, f, v, w } = *tree;
    vec![
        ("create, rmdir", [create(v, "x"), rmdir(a, "v")]),
        ("mkdir, rmdir", [mkdir(v, "x"), rmdir(a, "v")]),
        ("mkdir, rmdir again", [mkdir(v, "some"), rmdir(a, "v")]),
        ("link, rmdir", [link(f, v, "x"), rmdir(a, "v")]),
        ("rename into, rmdir", [rename((a, "f"), (v, "x")), rmdir(a, "v")]),
        ("mkdir, replaced", [mkdir(v, "x"), rename((b, "w"), (a, "v"))]),
        ("create, replaced", [create(v, "x"), rename((b, "w"), (a, "v"))]),
        ("circle", [rename((ROOT, "a"), (b, "x")), rename((ROOT, "b"), (a, "x"))]),
        ("deep circle", [rename((a, "v"), (w, "x")), rename((b, "w"), (v, "x"))]),
        ("there and back", [rename((a, "f"), (b, "g")), rename((b, "g"), (a, "f"))]),
        ("there and back, directories", [rename((a, "v"), (b, "w")), rename((b, "w"), (a, "v"))]),
        ("exchange twice", [exchange((a, "f"), (b, "w")), exchange((b, "w"), (a, "f"))]),
        ("exchange, rename", [exchange((a, "v"), (b, "g")), rename((a, "f"), (b, "g"))]),
        ("link, unlink", [link(f, b, "x"), unlink(a, "f")]),
        ("link, link", [link(f, b, "x"), link(f, b, "y")]),
        ("rename, unlink", [rename((a, "f"), (b, "x")), unlink(a, "f")]),
        ("rename, unlink of the replaced", [rename((a, "f"), (b, "g")), unlink(b, "g")]),
        ("rename, create", [rename((a, "f"), (b, "x")), create(b, "x")]),
        ("rename twice", [rename((a, "f"), (b, "x")), rename((a, "f"), (ROOT, "y"))]),
        ("rename, lookup", [rename((a, "f"), (b, "x")), Operation::Lookup(at(a, "f"))]),
        ("rmdir, lookup", [rmdir(a, "v"), Operation::Lookup(at(a, "v"))]),
        ("rmdir twice", [rmdir(a, "v"), rmdir(a, "v")]),
        ("rmdir, rename", [rmdir(a, "v"), rename((a, "v"), (b, "x"))]),
        ("mkdir twice", [mkdir(a, "x"), mkdir(a, "x")]),
    ]
}

/// Executes two operations, in the order of arrival that `choices` say, and adds to them.
fn run(scenario: usize, choices: &mut Vec<(usize, usize)>, late: bool, bug: Option<Mutant>) -> &'static str {
    let mut bed = Simulation::new(3, 1, NO_FAULTS, bug);
    let tree = plant(&mut bed);
    let (what, operations) = scenarios(&tree).swap_remove(scenario);
    let root = Credentials { uid: 0, gid: 0, groups: vec![] };
    bed.world.flights.clear();
    let asked = operations.into_iter().enumerate();
    let asked: Vec<_> = asked.map(|(at, operation)| bed.ask(at, root.clone(), operation)).collect();
    let (mut answers, mut copies, mut depth, mut ticks) = (BTreeMap::new(), Vec::new(), 0, 0);
    while answers.len() < 2 || !bed.world.flights.is_empty() {
        let options = bed.world.flights.len();
        if options == 0 {
            ticks += 1;
            assert!(ticks < 30, "{what}: no answer in order {choices:?}; answered: {answers:?}");
            bed.world.happen();
            continue;
        }
        if depth == choices.len() {
            choices.push((0, options));
        }
        let flight = bed.world.flights.remove(choices[depth].0);
        depth += 1;
        copies.push(flight.clone());
        if let Some((client, response)) = bed.world.deliver(flight) {
            answers.insert(client, response.answer);
        }
    }
    let answers: Vec<_> = asked.iter().map(|(_, request)| answers[&request.client].clone()).collect();
    bed.judge(&asked, &answers);
    if late {
        late_copies(&mut bed, &tree, copies, what);
    }
    what
}

/// Transactions that come later let the partitions forget the first ones. Then copies of all
/// messages arrive once more, and change nothing.
fn late_copies(bed: &mut Simulation, tree: &Tree, copies: Vec<Flight>, what: &str) {
    for number in 0..12 {
        for home in [ROOT, tree.a, tree.b] {
            bed.do_alone(mkdir(home, &format!("later{number}")));
        }
    }
    let before = bed.world.tree();
    for flight in copies.iter().rev().chain(&copies) {
        if matches!(flight, Flight::Peer(..)) {
            bed.world.deliver(flight.clone());
            while let Some(flight) = bed.world.flights.pop() {
                bed.world.deliver(flight);
            }
        }
    }
    assert_eq!(bed.world.tree(), before, "{what}: late copies change something");
    assert!(bed.world.is_quiet(), "{what}: late copies hold something");
}

/// Every scenario in every order; how many orders there were.
pub(super) fn all(bug: Option<Mutant>, orders_max: usize) -> usize {
    let count = {
        let mut bed = Simulation::new(3, 1, NO_FAULTS, None);
        let tree = plant(&mut bed);
        scenarios(&tree).len()
    };
    let mut orders_of_all = 0;
    for scenario in 0..count {
        let (mut choices, mut orders) = (Vec::new(), 0);
        loop {
            let what = run(scenario, &mut choices, orders % 50 == 0, bug);
            orders += 1;
            while choices.last().is_some_and(|(chosen, options)| chosen + 1 == *options) {
                choices.pop();
            }
            let Some((chosen, _)) = choices.last_mut() else {
                println!("{what}: {orders} orders");
                break;
            };
            *chosen += 1;
            if orders == orders_max {
                println!("{what}: the first {orders} orders");
                break;
            }
        }
        orders_of_all += orders;
    }
    orders_of_all
}

#[test]
fn two_operations_at_once_are_one_after_the_other_in_every_order_of_messages() {
    println!("{} orders", all(None, ORDERS_MAX * times() as usize));
}

#[test]
fn files_are_made_opened_shown_and_removed_by_one_partition_alone() {
    let mut bed = Simulation::new(16, 1, NO_FAULTS, None);
    let home = directory_in(&mut bed, 7, ROOT, "home");
    let (sent, records) = (bed.world.sent, bed.world.records);
    let Answer::Entry(file) = bed.do_alone(create(home, "f")) else { panic!("no file") };
    let mode = Mode { read: true, write: true, truncate: false };
    bed.do_alone(Operation::Open(Open { id: file.id, mode }));
    bed.do_alone(Operation::GetAttributes(Inode { id: file.id }));
    bed.do_alone(Operation::Lookup(at(home, "f")));
    bed.do_alone(Operation::Release(Release { id: file.id, writers: 1, readers: 0, commit: None }));
    bed.do_alone(rename((home, "f"), (home, "g")));
    bed.do_alone(unlink(home, "g"));
    assert_eq!(bed.world.sent - sent, 0, "messages between partitions");
    assert_eq!(bed.world.records - records, 5, "one record for each of the five that change something");
}

/// A file is linked while its only other name is removed. Who saw that name go waits for the new
/// one.
#[test]
fn a_file_that_is_being_linked_is_never_seen_without_a_name() {
    let mut bed = Simulation::new(3, 1, NO_FAULTS, None);
    let Tree { a, b, f, .. } = plant(&mut bed);
    let root = Credentials { uid: 0, gid: 0, groups: vec![] };
    bed.world.flights.clear();
    bed.ask(0, root.clone(), link(f, b, "x"));
    // To the name's partition, and on to the file's, whose answer stays on its way.
    for _ in 0..2 {
        let flight = bed.world.flights.remove(0);
        assert_eq!(bed.world.deliver(flight).map(|(_, response)| response.answer), None);
    }
    let on_its_way = std::mem::take(&mut bed.world.flights);
    assert!(!on_its_way.is_empty());
    let answers = |bed: &mut Simulation| {
        let mut found = Vec::new();
        while !bed.world.flights.is_empty() {
            let flight = bed.world.flights.remove(0);
            found.extend(bed.world.deliver(flight).map(|(_, response)| response.answer));
        }
        found
    };
    bed.ask(1, root.clone(), unlink(a, "f"));
    assert_eq!(answers(&mut bed), [Answer::Done]);
    bed.ask(2, root, Operation::Lookup(at(b, "x")));
    assert_eq!(answers(&mut bed), [], "the name is neither there nor missing yet");
    bed.world.flights = on_its_way;
    let found = answers(&mut bed);
    let linked = |answer: &Answer| matches!(answer, Answer::Entry(entry) if entry.id == f);
    assert!(found.len() == 2 && found.iter().all(linked), "{found:?}");
}
