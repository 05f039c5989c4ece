//! Callers and their lanes: several connections that the services know as one caller.
//!
//! Invariants: every service hears of a caller's end exactly once: when its last lane has ended,
//! after its last call. A connection joins another caller only with that caller's token and the
//! same identity.

use crate::carriers::account::Account;
use crate::carriers::shm::memory::{Pool, Treasury};
use crate::key::random;
use crate::limits::ShmLimits;
use crate::server::services::Services;
use crate::service::Caller;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::handshake::TOKEN_BYTES;

type Token = [u8; TOKEN_BYTES];

/// One caller. Its lanes hold it, and it ends with the last of them.
pub(crate) struct Group {
    pub(crate) caller: Caller,
    account: Arc<Account>,
    callers: Arc<Callers>,
    token: OnceLock<Token>,
    /// Created when its first lane asks for it.
    pool: Mutex<Option<Arc<Pool>>>,
    /// Its connection joined another caller before it made a call: no service has heard of it.
    dissolved: AtomicBool,
}

/// The callers that gave away tokens, and what each caller has from its server.
pub(crate) struct Callers {
    by_token: Mutex<HashMap<Token, Weak<Group>>>,
    services: Arc<Services>,
    shm: ShmLimits,
    treasury: Arc<Treasury>,
}

impl Callers {
    pub(crate) fn new(services: &Arc<Services>, shm: &ShmLimits, treasury: &Arc<Treasury>) -> Arc<Callers> {
        Arc::new(Callers {
            by_token: Mutex::default(),
            services: Arc::clone(services),
            shm: shm.clone(),
            treasury: Arc::clone(treasury),
        })
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<Token, Weak<Group>>> {
        // No code panics while it holds the lock.
        self.by_token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller whose token this is. `newcomer` is the connection that wants to join, with its
    /// own identity.
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
    pub(crate) fn new(caller: Caller, callers: &Arc<Callers>, account: &Arc<Account>) -> Arc<Group> {
        Arc::new(Group {
            caller,
            account: Arc::clone(account),
            callers: Arc::clone(callers),
            token: OnceLock::new(),
            pool: Mutex::new(None),
            dissolved: AtomicBool::new(false),
        })
    }

    /// The token with which further connections join; always the same one.
    pub(crate) fn token(self: &Arc<Group>) -> Result<Token> {
        if let Some(token) = self.token.get() {
            return Ok(*token);
        }
        let fresh = random()?;
        let token = *self.token.get_or_init(|| fresh);
        self.callers.tokens().insert(token, Arc::downgrade(self));
        Ok(token)
    }

    /// The caller's shared memory, created now if it has none yet.
    pub(crate) fn pool(&self) -> Result<Arc<Pool>> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let (number, callers) = (self.caller.connection, &self.callers);
        let fresh = Pool::create(number, &self.account, &callers.shm, &callers.treasury)?;
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
            self.callers.tokens().remove(token);
        }
        if self.dissolved.load(Ordering::Relaxed) {
            return;
        }
        self.callers.services.detach(&self.caller);
    }
}
