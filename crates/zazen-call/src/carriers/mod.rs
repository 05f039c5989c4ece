//! What carries calls: sockets, and shared memory beside them. One more carrier plugs in here.
//!
//! A carrier has two ends. The client's is a [`ClientEnd`], which a [`crate::Connection`] drives
//! ([`crate::Connection::over`]). The server's brings calls to a [`crate::Server`] by
//! [`crate::Server::attach`]. Whoever has both runs [`crate::contract`] over them.

pub(crate) mod account;
pub(crate) mod message;
pub(crate) mod seam;
pub(crate) mod shm;
pub(crate) mod socket;
pub(crate) mod stream;
pub(crate) mod tcp;
pub(crate) mod unix;

pub use seam::{Answered, Ask, ClientEnd, Exchanged, Sink};
