//! The daemon's service: who may call what, and bytes to and from messages.

use crate::handles::lock;
use crate::links::Envelopes;
use crate::node::NamespaceNode;
use crate::route::PATIENCE;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;
use zazen_call::{Call, Caller, Reply, Service};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::Errno;
use zazen_namespace::operation::Inode;
use zazen_namespace::service::{
    ASKS_MAX, Answers, Asks, Balance, CHUNK_BYTES_MAX, Done, HandleCall, Introduction, Leave, Noticed,
    ObjectCall, ObjectDone, Proof, Quota, Requests, Responses, Scrub, Spaces, Watch, namespace_fn,
};
use zazen_wire::checksum::frame_checksum;
use zazen_wire::{Message, service};

/// The bytes that come with the end of a copy: a checksum.
const SUM_BYTES: u64 = 8;

/// The namespace service of a daemon.
pub struct NamespaceService(Arc<NamespaceNode>);

impl NamespaceService {
    /// The service of `node`.
    pub fn new(node: Arc<NamespaceNode>) -> NamespaceService {
        NamespaceService(node)
    }
}

fn payload(message: &impl Message) -> Reply {
    Reply { payload: message.encode(), ..Reply::default() }
}

/// The bulk bytes of a call: at most a chunk, and as many as it says.
fn bulk(call: &mut Call<'_>, said: u64) -> Result<std::result::Result<Vec<u8>, Errno>> {
    if call.bulk_bytes > CHUNK_BYTES_MAX as u64 || call.bulk_bytes != said {
        return Ok(Err(Errno::EINVAL));
    }
    let mut bytes = vec![0; call.bulk_bytes as usize];
    call.bulk.read_exact(&mut bytes).map_err(|error| Error::io("bytes to write", error))?;
    Ok(Ok(bytes))
}

fn give(call: &mut Call<'_>, bytes: &[u8]) -> Result<()> {
    call.output.write_all(bytes).map_err(|error| Error::io("bytes that were read", error))
}

impl NamespaceNode {
    fn on_handle(&self, caller: &Caller, mut call: Call<'_>) -> Result<Reply> {
        let session = self.session(caller.connection);
        let asked = HandleCall::decode(call.payload)?;
        let (offset, bytes, flags) = (asked.offset, asked.bytes, asked.flags);
        let handle = match call.function {
            namespace_fn::CLOSE => session.take(asked.handle),
            _ => session.handle(asked.handle),
        };
        let handle = match handle {
            Ok(handle) => handle,
            Err(errno) => return Ok(payload(&Done::refused(errno))),
        };
        // A try of a change is not executed after a later one.
        let once = |change: &mut dyn FnMut() -> std::result::Result<u64, Errno>| {
            session.repeats.run(asked.call, asked.again, change)
        };
        let done = match call.function {
            namespace_fn::READ if bytes > CHUNK_BYTES_MAX as u64 => Err(Errno::EINVAL),
            namespace_fn::READ => match self.read(&handle, offset, bytes as usize) {
                Ok(got) => {
                    give(&mut call, &got)?;
                    Ok(got.len() as u64)
                }
                Err(errno) => Err(errno),
            },
            namespace_fn::WRITE => match bulk(&mut call, bytes)? {
                Ok(given) => once(&mut || self.write(&handle, offset, &given, flags)),
                Err(errno) => Err(errno),
            },
            namespace_fn::TRUNCATE | namespace_fn::ALLOCATE => {
                once(&mut || self.act(&handle, call.function, offset, bytes, flags))
            }
            namespace_fn::SEEK => self.act(&handle, call.function, offset, bytes, flags),
            namespace_fn::SYNC => self.sync(&handle, flags).map(|()| 0),
            namespace_fn::CLOSE => self.close(&handle).map(|()| 0),
            namespace_fn::DESCRIPTOR if !caller.is_local() => Err(Errno::EXDEV),
            namespace_fn::DESCRIPTOR => match self.descriptor(&handle, self.vouches(caller)) {
                Ok(fd) => {
                    let payload = Done::with(0).encode();
                    return Ok(Reply { payload, fds: vec![fd], ..Reply::default() });
                }
                Err(errno) => Err(errno),
            },
            other => return Err(unknown(other)),
        };
        Ok(payload(&Done::from(done)))
    }

    /// What only daemons ask of each other.
    fn between_daemons(&self, caller: &Caller, mut call: Call<'_>) -> Result<Reply> {
        if caller.is_local() {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "this function is for other daemons, which prove the cluster key",
            ));
        }
        match call.function {
            namespace_fn::INTRODUCE => {
                return Ok(payload(&self.introduced(caller, &Introduction::decode(call.payload)?)?));
            }
            namespace_fn::PROVE => {
                self.proved(caller, &Proof::decode(call.payload)?)?;
                return Ok(Reply::default());
            }
            _ => {}
        }
        let key = self.key_of(caller)?;
        if call.function != namespace_fn::PEER {
            self.check_member(key)?;
        }
        match call.function {
            namespace_fn::REQUEST => {
                let requests = Requests::decode(call.payload)?.requests;
                if requests.len() > ASKS_MAX {
                    return Err(Error::new(ErrorKind::TooLarge, format!("more than {ASKS_MAX} requests")));
                }
                self.check_requests(key, &requests)?;
                Ok(payload(&Responses { responses: self.execute(requests, PATIENCE) }))
            }
            namespace_fn::PEER => {
                let envelopes = Envelopes::decode(call.payload)?;
                self.check_envelopes(key, &envelopes)?;
                self.driver.peer(envelopes);
                Ok(Reply::default())
            }
            namespace_fn::NOTICE => Ok(payload(&self.noticed(Noticed::decode(call.payload)?))),
            namespace_fn::OBJECT => {
                let asked = ObjectCall::decode(call.payload)?;
                let given = match asked.what {
                    namespace_fn::WRITE | namespace_fn::COPY_PUT | namespace_fn::TELL => {
                        bulk(&mut call, asked.bytes)?
                    }
                    namespace_fn::COPY_END => bulk(&mut call, SUM_BYTES)?,
                    _ => Ok(Vec::new()),
                };
                let (done, got) = match given.and_then(|given| self.tried(&asked, &given)) {
                    Ok((value, got)) => (Done::with(value), got),
                    Err(errno) => (Done::refused(errno), Vec::new()),
                };
                give(&mut call, &got)?;
                Ok(payload(&ObjectDone { done, sum: frame_checksum(&got) }))
            }
            other => Err(unknown(other)),
        }
    }
}

fn unknown(function: u16) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("the namespace has no function {function}; install the same release on both sides"),
    )
}

impl Service for NamespaceService {
    fn id(&self) -> u16 {
        service::NAMESPACE
    }

    fn call(&self, caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let node = &self.0;
        match call.function {
            namespace_fn::HELLO => Ok(payload(&node.hello(caller)?)),
            namespace_fn::ASK => {
                let asks = Asks::decode(call.payload)?.asks;
                if asks.len() > ASKS_MAX {
                    return Err(Error::new(ErrorKind::TooLarge, format!("more than {ASKS_MAX} operations")));
                }
                node.joined(Instant::now() + PATIENCE, None)?;
                let session = node.session(caller.connection);
                Ok(payload(&Answers { answers: node.ask(caller, &session, asks) }))
            }
            namespace_fn::READ..=namespace_fn::DESCRIPTOR => node.on_handle(caller, call),
            namespace_fn::WATCH => Ok(payload(&node.watch(caller, &Watch::decode(call.payload)?, &call))),
            namespace_fn::MAP => Ok(payload(&node.named_map())),
            namespace_fn::STATUS => {
                Ok(Reply { payload: node.status(caller).to_string().into_bytes(), ..Reply::default() })
            }
            namespace_fn::SCRUB if !node.administers(caller) => Err(Error::new(
                ErrorKind::PermissionDenied,
                "only root and the daemon's user may scrub a node's disk",
            )),
            namespace_fn::SCRUB => Ok(payload(&node.scrub(&Scrub::decode(call.payload)?)?)),
            namespace_fn::BALANCE if !node.administers(caller) => Err(Error::new(
                ErrorKind::PermissionDenied,
                "only root and the daemon's user may move files between nodes",
            )),
            namespace_fn::BALANCE => Ok(payload(&node.balance(&Balance::decode(call.payload)?)?)),
            namespace_fn::LEAVE if !node.administers(caller) => Err(Error::new(
                ErrorKind::PermissionDenied,
                "only root and the daemon's user may have a node leave the namespace",
            )),
            namespace_fn::LEAVE => Ok(payload(&node.leave(&Leave::decode(call.payload)?)?)),
            namespace_fn::QUOTA if !node.administers(caller) => {
                Err(Error::new(ErrorKind::PermissionDenied, "only root and the daemon's user may set quotas"))
            }
            namespace_fn::QUOTA => {
                node.set_quota(&Quota::decode(call.payload)?)?;
                Ok(Reply::default())
            }
            namespace_fn::QUOTAS => {
                let only = (!node.administers(caller)).then_some(caller.credentials.uid);
                Ok(payload(&node.quotas(only)))
            }
            namespace_fn::SPACE if caller.is_local() && !call.payload.is_empty() => {
                let id = Inode::decode(call.payload)?.id;
                let known = node.vouches(caller) || node.session(caller.connection).knows(id);
                let bounded = if known { node.space_in(id) } else { None };
                Ok(payload(&Spaces { nodes: bounded.map_or_else(|| node.spaces(), |one| vec![one]) }))
            }
            namespace_fn::SPACE if caller.is_local() => Ok(payload(&Spaces { nodes: node.spaces() })),
            namespace_fn::SPACE => Ok(payload(&Spaces { nodes: node.own_space().into_iter().collect() })),
            namespace_fn::REQUEST..=namespace_fn::PROVE | namespace_fn::NOTICE => {
                node.between_daemons(caller, call)
            }
            other => Err(unknown(other)),
        }
    }

    fn detach(&self, caller: &Caller) {
        self.0.watchers.ends(caller.connection);
        self.0.peers.ends(caller.connection);
        let session = lock(&self.0.sessions).remove(&caller.connection);
        if let Some(session) = session {
            self.0.end_session(&session);
        }
    }
}
