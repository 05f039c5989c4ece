//! The mutual proof of the cluster key that opens every TCP connection; messages in
//! [`zazen_wire::handshake`].
//!
//! Invariants: the client proves first. Nothing but the two hellos is believed before the proof.
//! Proofs are compared in constant time. A peer that fails gets one error, and its connection is
//! closed.

use crate::identity::Identity;
use crate::key::{ClusterKey, random};
use crate::service::Caller;
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::Message;
use zazen_wire::codec::clip;
use zazen_wire::handshake::{
    ClientHello, GROUPS_MAX, HELLO, HOST_BYTES_MAX, PROVE, Proof, SERVICE, ServerHello, Side,
};
use zazen_wire::header::{VERSION, VERSION_MIN, version_refusal};

const ADVICE: &str = "give both the same key file (`--key FILE`; `zazen key new FILE` makes one)";

/// The client's half. `ask` calls a function of the handshake's and gives the answer; `peer` names
/// the server in errors.
pub(crate) fn prove_as_client(
    mut ask: impl FnMut(u16, &[u8]) -> Result<Vec<u8>>,
    peer: &str,
    key: &ClusterKey,
    identity: &Identity,
) -> Result<()> {
    let hello = ClientHello {
        version_min: VERSION_MIN,
        version_max: VERSION,
        nonce: random()?,
        credentials: identity.credentials.clone(),
        pid: identity.pid,
        host: printable_host(&identity.host),
    };
    if hello.credentials.groups.len() > GROUPS_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "this process is in {} groups, a remote daemon can be told of {GROUPS_MAX}; leave some",
                hello.credentials.groups.len()
            ),
        ));
    }
    let hello = hello.encode();
    let server_hello = ask(HELLO, &hello)?;
    let proof = Proof { mac: key.prove(Side::Client, &hello, &server_hello) };
    let answer = ask(PROVE, &proof.encode())?;
    let (said, theirs) = (ServerHello::decode(&server_hello)?, Proof::decode(&answer)?);
    if !key.verify(Side::Server, &hello, &server_hello, &theirs.mac) {
        return Err(Error::new(
            ErrorKind::Authentication,
            format!("{peer} (host {}) does not know this cluster's key; {ADVICE}", said.host),
        ));
    }
    if !(VERSION_MIN..=VERSION).contains(&said.version) {
        return Err(version_refusal(said.version, said.version).within(peer));
    }
    Ok(())
}

/// The server's half, as a state machine over the client's messages.
pub(crate) struct ServerSide<'a> {
    key: &'a ClusterKey,
    host: &'a str,
    hellos: Option<(ClientHello, Vec<u8>, Vec<u8>)>,
}

/// What the server does next.
pub(crate) enum Step {
    /// Sends this and waits for the next message.
    Answer(Vec<u8>),
    /// Sends this; the peer is believed.
    Proven(Vec<u8>, Box<ClientHello>),
}

impl<'a> ServerSide<'a> {
    pub(crate) fn new(key: &'a ClusterKey, host: &'a str) -> ServerSide<'a> {
        ServerSide { key, host, hellos: None }
    }

    /// Takes one message; an error is to be sent, and the connection closed.
    pub(crate) fn step(&mut self, service: u16, function: u16, payload: &[u8]) -> Result<Step> {
        match (service, function, self.hellos.take()) {
            (SERVICE, HELLO, None) => {
                let hello = ClientHello::decode(payload)?;
                if hello.version_max < VERSION_MIN || hello.version_min > VERSION {
                    return Err(version_refusal(hello.version_min, hello.version_max));
                }
                let version = hello.version_max.min(VERSION);
                let answer = ServerHello { version, nonce: random()?, host: self.host.to_owned() }.encode();
                self.hellos = Some((hello, payload.to_owned(), answer.clone()));
                Ok(Step::Answer(answer))
            }
            (SERVICE, PROVE, Some((hello, theirs, ours))) => {
                let proof = Proof::decode(payload)?;
                if !self.key.verify(Side::Client, &theirs, &ours, &proof.mac) {
                    return Err(Error::new(
                        ErrorKind::Authentication,
                        format!(
                            "the cluster key of host {} is not this daemon's (host {}); {ADVICE}",
                            hello.host, self.host
                        ),
                    ));
                }
                let mac = self.key.prove(Side::Server, &theirs, &ours);
                Ok(Step::Proven(Proof { mac }.encode(), Box::new(hello)))
            }
            _ => Err(Error::new(
                ErrorKind::Authentication,
                format!("a TCP connection begins with the proof of the cluster key; {ADVICE}"),
            )),
        }
    }
}

/// The caller that a proven hello describes.
pub(crate) fn caller(hello: ClientHello, connection: u64) -> Caller {
    Caller { credentials: hello.credentials, pid: hello.pid, host: Some(hello.host), connection }
}

/// A host name that the other end's decoder accepts.
pub(crate) fn printable_host(host: &str) -> String {
    let clean: String = host.chars().filter(|letter| !letter.is_control()).collect();
    let clean = clip(&clean, HOST_BYTES_MAX);
    if clean.is_empty() { "unknown".to_owned() } else { clean.to_owned() }
}
