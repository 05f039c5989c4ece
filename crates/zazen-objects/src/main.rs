//! `zazen-objects [--write] LOCATION`: reads an object store for the daemon that started it. With
//! `--write`, which `zazen stage-out` gives, it also writes there ([`write`]).
//!
//! Standard input is a socket that brings connections, one descriptor a message; on each the
//! questions of `zazen_backing::served` are answered. The program ends when the other end closes
//! the socket; before that, it has the store drop the parts of what was not written whole. It
//! believes nothing that the object store sends: ranges, lengths and versions are checked against
//! what was asked for ([`tree`]), and no answer may be longer than it can justify ([`http`]).

mod ahead;
mod errors;
mod http;
mod tree;
mod version;
mod write;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use tree::ObjectTree;
use zazen_backing::objects::{ObjectLocation, Owner, WRITES};
use zazen_backing::served::{answer_peer, answer_writer};
use zazen_core::{Error, ErrorKind, Result};

fn main() -> ExitCode {
    // The credentials of the store are in this process's memory and environment.
    let done = zazen_env::identity::forbid_inspection().and_then(|()| run());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// One line on standard error, which is the daemon's.
fn complain(text: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "zazen-objects: {text}").ok();
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let writes = arguments.next_if(|argument| argument == WRITES).is_some();
    let (Some(told), None) = (arguments.next(), arguments.next()) else {
        let text = "other programs start this one: `zazend --backing s3://BUCKET/PREFIX` reads an object \
                    store, and `zazen stage-out SRC s3://BUCKET/PREFIX` writes to one";
        return Err(Error::new(ErrorKind::Config, text));
    };
    let nobody = Owner { uid: 0, gid: 0, mode: 0o400 };
    let location = ObjectLocation::parse(&told, nobody)?;
    let tree = Arc::new(ObjectTree::new(location, writes)?);
    while let Some(connection) = next_connection()? {
        let tree = tree.clone();
        let talk = move || {
            let mut stream = UnixStream::from(connection);
            // Who started this closed it in the middle of a message: it stopped waiting.
            match writes {
                false => answer_peer(&mut stream, tree).ok(),
                true => answer_writer(&mut stream, tree.clone(), &*tree).ok(),
            };
        };
        // Without a thread the connection is closed, and the daemon's call fails.
        std::thread::Builder::new().name("connection".into()).spawn(talk).ok();
    }
    tree.give_up();
    Ok(())
}

/// The next connection; `None` when the daemon has closed the socket.
fn next_connection() -> Result<Option<OwnedFd>> {
    let failed = |errno: rustix::io::Errno| {
        Error::io("standard input, which must be the socket of a daemon", errno.into())
    };
    loop {
        let (mut byte, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let (stdin, flags) = (std::io::stdin(), RecvFlags::CMSG_CLOEXEC);
        let received = match recvmsg(&stdin, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received.map_err(failed)?,
        };
        let mut descriptors = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
        match descriptor {
            Some(descriptor) => return Ok(Some(descriptor)),
            None if received.bytes == 0 => return Ok(None),
            // This process has no room for the descriptor: the daemon's call fails.
            None if received.flags.contains(ReturnFlags::CTRUNC) => complain("no descriptors are left"),
            None => {}
        }
    }
}
