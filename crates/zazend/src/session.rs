//! What connections hold: opened datasets and scans, by handle; released with the connection.

use crate::notes::Notes;
use crate::opened::OpenedDataset;
use crate::scan::Scan;
use crate::shares::Share;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zazen_core::{Error, ErrorKind, Result};

/// Datasets that one connection may have open.
pub const OPENED_MAX: usize = 4096;
/// Scans that one connection may have under way.
pub const SCANS_MAX: usize = 64;

/// What one connection holds.
#[derive(Default)]
pub struct Session {
    /// Each with its user's share of what may be open.
    opened: HashMap<u32, (Arc<OpenedDataset>, Share)>,
    by_path: HashMap<(String, Option<String>), u32>,
    scans: HashMap<u32, (Arc<Scan>, Share)>,
    /// Why frames were not cached that were read by random access, by the dataset's handle.
    read_notes: HashMap<u32, Arc<Notes>>,
    next: u32,
}

impl Session {
    /// Keeps an opened dataset; the same path and pattern again take the same handle. `share` is
    /// asked for once the share of an earlier one is given back. If there is none, the handle is
    /// not open any more.
    pub fn keep_opened(
        &mut self,
        path: &str,
        opened: Arc<OpenedDataset>,
        share: impl FnOnce() -> Result<Share>,
    ) -> Result<u32> {
        let key = (path.to_owned(), opened.pattern.clone());
        if let Some(handle) = self.by_path.remove(&key)
            && self.opened.remove(&handle).is_some()
        {
            self.opened.insert(handle, (opened, share()?));
            self.by_path.insert(key, handle);
            return Ok(handle);
        }
        if self.opened.len() >= OPENED_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{OPENED_MAX} datasets are open on this connection, its limit; open another connection"
                ),
            ));
        }
        let share = share()?;
        self.next += 1;
        self.by_path.insert(key, self.next);
        self.opened.insert(self.next, (opened, share));
        Ok(self.next)
    }

    /// Forgets an opened dataset; scans of it go on. One that isn't open is as good as closed.
    pub fn close_opened(&mut self, handle: u32) {
        if self.opened.remove(&handle).is_some() {
            self.read_notes.remove(&handle);
            self.by_path.retain(|_, known| *known != handle);
        }
    }

    /// The dataset behind `handle`.
    pub fn opened(&self, handle: u32) -> Result<Arc<OpenedDataset>> {
        self.opened.get(&handle).map(|(opened, _)| opened.clone()).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("dataset handle {handle} is not open on this connection; open the dataset first"),
            )
        })
    }

    /// What takes the reasons of frames that are read by random access to an opened dataset. Those
    /// of more than [`SCANS_MAX`] datasets are not kept.
    pub fn read_notes(&mut self, handle: u32) -> Arc<Notes> {
        if self.read_notes.len() >= SCANS_MAX && !self.read_notes.contains_key(&handle) {
            return Arc::default();
        }
        self.read_notes.entry(handle).or_default().clone()
    }

    /// The same, which begins anew.
    pub fn take_read_notes(&mut self, handle: u32) -> Arc<Notes> {
        self.read_notes.remove(&handle).unwrap_or_default()
    }

    /// Keeps a scan.
    pub fn keep_scan(&mut self, scan: Arc<Scan>, share: Share) -> Result<u32> {
        if self.scans.len() >= SCANS_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("{SCANS_MAX} scans are under way on this connection, its limit; close one first"),
            ));
        }
        self.next += 1;
        self.scans.insert(self.next, (scan, share));
        Ok(self.next)
    }

    /// The scan behind `scan`.
    pub fn scan(&self, scan: u32) -> Result<Arc<Scan>> {
        self.scans.get(&scan).map(|(scan, _)| scan.clone()).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("scan {scan} is not under way on this connection; open a scan first"),
            )
        })
    }

    /// Ends a scan; one that isn't there is as good as ended.
    pub fn close_scan(&mut self, scan: u32) {
        self.scans.remove(&scan);
    }
}

/// All connections' holdings.
#[derive(Default)]
pub struct Sessions(Mutex<HashMap<u64, Arc<Mutex<Session>>>>);

impl Sessions {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<Mutex<Session>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on what `connection` holds. Calls of one connection come one after another, so
    /// nobody waits.
    pub fn with<T>(&self, connection: u64, work: impl FnOnce(&mut Session) -> T) -> T {
        let session = self.all().entry(connection).or_default().clone();
        work(&mut session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Releases what `connection` held.
    pub fn release(&self, connection: u64) {
        let session = self.all().remove(&connection);
        drop(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_random_access_are_bounded() {
        let mut session = Session::default();
        let kept: Vec<_> = (0..2 * SCANS_MAX as u32).map(|handle| session.read_notes(handle)).collect();
        assert_eq!(session.read_notes.len(), SCANS_MAX);
        assert!(Arc::ptr_eq(&session.read_notes(0), &kept[0]));
        session.take_read_notes(0);
        assert_eq!(session.read_notes.len(), SCANS_MAX - 1, "the daemon forgets what it told");
    }
}
