//! Locks, against one cell for each byte.

use super::semantics::{Bed, ROOT};
use super::world::Random;
use crate::operation::*;
use crate::{Incarnation, NodeNo};
use std::collections::BTreeMap;

use super::super::Event;

/// Owners are a node and a number there.
type Owner = (u32, u64);

const BYTES: u64 = 24;

fn lock(bed: &mut Bed, id: crate::InodeId, owner: Owner, range: (u64, u64), wanted: LockWanted) -> Answer {
    bed.node = NodeNo(owner.0);
    let (start, end) = range;
    bed.ask(Operation::Lock(Lock { id, owner: owner.1, pid: 9, whole: false, start, end, wanted }))
}

#[test]
fn record_locks_are_as_one_cell_for_each_byte() {
    let mut bed = Bed::new();
    let id = bed.file(ROOT, "f", 0o666);
    let mut cells: Vec<BTreeMap<Owner, bool>> = vec![BTreeMap::new(); BYTES as usize];
    let mut random = Random(3);
    for round in 0..4000 {
        if random.one_in(400) {
            // A node dies: its locks go.
            let node = NodeNo(1 + random.below(2) as u32);
            bed.step(Event::NodeGone { node, incarnation: Incarnation(bed.life) });
            bed.life += 1;
            cells.iter_mut().for_each(|cell| cell.retain(|owner, _| owner.0 != node.0));
            // The other one comes back too, so that both have the new life.
            let other = NodeNo(3 - node.0);
            bed.step(Event::NodeGone { node: other, incarnation: Incarnation(bed.life - 1) });
            cells.iter_mut().for_each(BTreeMap::clear);
        }
        let owner = (1 + random.below(2) as u32, 1 + random.below(2) as u64);
        let start = random.below(BYTES as usize) as u64;
        let end = start + random.below((BYTES - start) as usize) as u64;
        use LockWanted::{Exclusive, Shared, TestExclusive, TestShared, Unlock};
        let wanted = [Unlock, Shared, Shared, Exclusive, TestShared, TestExclusive][random.below(6)];
        let exclusive = matches!(wanted, Exclusive | TestExclusive);
        let range = start as usize..=end as usize;
        let blocked = wanted != Unlock
            && cells[range.clone()]
                .iter()
                .any(|cell| cell.iter().any(|(of, other)| *of != owner && (exclusive || *other)));
        let answer = lock(&mut bed, id, owner, (start, end), wanted);
        assert_eq!(matches!(answer, Answer::Blocking(_)), blocked, "round {round}: {answer:?}");
        if let Answer::Blocking(blocking) = answer {
            let cell = &cells[blocking.start.max(start) as usize];
            let named =
                cell.iter().any(|(of, other)| of.0 == blocking.node.0 && *other == blocking.exclusive);
            assert!(named, "round {round}: {blocking:?}");
        } else if !matches!(wanted, TestShared | TestExclusive) {
            assert_eq!(answer, Answer::Done, "round {round}");
            for cell in &mut cells[range] {
                if wanted == Unlock {
                    cell.remove(&owner);
                } else {
                    cell.insert(owner, exclusive);
                }
            }
        }
        assert_eq!(bed.lock_rows(id), runs(&cells), "round {round}");
    }
}

/// How many ranges of equal cells the owners have: neighbours are one lock.
fn runs(cells: &[BTreeMap<Owner, bool>]) -> usize {
    let owners = [(1, 1), (1, 2), (2, 1), (2, 2)];
    let begins = |owner: &Owner, at: usize| {
        let here = cells[at].get(owner);
        here.is_some() && (at == 0 || cells[at - 1].get(owner) != here)
    };
    owners.iter().map(|owner| (0..cells.len()).filter(|at| begins(owner, *at)).count()).sum()
}

#[test]
fn flock_and_record_locks_do_not_see_each_other() {
    let mut bed = Bed::new();
    let id = bed.file(ROOT, "f", 0o600);
    let whole =
        |owner, wanted| Operation::Lock(Lock { id, owner, pid: 1, whole: true, start: 5, end: 6, wanted });
    bed.done(whole(1, LockWanted::Exclusive));
    assert_eq!(lock(&mut bed, id, (1, 2), (0, u64::MAX), LockWanted::Exclusive), Answer::Done);
    let Answer::Blocking(blocking) = bed.ask(whole(2, LockWanted::Shared)) else { panic!("no conflict") };
    assert_eq!((blocking.start, blocking.end, blocking.exclusive), (0, u64::MAX, true));
    bed.done(whole(1, LockWanted::Shared));
    bed.done(whole(2, LockWanted::Shared));
    assert!(matches!(bed.ask(whole(1, LockWanted::Exclusive)), Answer::Blocking(_)));
    bed.done(whole(2, LockWanted::Unlock));
    bed.done(whole(1, LockWanted::Exclusive));
    // Who may not open the file does not lock it.
    bed.as_user(7, 7, &[]).refused(whole(3, LockWanted::TestShared), crate::Errno::EACCES);
}
