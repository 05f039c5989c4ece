//! Planted bugs: each is found by the simulation, or by two operations at once.

use super::super::mutant::Mutant;
use super::interleave::all;
use super::simulate::Simulation;
use super::world::ALL_FAULTS;

/// Of the simulation, for each planted bug.
const SEEDS_MAX: u64 = 16;

/// A seed that finds the planted bug, and how; the same seed finds nothing without it.
/// Seed 0 stands for two operations at once in all orders.
fn found(bug: Mutant) -> Option<(u64, String)> {
    let of_splits = matches!(bug, Mutant::IgnoresFreeze | Mutant::DropsFullBuckets | Mutant::ForgetsRights);
    let of_chunks = matches!(bug, Mutant::CutsLess | Mutant::CutsOpenChunks | Mutant::AppendsOverlap);
    let run = |seed, bug| {
        let run = || match (of_splits, of_chunks) {
            (true, _) => Simulation::splitting(3, seed, ALL_FAULTS, bug).run(500),
            (_, true) => Simulation::chunking(3, seed, ALL_FAULTS, bug).run(500),
            _ => Simulation::new(3, seed, ALL_FAULTS, bug).run(600),
        };
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).err()?;
        Some(panic.downcast::<String>().map_or_else(|_| "a panic".into(), |text| *text))
    };
    let at_once = || {
        let all = || all(Some(bug), 200);
        let is_found = std::panic::catch_unwind(all).is_err();
        is_found.then(|| (0, "two operations at once".into()))
    };
    // Where it was found last it is looked for first: most of this test's time would go into seeds
    // that do not find it.
    let by_operations = [Mutant::RemovesWhileHeld, Mutant::MovesWithoutLock, Mutant::HoldsInAnyOrder];
    let by_operations = by_operations.contains(&bug);
    if by_operations && let Some(found) = at_once() {
        return Some(found);
    }
    let first = if bug == Mutant::IgnoresFreeze { 11 } else { 1 };
    let mut seeds = (first..=SEEDS_MAX).chain(1..first);
    let Some((seed, how)) = seeds.find_map(|seed| Some((seed, run(seed, Some(bug))?))) else {
        return if by_operations { None } else { at_once() };
    };
    assert_eq!(run(seed, None), None, "seed {seed} fails without {bug:?} too");
    Some((seed, how.chars().take(60).collect()))
}

#[test]
fn planted_bugs_are_found() {
    // Each panic is what is looked for: none is printed.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let seeds: Vec<_> = Mutant::ALL.iter().map(|bug| (bug, found(*bug))).collect();
    std::panic::set_hook(hook);
    println!("{seeds:#?}");
    let missed: Vec<_> = seeds.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
