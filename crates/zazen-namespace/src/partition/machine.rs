//! The partition as its driver sees it.

use super::event::{Action, Event};
use super::settings::Settings;
use crate::operation::{Answer, Response};
use crate::{Errno, PartitionNo};
use zazen_core::Result;

/// One partition of the namespace. See the [module](super).
pub struct Partition {
    number: PartitionNo,
    settings: Settings,
}

impl Partition {
    /// An empty partition. Partition 0 has the root directory.
    pub fn new(number: PartitionNo, settings: Settings) -> Partition {
        Partition { number, settings }
    }

    /// Which partition it is.
    pub fn number(&self) -> PartitionNo {
        self.number
    }

    /// What the partition was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Executes an event at wall-clock time `now_ns`, and appends what is to be done to `actions`.
    pub fn step(&mut self, _now_ns: i64, event: Event, actions: &mut Vec<Action>) {
        if let Event::Request { token, request } = event {
            let response = Response { number: request.number, answer: Answer::refused(Errno::ENOSYS) };
            actions.push(Action::Reply { token, response });
        }
    }

    /// Applies a record that [`Partition::step`] logged on a primary.
    ///
    /// Fails with [`zazen_core::ErrorKind::Protocol`] for a malformed record, and with
    /// [`zazen_core::ErrorKind::Corrupt`] for one that does not fit the tables.
    pub fn apply(&mut self, _record: &[u8]) -> Result<()> {
        Ok(())
    }

    /// The tables, in pieces of at most about 256 KiB, for [`Restore`].
    pub fn snapshot(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        std::iter::empty()
    }

    /// A digest of the tables: equal for equal tables.
    pub fn digest(&self) -> u64 {
        0
    }
}

/// Builds a partition from the pieces of a snapshot.
pub struct Restore {
    partition: Partition,
}

impl Restore {
    /// Begins with nothing.
    pub fn new(number: PartitionNo, settings: Settings) -> Restore {
        Restore { partition: Partition::new(number, settings) }
    }

    /// Takes the next piece.
    ///
    /// Fails with [`zazen_core::ErrorKind::Corrupt`] for a damaged piece, or one out of order.
    pub fn piece(&mut self, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    /// The partition, after the last piece.
    ///
    /// Fails with [`zazen_core::ErrorKind::Corrupt`] if pieces are missing.
    pub fn finish(self) -> Result<Partition> {
        Ok(self.partition)
    }
}
