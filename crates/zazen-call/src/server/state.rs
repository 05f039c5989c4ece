//! What all threads of a server know.

use crate::carriers::account::Accounts;
use crate::carriers::shm::memory::Treasury;
use crate::key::ClusterKey;
use crate::limits::{ServerLimits, ShmLimits};
use crate::server::callers::Callers;
use crate::server::parking::Parking;
use crate::server::registry::Registry;
use crate::server::services::Services;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use zazen_core::Credentials;

/// Says by credentials and process who may connect.
pub(crate) type Admits = dyn Fn(&Credentials, u32) -> bool + Send + Sync;

/// Over what a connection came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Unix,
    Tcp,
}

impl Carrier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Carrier::Unix => "unix",
            Carrier::Tcp => "tcp",
        }
    }
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) services: Arc<Services>,
    pub(crate) key: Option<ClusterKey>,
    pub(crate) limits: ServerLimits,
    pub(crate) registry: Registry,
    pub(crate) accounts: Accounts,
    pub(crate) callers: Arc<Callers>,
    pub(crate) shm: ShmLimits,
    pub(crate) treasury: Arc<Treasury>,
    pub(crate) parking: OnceLock<Option<Arc<Parking>>>,
    /// Who may connect over the unix socket; everybody if nothing is said.
    pub(crate) admits: OnceLock<Box<Admits>>,
    /// This machine's name, for the handshake.
    pub(crate) host: String,
    /// Readable once acceptors are to end.
    pub(crate) stop: Option<OwnedFd>,
}

impl Shared {
    /// Whether connections over `carrier` may move to shared memory.
    pub(crate) fn offers_shm(&self, carrier: Carrier) -> bool {
        carrier == Carrier::Unix && self.shm.enabled && self.parking().is_some()
    }

    /// Where lanes wait; `None` if the kernel gives none.
    pub(crate) fn parking(&self) -> Option<&Arc<Parking>> {
        let made = self.parking.get_or_init(|| {
            Parking::new().inspect_err(|error| tracing::warn!("{error}; no shared memory is offered")).ok()
        });
        made.as_ref()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(Some(parking)) = self.parking.get() {
            parking.end();
        }
    }
}
