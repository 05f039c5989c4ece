//! The messages by which two ends of a TCP connection prove the cluster key to each other.
//!
//! ```text
//!  client                                             server
//!    | -- HELLO  ClientHello: versions, nonce, identity -> |
//!    | <- reply  ServerHello: version, nonce, host ------- |
//!    | -- PROVE  Proof: HMAC(key, "client" ‖ both hellos)->|   the server checks or closes
//!    | <- reply  Proof: HMAC(key, "server" ‖ both hellos)- |   the client checks or closes
//! ```
//!
//! They travel as two calls of service [`SERVICE`], framed like all calls. The MAC covers the exact
//! bytes of both hellos, so it covers both nonces, both identities and the offered versions. The
//! labels differ, so that no proof can be sent back as its own answer. The call layer computes the
//! MAC.

use crate::codec::{Reader, Writer};
use crate::field::Field;
use zazen_core::{Credentials, Error, ErrorKind, Result};

/// The service number of the handshake.
pub const SERVICE: u16 = 0;
/// Function: [`ClientHello`] → [`ServerHello`].
pub const HELLO: u16 = 1;
/// Function: [`Proof`] → [`Proof`].
pub const PROVE: u16 = 2;

/// Function: nothing → a token of [`TOKEN_BYTES`] bytes, by which more connections join this
/// caller.
pub const TOKEN: u16 = 3;
/// Function: a token → nothing. From now on this connection is one more lane of the token's caller.
pub const JOIN: u16 = 4;

/// Bytes of a caller's token, which is random.
pub const TOKEN_BYTES: usize = 16;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof (HMAC-SHA-256).
pub const MAC_BYTES: usize = 32;
/// The largest payload of a handshake message. No more is read of a message before its sender has
/// proved the key.
pub const PAYLOAD_BYTES_MAX: usize = 8 << 10;
/// Supplementary groups that an identity can carry.
pub const GROUPS_MAX: usize = 1024;
/// The longest host name, in bytes.
pub const HOST_BYTES_MAX: usize = 255;

/// The encoding of the identity that a client claims.
struct Identity;

impl Field for Identity {
    type Value = Credentials;
    const BYTES_MIN: usize = Credentials::BYTES_MIN;
    fn write(value: &Credentials, writer: &mut Writer) {
        Credentials::write(value, writer);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Credentials> {
        let credentials = Credentials::read(reader)?;
        if credentials.groups.len() <= GROUPS_MAX {
            return Ok(credentials);
        }
        let groups = credentials.groups.len();
        let why = format!("an identity with {groups} groups is beyond the limit of {GROUPS_MAX}");
        Err(Error::new(ErrorKind::TooLarge, why))
    }
}

/// The encoding of a host name. Host names appear in logs and in messages to people, so they have
/// no control characters.
struct HostName;

impl Field for HostName {
    type Value = String;
    const BYTES_MIN: usize = 4;
    fn write(value: &String, writer: &mut Writer) {
        writer.text(value);
    }
    fn read(reader: &mut Reader<'_>) -> Result<String> {
        let host = reader.text(HOST_BYTES_MAX)?;
        if host.is_empty() || host.chars().any(char::is_control) {
            return Err(reader.malformed(format_args!("host name {host:?} is empty or not printable")));
        }
        Ok(host)
    }
}

crate::messages! {
    /// The client's first message. The holder of the key vouches for the identity.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ClientHello {
        /// The oldest protocol version that the client speaks.
        version_min: u16,
        /// The newest.
        version_max: u16,
        /// Fresh and random.
        nonce: [u8; NONCE_BYTES],
        /// Whom the client acts for.
        credentials: Credentials = Identity,
        /// The client's process id; 0 if unknown.
        pid: u32,
        /// The client's host name: printable, not empty.
        host: String = HostName,
    }

    /// The server's answer.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ServerHello {
        /// The version that both speak from now on.
        version: u16,
        /// Fresh and random.
        nonce: [u8; NONCE_BYTES],
        /// The server's host name.
        host: String = HostName,
    }

    /// A proof of the key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Proof {
        /// HMAC-SHA-256 over [`proof_input`].
        mac: [u8; MAC_BYTES],
    }
}

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

/// The bytes that `side`'s proof is a MAC of: a label, then the payloads of both hellos as they
/// were sent, each after its length. So no two different transcripts give the same bytes.
pub fn proof_input(side: Side, client_hello: &[u8], server_hello: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.text(match side {
        Side::Client => "zazen handshake 1 client",
        Side::Server => "zazen handshake 1 server",
    });
    for hello in [client_hello, server_hello] {
        writer.record(|writer| writer.raw(hello));
    }
    writer.into_bytes()
}
