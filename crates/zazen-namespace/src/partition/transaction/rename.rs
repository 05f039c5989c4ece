//! What a rename that holds both names does next: no directory may become its own ancestor, the
//! caller must be allowed to take both away, and both must be of a kind. In this order, which is
//! Linux's.

use super::{After, Stage, Transaction, WALKED};
use crate::{Errno, InodeId};

impl Transaction {
    /// Both names are held.
    pub(super) fn judge(&mut self) {
        let Some(source) = self.source else { return self.fail(Errno::ENOENT) };
        if self.dest.is_some_and(|dest| dest.id == source.id) {
            return self.end(After::Done);
        }
        if (self.moves_directories() || self.may_be_below_dest()) && !self.move_lock {
            return self.end(After::Lock);
        }
        self.begin_walk();
    }

    fn moves_directories(&self) -> bool {
        self.moves_source() || self.moves_dest()
    }

    /// Whether the source, which is no directory, may be somewhere below the directory that it
    /// cannot replace: then that is not empty, and Linux says so.
    fn may_be_below_dest(&self) -> bool {
        self.across() && self.other_kind() == Some(Errno::EISDIR)
    }

    fn begin_walk(&mut self) {
        if self.moves_source() {
            self.stage = Stage::Walk;
            self.walk_to(self.dest_name().0);
        } else {
            self.begin_walk_back();
        }
    }

    fn begin_walk_back(&mut self) {
        if self.moves_dest() || self.may_be_below_dest() {
            self.stage = Stage::WalkBack;
            self.walk_to(self.source_name().0);
        } else {
            self.begin_checks();
        }
    }

    pub(super) fn walk_to(&mut self, directory: InodeId) {
        let moved = if self.stage == Stage::Walk { self.source } else { self.dest };
        if moved.is_some_and(|moved| moved.id == directory) {
            let is_above = self.stage == Stage::WalkBack && !self.exchange();
            self.fail(if is_above { Errno::ENOTEMPTY } else { Errno::EINVAL });
        } else if directory != InodeId::ROOT {
            self.walk = directory;
        } else if self.stage == Stage::Walk {
            self.begin_walk_back();
        } else {
            self.begin_checks();
        }
    }

    /// Why the source cannot replace what is there: one of both is a directory, the other is not.
    pub(super) fn other_kind(&self) -> Option<Errno> {
        let dest = self.dest.filter(|_| !self.exchange())?;
        match (self.source?.is_directory(), dest.is_directory()) {
            (true, false) => Some(Errno::ENOTDIR),
            (false, true) => Some(Errno::EISDIR),
            _ => None,
        }
    }

    /// Nothing becomes its own ancestor.
    fn begin_checks(&mut self) {
        self.walk = WALKED;
        if self.source_owner_only || (self.moves_source() && self.other_kind().is_none()) {
            self.stage = Stage::CheckSource;
        } else {
            self.after_check_source();
        }
    }

    pub(super) fn after_check_source(&mut self) {
        let asks_dest = self.exchange() || self.other_kind().is_some();
        if asks_dest && (self.dest_owner_only || self.moves_dest()) {
            self.stage = Stage::CheckDest;
        } else {
            self.commit();
        }
    }

    pub(super) fn commit(&mut self) {
        // An older driver checked before it walked.
        if self.moves_directories() && self.walk != WALKED {
            return self.begin_walk();
        }
        if let Some(errno) = self.other_kind() {
            return self.fail(errno);
        }
        let replaces_directory = self.dest.is_some_and(|dest| dest.is_directory());
        if self.moves_source() && self.dest_full && !replaces_directory {
            return self.fail(Errno::EMLINK);
        }
        let replaces = self.dest.is_some() && !self.exchange();
        self.stage = if replaces { Stage::RemoveDest } else { Stage::MoveSource };
    }
}
