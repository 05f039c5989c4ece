//! The messages by which two ends of a TCP connection prove the cluster key to each other.
//!
//! ```text
//!  client                                             server
//!    | -- HELLO  ClientHello: versions, nonce, identity -> |
//!    | <- reply  ServerHello: version, nonce, host ------- |
//!    | -- PROVE  Proof: HMAC(key, "client" ‖ both hellos)->|   the server checks, or refuses and closes
//!    | <- reply  Proof: HMAC(key, "server" ‖ both hellos)- |   the client checks, or closes
//! ```
//!
//! They travel as two calls of service [`SERVICE`], framed as all others. The MAC covers the exact bytes of
//! both hellos, hence both nonces, both identities and the versions offered. The labels differ, so that no
//! proof can be sent back as its own answer. The MAC itself is computed by the call layer.

use crate::codec::{Message, Reader, Writer};
use zazen_core::{Credentials, Error, ErrorKind, Result};

/// The service number of the handshake.
pub const SERVICE: u16 = 0;
/// Function: [`ClientHello`] → [`ServerHello`].
pub const HELLO: u16 = 1;
/// Function: [`Proof`] → [`Proof`].
pub const PROVE: u16 = 2;

/// Function: nothing → a token of [`TOKEN_BYTES`] bytes, by which further connections join this caller.
pub const TOKEN: u16 = 3;
/// Function: a token → nothing: from now on this connection is one more lane of the token's caller.
pub const JOIN: u16 = 4;

/// Bytes of a caller's token: random, beyond guessing.
pub const TOKEN_BYTES: usize = 16;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof (HMAC-SHA-256).
pub const MAC_BYTES: usize = 32;
/// The largest payload of a handshake message: all that is read of a peer's message before it is believed.
pub const PAYLOAD_BYTES_MAX: usize = 8 << 10;
/// Supplementary groups that an identity can carry.
pub const GROUPS_MAX: usize = 1024;
/// The longest host name, in bytes.
pub const HOST_BYTES_MAX: usize = 255;

/// What a client says first. The identity is the key holder's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The oldest protocol version that the client speaks.
    pub version_min: u16,
    /// The newest.
    pub version_max: u16,
    /// Fresh and random.
    pub nonce: [u8; NONCE_BYTES],
    /// Whom the client acts for.
    pub credentials: Credentials,
    /// The client's process id; 0 if unknown.
    pub pid: u32,
    /// The client's host name: printable, not empty.
    pub host: String,
}

impl Message for ClientHello {
    const NAME: &'static str = "ClientHello";

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.version_min);
        writer.u16(self.version_max);
        writer.raw(&self.nonce);
        writer.u32(self.credentials.uid);
        writer.u32(self.credentials.gid);
        writer.list(&self.credentials.groups, |writer, group| writer.u32(*group));
        writer.u32(self.pid);
        writer.text(&self.host);
    }

    fn read(reader: &mut Reader<'_>) -> Result<ClientHello> {
        let (version_min, version_max) = (reader.u16()?, reader.u16()?);
        let nonce = read_array(reader)?;
        let (uid, gid) = (reader.u32()?, reader.u32()?);
        let groups = reader.list(4, Reader::u32)?;
        if groups.len() > GROUPS_MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("an identity with {} groups is beyond the limit of {GROUPS_MAX}", groups.len()),
            ));
        }
        let credentials = Credentials { uid, gid, groups };
        Ok(ClientHello {
            version_min,
            version_max,
            nonce,
            credentials,
            pid: reader.u32()?,
            host: read_host(reader)?,
        })
    }
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerHello {
    /// The version that both speak from now on.
    pub version: u16,
    /// Fresh and random.
    pub nonce: [u8; NONCE_BYTES],
    /// The server's host name.
    pub host: String,
}

impl Message for ServerHello {
    const NAME: &'static str = "ServerHello";

    fn write(&self, writer: &mut Writer) {
        writer.u16(self.version);
        writer.raw(&self.nonce);
        writer.text(&self.host);
    }

    fn read(reader: &mut Reader<'_>) -> Result<ServerHello> {
        Ok(ServerHello { version: reader.u16()?, nonce: read_array(reader)?, host: read_host(reader)? })
    }
}

/// A proof of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// HMAC-SHA-256 over [`proof_input`].
    pub mac: [u8; MAC_BYTES],
}

impl Message for Proof {
    const NAME: &'static str = "Proof";

    fn write(&self, writer: &mut Writer) {
        writer.raw(&self.mac);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Proof> {
        Ok(Proof { mac: read_array(reader)? })
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

/// The bytes that `side`'s proof is a MAC of: a label, then both hellos' payloads as they travelled, each with
/// its length before it, so that no two different transcripts give the same bytes.
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

fn read_array<const N: usize>(reader: &mut Reader<'_>) -> Result<[u8; N]> {
    let mut array = [0; N];
    array.copy_from_slice(reader.raw(N)?);
    Ok(array)
}

/// Host names end up in logs and in messages to people: no control characters.
fn read_host(reader: &mut Reader<'_>) -> Result<String> {
    let host = reader.text(HOST_BYTES_MAX)?;
    if host.is_empty() || host.chars().any(char::is_control) {
        return Err(reader.malformed(format_args!("host name {host:?} is empty or not printable")));
    }
    Ok(host)
}
