//! What the writer believes of one node: usable, resting after a failure, or being tried again.
//!
//! Invariant: a resting node gets no frame before its pause is over. Then it gets one frame, and no
//! other until the outcome of that frame is known. Outcomes of frames that were sent before the
//! node's last change of state are ignored.

/// SplitMix64: small, seedable, equal on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0 .. `below`, or 0 where that is empty.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(below)) >> 64) as u64
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Usable,
    /// Gets no frame until then.
    Resting { until_ns: u64, dead: bool },
    /// The pause is over, and one frame is in flight to test the node.
    Trying { dead: bool },
}

/// One node as the writer sees it. The default is a node that nothing is known of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    state: State,
    /// The pause after the next failure; 0: the shortest.
    pause_ns: u64,
    /// Counts changes of state, to recognise old outcomes.
    era: u64,
}

impl Node {
    /// Whether it works, so that it differs from the default by its era only.
    pub(crate) fn is_well(&self) -> bool {
        self.state == State::Usable
    }

    pub(crate) fn rests_until(&self) -> Option<u64> {
        match self.state {
            State::Resting { until_ns, .. } => Some(until_ns),
            State::Usable | State::Trying { .. } => None,
        }
    }

    pub(crate) fn usable(&self, now_ns: u64) -> bool {
        match self.state {
            State::Usable => true,
            State::Resting { until_ns, .. } => until_ns <= now_ns,
            State::Trying { .. } => false,
        }
    }

    pub(crate) fn dead(&self) -> bool {
        matches!(self.state, State::Resting { dead: true, .. } | State::Trying { dead: true })
    }

    /// A frame goes to this node. The caller has checked [`Node::usable`]. Returns the era of the
    /// sending.
    pub(crate) fn sending(&mut self) -> u64 {
        if let State::Resting { dead, .. } = self.state {
            self.state = State::Trying { dead };
            self.era += 1;
        }
        self.era
    }

    /// An outcome of a frame sent in `era` shows that the node works.
    pub(crate) fn works(&mut self, era: u64) {
        if era == self.era {
            if self.state != State::Usable {
                self.era += 1;
            }
            self.state = State::Usable;
            self.pause_ns = 0;
        }
    }

    /// An outcome of a frame sent in `era` shows that the node is dead or full, so the node rests.
    /// Returns whether that is news.
    pub(crate) fn fails(
        &mut self,
        era: u64,
        dead: bool,
        now_ns: u64,
        (min_ns, max_ns): (u64, u64),
        random: &mut Random,
    ) -> bool {
        if era != self.era {
            return false;
        }
        let max_ns = max_ns.max(min_ns);
        let pause = self.pause_ns.clamp(min_ns, max_ns);
        self.pause_ns = pause.saturating_mul(2).min(max_ns);
        // Add up to a quarter, so that many writers do not return to a revived node at the same
        // moment.
        let pause = pause.saturating_add(random.below(pause / 4 + 1)).min(max_ns);
        let until_ns = now_ns.saturating_add(pause);
        self.state = State::Resting { until_ns, dead };
        self.era += 1;
        true
    }
}
