//! Looks of one call at the directories above what it names, and how long they may take together.
//!
//! A call names up to 1,024 directories, and each look at a primary that does not answer takes as
//! long as an operation may take. So the looks of a call share one patience, and a partition that
//! did not answer is not asked again by the same call.

use crate::node::NamespaceNode;
use crate::route::{PATIENCE, root};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use zazen_namespace::operation::{Answer, Operation};
use zazen_namespace::{Errno, PartitionNo};

/// A partition that was not asked yet may take at least so long, also when the patience is used up.
const LEAST: Duration = Duration::from_millis(500);

/// How long the looks of a call may still take, and who has not answered.
pub(crate) struct Looks {
    left: Duration,
    silent: BTreeSet<PartitionNo>,
}

impl Looks {
    /// For one call.
    pub(crate) fn new() -> Looks {
        Looks { left: PATIENCE, silent: BTreeSet::new() }
    }

    /// How long a look at this partition may take; `None`: it did not answer before.
    fn patience(&self, partition: PartitionNo) -> Option<Duration> {
        (!self.silent.contains(&partition)).then(|| self.left.max(LEAST))
    }

    /// A look at this partition took so long, and was answered or not.
    fn took(&mut self, partition: PartitionNo, time: Duration, answered: bool) {
        self.left = self.left.saturating_sub(time);
        if !answered {
            self.silent.insert(partition);
        }
    }
}

impl NamespaceNode {
    /// Asks for a look, as root.
    pub(crate) fn look(&self, looks: &mut Looks, operation: Operation) -> Result<Answer, Errno> {
        let partition = operation.partition();
        let patience = looks.patience(partition).ok_or(Errno::ETIMEDOUT)?;
        let begun = Instant::now();
        let answer = self.route_one_until(root(), operation, begun + patience);
        looks.took(partition, begun.elapsed(), answer != Err(Errno::ETIMEDOUT));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_looks_of_a_call_wait_together_no_longer_than_one_operation() {
        let (mut looks, mut waited) = (Looks::new(), Duration::ZERO);
        // Nobody answers: a thousand looks at sixteen partitions.
        for number in 0..1024 {
            let partition = PartitionNo(number % 16);
            if let Some(patience) = looks.patience(partition) {
                waited += patience;
                looks.took(partition, patience, false);
            }
        }
        assert_eq!(waited, PATIENCE + LEAST * 15);
        // One that answers is asked as often as it is needed.
        let alive = PartitionNo(99);
        for _ in 0..10 {
            assert_eq!(looks.patience(alive), Some(LEAST));
            looks.took(alive, Duration::from_millis(1), true);
        }
        assert_eq!(Looks::new().patience(alive), Some(PATIENCE));
    }
}
