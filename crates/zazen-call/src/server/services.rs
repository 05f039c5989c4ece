//! A server's services, and how a call reaches one of them.

use crate::quiet::may_say;
use crate::service::{Call, Caller, Reply, Service};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, Result};

/// The services by number.
pub(crate) struct Services(BTreeMap<u16, Arc<dyn Service>>);

impl Services {
    /// Of two services with the same number, the later one counts.
    pub(crate) fn new(services: Vec<Arc<dyn Service>>) -> Services {
        Services(services.into_iter().map(|service| (service.id(), service)).collect())
    }

    /// Calls the service. If it panics, the panic is logged and becomes an error, and the daemon
    /// stays up.
    pub(crate) fn dispatch(&self, service: u16, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let Some(serving) = self.0.get(&service) else {
            if service == zazen_wire::service::NAMESPACE {
                let why = "this daemon has no namespace: start it with --namespace DIR, or with [namespace] \
                           in its file";
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            let known: Vec<String> = self.0.keys().map(u16::to_string).collect();
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "this daemon has no service {service}, only {}; is it an older release?",
                    known.join(", ")
                ),
            ));
        };
        let function = call.function;
        catch_unwind(AssertUnwindSafe(|| serving.call(caller, call))).unwrap_or_else(|panic| {
            let said = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            if let Some(left_out) = may_say("panic", &format!("{service} {function}")) {
                tracing::error!("service {service} panicked in function {function}: {said}{left_out}");
            }
            Err(Error::new(
                ErrorKind::Io,
                format!(
                    "the daemon met a bug of its own in service {service}, function {function} ({said}); \
                     it goes on; please report it with the daemon's log"
                ),
            ))
        })
    }

    /// Tells the service that its answer is on its way, or could not be sent.
    pub(crate) fn answered(&self, service: u16, caller: &Caller) {
        let Some(served) = self.0.get(&service) else { return };
        if catch_unwind(AssertUnwindSafe(|| served.answered(caller))).is_err() {
            tracing::error!("service {service} panicked after a call of caller {}", caller.connection);
        }
    }

    /// Tells every service that `caller` is gone.
    pub(crate) fn detach(&self, caller: &Caller) {
        for service in self.0.values() {
            if catch_unwind(AssertUnwindSafe(|| service.detach(caller))).is_err() {
                tracing::error!("service {} panicked when caller {} ended", service.id(), caller.connection);
            }
        }
    }
}

/// Whether the reply's bulk bytes fit into the room that the caller gave.
pub(crate) fn check_room(room: Option<u64>, written: u64, reply: &Reply) -> Result<()> {
    let bytes = written.saturating_add(reply.bulk.len() as u64);
    match room {
        Some(room) if bytes > room => Err(Error::new(
            ErrorKind::TooLarge,
            format!("the answer has {bytes} bulk bytes, the caller has room for {room}; give it more"),
        )),
        _ => Ok(()),
    }
}
