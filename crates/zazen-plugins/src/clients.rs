//! Who is attached to a plug-in.
//!
//! Invariant: a plug-in hears of a client's coming before its first call and of its going exactly
//! once, after its last one. No lock is held meanwhile.

use crate::counters::Counters;
use crate::handles::Handles;
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::mem::size_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use zazen_core::Credentials;
use zazen_plugin_abi::plugin::{self as abi, DetachReason, HOST_BYTES};

/// Tables among which callers are spread, so that their calls don't meet at one lock.
const SHARDS: usize = 16;

/// One client, as its plug-in knows it.
pub(crate) struct Client {
    pub(crate) caller: abi::Caller,
    pub(crate) groups: Vec<u32>,
    handles: Handles,
    counters: Arc<Counters>,
    /// Its process is one of this machine's.
    pub(crate) is_local: bool,
    /// The plug-in has been told of it.
    attached: AtomicBool,
    goodbye: AtomicBool,
    expelled: AtomicBool,
}

/// What a plug-in is told of a client.
pub(crate) struct Who<'a> {
    pub(crate) credentials: &'a Credentials,
    pub(crate) pid: u32,
    pub(crate) host: &'a str,
    pub(crate) is_local: bool,
    pub(crate) rank: i32,
    pub(crate) ranks: i32,
    pub(crate) client: u64,
    pub(crate) generation: u64,
    /// Those of the plug-in: they count the client's handles, too.
    pub(crate) counters: Arc<Counters>,
}

impl Client {
    pub(crate) fn new(who: &Who<'_>) -> Client {
        let mut host = [0 as c_char; HOST_BYTES];
        for (to, from) in host.iter_mut().take(HOST_BYTES - 1).zip(who.host.bytes()) {
            *to = from.cast_signed();
        }
        let caller = abi::Caller {
            struct_size: size_of::<abi::Caller>() as u32,
            pid: who.pid,
            client: who.client,
            generation: who.generation,
            uid: who.credentials.uid,
            gid: who.credentials.gid,
            rank: who.rank,
            ranks: who.ranks,
            host,
        };
        let groups = who.credentials.groups.clone();
        Client {
            caller,
            groups,
            handles: Handles::default(),
            counters: who.counters.clone(),
            is_local: who.is_local,
            attached: AtomicBool::new(false),
            goodbye: AtomicBool::new(false),
            expelled: AtomicBool::new(false),
        }
    }

    /// A number for `value`, as [`Handles::enter`] says.
    pub(crate) fn enter_handle(&self, kind: &CStr, value: i64) -> Result<i64, i32> {
        let number = self.handles.enter(kind, value)?;
        self.counters.gauges().handles.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// The value of a handle.
    pub(crate) fn handle(&self, kind: &CStr, number: i64) -> Result<i64, i32> {
        self.handles.get(kind, number)
    }

    /// The value of a handle, whose number is free again.
    pub(crate) fn remove_handle(&self, kind: &CStr, number: i64) -> Result<i64, i32> {
        let value = self.handles.remove(kind, number)?;
        self.counters.gauges().handles.fetch_sub(1, Ordering::Relaxed);
        Ok(value)
    }

    /// The client is gone, and its handles with it.
    pub(crate) fn drop_handles(&self) {
        let left = self.handles.clear() as u64;
        self.counters.gauges().handles.fetch_sub(left, Ordering::Relaxed);
    }

    /// The plug-in knows of it: its calls may come.
    pub(crate) fn set_attached(&self) {
        self.attached.store(true, Ordering::Release);
    }

    /// It broke the protocol: it is served no more.
    pub(crate) fn expel(&self) {
        self.expelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_served(&self) -> bool {
        self.attached.load(Ordering::Acquire) && !self.expelled.load(Ordering::Relaxed)
    }

    /// From now on its end is no accident.
    pub(crate) fn say_goodbye(&self) {
        self.goodbye.store(true, Ordering::Relaxed);
    }

    /// Why it is gone, if the host goes on.
    pub(crate) fn reason(&self) -> DetachReason {
        if self.expelled.load(Ordering::Relaxed) {
            DetachReason::Expelled
        } else if self.goodbye.load(Ordering::Relaxed) {
            DetachReason::Closed
        } else {
            DetachReason::Died
        }
    }
}

/// Clients by the number of their caller (all lanes of a caller are one client).
#[derive(Default)]
pub(crate) struct Clients([RwLock<HashMap<u64, Arc<Client>>>; SHARDS]);

impl Clients {
    fn shard(&self, caller: u64) -> &RwLock<HashMap<u64, Arc<Client>>> {
        &self.0[caller as usize % SHARDS]
    }

    pub(crate) fn get(&self, caller: u64) -> Option<Arc<Client>> {
        self.shard(caller).read().unwrap_or_else(PoisonError::into_inner).get(&caller).cloned()
    }

    /// Enters the client, unless another lane of the caller was faster; who it is then.
    pub(crate) fn enter(&self, caller: u64, client: Arc<Client>) -> Arc<Client> {
        let mut clients = self.shard(caller).write().unwrap_or_else(PoisonError::into_inner);
        clients.entry(caller).or_insert(client).clone()
    }

    pub(crate) fn remove(&self, caller: u64) -> Option<Arc<Client>> {
        self.shard(caller).write().unwrap_or_else(PoisonError::into_inner).remove(&caller)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        let shards = self.0.iter();
        shards
            .flat_map(|shard| {
                let clients = shard.read().unwrap_or_else(PoisonError::into_inner);
                clients.values().cloned().collect::<Vec<_>>()
            })
            .collect()
    }
}
