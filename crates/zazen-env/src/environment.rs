//! What a core gets from the machine besides disks: time and new identities.

use crate::clock::{Clock, RealClock};
use crate::random::{Identities, KernelIdentities, SeededIdentities};
use std::sync::Arc;

/// A clock and a source of identities. Copies share both.
#[derive(Clone)]
pub struct Environment {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// New identities.
    pub identities: Arc<dyn Identities>,
}

impl Environment {
    /// The machine's.
    pub fn real() -> Environment {
        Environment { clock: Arc::new(RealClock::default()), identities: Arc::new(KernelIdentities) }
    }

    /// An environment that `clock` and `seed` determine.
    pub fn simulated(clock: Arc<dyn Clock>, seed: u64) -> Environment {
        Environment { clock, identities: Arc::new(SeededIdentities::new(seed)) }
    }
}
