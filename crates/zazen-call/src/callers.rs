//! Callers and their lanes: several connections that the services know as one caller.
//!
//! Invariants: every service hears of a caller's end exactly once, when the last of its lanes has ended, after the
//! last of its calls; a connection becomes another caller's lane only by that caller's token and with its identity.

use crate::Caller;
use crate::account::Account;
use crate::key::random;
use crate::server::Shared;
use crate::shm::memory::Pool;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::handshake::TOKEN_BYTES;

type Token = [u8; TOKEN_BYTES];

/// One caller; its lanes hold it, and with the last one it ends.
pub(crate) struct Group {
    pub(crate) caller: Caller,
    account: Arc<Account>,
    shared: Arc<Shared>,
    token: OnceLock<Token>,
    /// Made when its first lane asks for it.
    pool: Mutex<Option<Arc<Pool>>>,
    /// It has become a lane of another caller before it made a call: no service has heard of it.
    dissolved: AtomicBool,
}

/// The callers that gave away tokens.
#[derive(Default)]
pub(crate) struct Callers {
    by_token: Mutex<HashMap<Token, Weak<Group>>>,
}

impl Callers {
    fn tokens(&self) -> MutexGuard<'_, HashMap<Token, Weak<Group>>> {
        // No code panics while it holds the lock.
        self.by_token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller whose token this is, for a connection that is `newcomer` by its own identity.
    pub(crate) fn join(&self, token: &[u8], newcomer: &Caller) -> Result<Arc<Group>> {
        let found = Token::try_from(token).ok().and_then(|token| self.tokens().get(&token)?.upgrade());
        let same = |group: &Arc<Group>| {
            group.caller.credentials.uid == newcomer.credentials.uid && group.caller.host == newcomer.host
        };
        found.filter(same).ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                "the caller that this lane is to join is gone, or belongs to somebody else; connect anew",
            )
        })
    }
}

impl Group {
    pub(crate) fn new(caller: Caller, shared: &Arc<Shared>, account: &Arc<Account>) -> Arc<Group> {
        Arc::new(Group {
            caller,
            account: Arc::clone(account),
            shared: Arc::clone(shared),
            token: OnceLock::new(),
            pool: Mutex::new(None),
            dissolved: AtomicBool::new(false),
        })
    }

    /// The token by which further connections join; the same one each time.
    pub(crate) fn token(self: &Arc<Group>) -> Result<Token> {
        if let Some(token) = self.token.get() {
            return Ok(*token);
        }
        let fresh = random()?;
        let token = *self.token.get_or_init(|| fresh);
        self.shared.callers.tokens().insert(token, Arc::downgrade(self));
        Ok(token)
    }

    /// The caller's shared memory, made now if it has none yet.
    pub(crate) fn pool(&self) -> Result<Arc<Pool>> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let fresh = Pool::create(
            self.caller.connection,
            &self.account,
            self.shared.shm_limits(),
            &self.shared.treasury,
        )?;
        Ok(Arc::clone(pool.insert(fresh)))
    }

    /// Its only connection joins another caller.
    pub(crate) fn dissolve(&self) {
        self.dissolved.store(true, Ordering::Relaxed);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(token) = self.token.get() {
            self.shared.callers.tokens().remove(token);
        }
        if self.dissolved.load(Ordering::Relaxed) {
            return;
        }
        let caller = &self.caller;
        for service in self.shared.services.values() {
            if catch_unwind(AssertUnwindSafe(|| service.detach(caller))).is_err() {
                tracing::error!("service {} panicked when caller {} ended", service.id(), caller.connection);
            }
        }
    }
}
