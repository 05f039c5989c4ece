//! The call layer: a call is (service, function, payload, bulk, descriptors) → reply.
//!
//! A service knows nothing of carriers; a carrier knows nothing of services. The carriers are a
//! unix socket (identity by SO_PEERCRED, descriptors), shared memory beside it (rings and a pool),
//! and TCP (peers prove the cluster key before a byte of theirs is believed). Blocking: the server
//! gives each connection a thread, within a bound; idle connections in shared memory need none.
//!
//! - `service`: what a service sees; `bulk`: a call's bulk bytes, wherever they lie;
//! - `client`: connections, lanes, the mutual proof's first half;
//! - `server`: listeners, admission, draining, one thread per connection;
//! - `carriers`: sockets, messages, shared memory; [`carriers::ClientEnd`] and [`Attached`] are the
//!   seam for one more;
//! - [`contract`]: what every carrier must do, as tests that any crate can run.
//!
//! What a peer must do: one call at a time on a connection; the next request follows the reply
//! (`docs/formats/wire.md` has the one exception). The server reads all bulk bytes of a call, or
//! discards what the service left, before it replies; so a call that is refused (a frame in
//! conflict, say) costs the transfer of its bulk and keeps its connection.
//!
//! What is not promised: messages over TCP are authenticated at the connection's beginning only and
//! are not encrypted; the CRCs of header and payload guard against damage, not against attackers on
//! the network. Bulk bytes carry no checksum of this layer: frames have their own, end to end.

pub mod carriers;
pub mod contract;

mod belief;
mod bulk;
mod client;
mod handshake;
mod identity;
mod key;
mod limits;
mod quiet;
mod server;
mod service;
mod shared;
mod spare;

pub use belief::{DAEMON_UID_VARIABLE, believes, check_file};
pub use bulk::{Bulk, Output};
pub use carriers::seam::Exchanged;
pub use carriers::shm::cpus::count_cpus;
#[doc(hidden)]
pub use carriers::shm::fault::die_at_fault_point;
pub use carriers::shm::pool::{POOL_ALIGN, PoolBuffer};
pub use carriers::unix::UnixListening;
pub use client::{Carrier, Connection, Lanes, Pool};
pub use identity::Identity;
pub use key::{ClusterKey, KEY_BYTES_MIN};
pub use limits::{CallerLimits, ServerLimits, ShmLimits};
pub use quiet::{LeftOut, may_say};
pub use server::{Adopted, Adopter, Attached, Server};
pub use service::{Call, Caller, Line, Reply, Service};
pub use shared::{SharedBytes, SharedBytesMut};
pub use spare::kept_bytes;
