//! What must not happen twice: names of objects, and answers.

use super::super::{Action, Event, Partition, Settings};
use super::semantics::{Bed, ROOT, WRITE, name, new_file};
use crate::operation::*;
use crate::{Epoch, Errno, PartitionNo};

#[test]
fn a_new_file_never_has_the_name_of_an_old_object() {
    let settings = Settings { root_mode: 0o777, ..Settings::default() };
    let create = || Create { open: Some(WRITE), ..new_file(ROOT, "f", 0o644) };
    // Each primary begins without the record of the one before: the end of the log was lost.
    let mut names = Vec::new();
    for epoch in [3, 5] {
        let (mut primary, mut actions) = (Partition::new(PartitionNo(0), settings.clone()), Vec::new());
        primary.step(1, Event::Resumed { epoch: Epoch(epoch) }, &mut actions);
        let bed = Bed::new();
        primary.step(2, bed.request(1, Operation::Create(create())), &mut actions);
        let grant = |actions: &[Action]| {
            let granted = actions.iter().rev().find_map(|action| match action {
                Action::Reply { response, .. } => match &response.answer {
                    Answer::Grant(grant) => {
                        grant.attributes.place.clone().map(|to| (grant.attributes.id, to.generation))
                    }
                    _ => None,
                },
                _ => None,
            });
            granted.expect("a grant with a place")
        };
        let (id, first) = grant(&actions);
        names.push((id, first));
        primary.step(
            3,
            bed.request(2, Operation::Release(Release { id, readers: 0, writers: 1, commit: None })),
            &mut actions,
        );
        let rewrite = Open { id, mode: Mode { truncate: true, ..WRITE } };
        primary.step(4, bed.request(3, Operation::Open(rewrite)), &mut actions);
        assert!(grant(&actions).1 > first);
        names.push(grant(&actions));
    }
    assert_eq!(names[0].0, names[2].0, "the serial number is given again");
    let different: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "{names:?}");
}

#[test]
fn a_change_whose_inode_is_gone_since_is_not_asked_for_again() {
    let mut bed = Bed::new();
    let create = || Operation::Create(Create { open: Some(WRITE), ..new_file(ROOT, "f", 0o644) });
    let Answer::Grant(Grant { attributes, .. }) = bed.ask(create()) else { panic!("no grant") };
    let (id, made) = (attributes.id, bed.number);
    let change = || Operation::SetAttributes(SetAttributes { mode: Some(0o600), ..SetAttributes::of(id) });
    assert!(matches!(bed.ask(change()), Answer::Found(_)));
    let changed = bed.number;
    bed.done(Operation::Release(Release { id, writers: 1, readers: 0, commit: None }));
    bed.done(Operation::Unlink(At { directory: ROOT, name: name("f") }));
    // ESTALE would have a kernel look up the path again, and make another file, or change it.
    for (number, operation) in [(made, create()), (changed, change())] {
        let again = bed.request(number, operation);
        assert_eq!(bed.step(again), Some(Answer::refused(Errno::EIO)), "{number}");
    }
}

#[test]
fn a_lock_that_is_not_given_leaves_no_record() {
    let mut bed = Bed::new();
    let id = bed.file(ROOT, "f", 0o600);
    let lock =
        |owner, wanted| Operation::Lock(Lock { id, owner, pid: 1, whole: false, start: 0, end: 9, wanted });
    bed.done(lock(1, LockWanted::Exclusive));
    let records = bed.records.len();
    for _ in 0..10 {
        assert!(matches!(bed.ask(lock(2, LockWanted::Exclusive)), Answer::Blocking(_)));
    }
    assert_eq!(bed.records.len(), records, "nothing was changed");
    // An old copy of the refused request gets its first answer, although the lock is free now.
    let (number, node) = (bed.number, bed.node);
    bed.done(lock(1, LockWanted::Unlock));
    bed.node = node;
    let copy = bed.request(number, lock(2, LockWanted::Exclusive));
    assert!(matches!(bed.step(copy), Some(Answer::Blocking(_))));
    assert_eq!(bed.lock_rows(id), 0);
}

#[test]
fn a_clock_that_jumps_forgets_no_answer() {
    let mut bed = Bed::new();
    let make = || Operation::MakeDirectory(MakeDirectory { directory: ROOT, name: name("d"), mode: 0o755 });
    let first = bed.ask(make());
    let number = bed.number;
    for jump in [1 << 60, -(1 << 60), 1 << 60] {
        bed.step(Event::Tick);
        bed.now_ns += jump;
        bed.step(Event::Tick);
        let again = bed.request(number, make());
        let answer = bed.step(again);
        assert!(matches!((&answer, &first), (Some(Answer::Entry(_)), Answer::Entry(_))), "{answer:?}");
    }
    // After a long silence that ticks have measured, the row goes.
    let idle_ns = bed.partition.settings().client_idle_ns;
    for _ in 0..20 {
        bed.now_ns += idle_ns / 8;
        bed.step(Event::Tick);
    }
    assert_eq!(bed.partition.tables.clients.len(), 0);
}

#[test]
fn requests_of_a_client_that_wait_are_bounded() {
    let settings = Settings { partitions: 3, root_mode: 0o777, ..Settings::default() };
    let (mut primary, mut actions) = (Partition::new(PartitionNo(0), settings), Vec::new());
    let bed = Bed::new();
    // Names that the partition's own transactions hold, because another partition does not answer.
    let make = |number: u64| {
        let make = MakeDirectory { directory: ROOT, name: name(&format!("d{number}")), mode: 0o755 };
        bed.request(number, Operation::MakeDirectory(make))
    };
    (1..=20).for_each(|number| primary.step(1, make(number), &mut actions));
    let (directory, held) = primary.tables.held.keys().next().cloned().expect("a name is held");
    let held = std::str::from_utf8(&held).expect("text");
    assert_eq!(directory, ROOT.0);
    let most = super::super::machine::WAITS_MAX as u64;
    let mut refused = 0;
    for number in 100..100 + most + 7 {
        actions.clear();
        let create = Operation::Create(new_file(ROOT, held, 0o644));
        primary.step(2, bed.request(number, create), &mut actions);
        let replies = actions.iter().filter(|action| matches!(action, Action::Reply { .. }));
        refused += replies.count();
    }
    assert_eq!(refused, 7);
    let busy = Answer::refused(crate::Errno::EAGAIN);
    assert!(matches!(actions.last(), Some(Action::Reply { response, .. }) if response.answer == busy));
}
