//! PUSH: a frame comes in as a native.
//!
//! Invariant: a local caller can push only what it could have written to the backing store itself: it claims no
//! owner but itself, and it may write to the dataset's directory (or, while that doesn't exist, to the nearest one
//! above that does). Otherwise one user could plant false frames in another's dataset. A remote caller holds the
//! cluster key and is believed.

use crate::node::Node;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zazen_backing::{Backing, SourceStat};
use zazen_call::{Call, Caller};
use zazen_core::limits::FRAME_BYTES_MAX;
use zazen_core::{Credentials, Error, ErrorKind, FrameMeta, Origin, Result, Validator};
use zazen_store::Stored;
use zazen_wire::frames::{Push, Pushed};

use crate::backing_roots::Located;

/// Bytes taken from the connection at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// How long a caller that was found to be allowed to push to a dataset stays so.
const ALLOWED_FOR: Duration = Duration::from_secs(10);

pub(super) fn push(node: &Arc<Node>, caller: &Caller, ask: Push, call: Call<'_>) -> Result<Pushed> {
    let result = take_in(node, caller, &ask, call);
    let counters = &node.counters;
    match &result {
        Ok(Pushed::Stored) => {
            counters.pushes.add(1);
            counters.push_bytes.add(ask.meta.length);
        }
        Ok(Pushed::AlreadyHere) => counters.pushes_already_here.add(1),
        Err(_) => counters.push_failures.add(1),
    }
    result.map_err(|error| error.within(format!("push frame {} of {}", ask.meta.number, ask.dataset)))
}

fn take_in(node: &Arc<Node>, caller: &Caller, ask: &Push, call: Call<'_>) -> Result<Pushed> {
    node.admit()?;
    let at = node.roots.locate(&ask.dataset)?;
    check_form(ask, call.bulk_bytes)?;
    check_caller(node, caller, ask, &at)?;
    let series = at.series(&ask.series)?;
    // The writer says that the file is whole: however young it is, there is nothing to wait for.
    let meta = FrameMeta { validator: ask.meta.validator.map(Validator::settled), ..ask.meta.clone() };
    let mut put = node.store.put(&series, &ask.source, &meta, Origin::Native)?;
    let mut buffer = vec![0; ask.meta.length.clamp(1, CHUNK_BYTES as u64) as usize];
    let mut left = ask.meta.length;
    while left > 0 {
        let wanted = left.min(buffer.len() as u64) as usize;
        let part = &mut buffer[..wanted];
        call.bulk.read_exact(part).map_err(|error| Error::io("the writer went away in mid-frame", error))?;
        put.write(part)?;
        left -= wanted as u64;
    }
    Ok(match put.commit()? {
        Stored::Stored => Pushed::Stored,
        Stored::AlreadyHere => Pushed::AlreadyHere,
    })
}

fn check_form(ask: &Push, bulk_bytes: u64) -> Result<()> {
    let refuse = |kind, why: String| Err(Error::new(kind, why));
    if ask.meta.length > FRAME_BYTES_MAX {
        let length = ask.meta.length;
        return refuse(
            ErrorKind::TooLarge,
            format!(
                "{length} bytes are beyond the limit of {FRAME_BYTES_MAX} for a frame; cut it into frames"
            ),
        );
    }
    if ask.meta.length != bulk_bytes {
        return refuse(
            ErrorKind::InvalidArgument,
            format!("{} bytes are announced, {bulk_bytes} follow", ask.meta.length),
        );
    }
    if ask.source.path.is_root() {
        return refuse(
            ErrorKind::InvalidArgument,
            "its file name is empty; name its file beneath the dataset".into(),
        );
    }
    if ask.source.length.is_some_and(|length| length != ask.meta.length) {
        return refuse(ErrorKind::InvalidArgument, "its source's length is not its own".into());
    }
    let is_part = ask.source.offset != 0 || ask.source.length.is_some();
    if !ask.series.may_hold(ask.source.path.as_str(), ask.meta.number, is_part) {
        let (file, series) = (&ask.source.path, &ask.series);
        return refuse(
            ErrorKind::InvalidArgument,
            format!("its file {file} is none of {series}; push it with the pattern that its readers use"),
        );
    }
    Ok(())
}

fn check_caller(node: &Node, caller: &Caller, ask: &Push, at: &Located) -> Result<()> {
    if node.is_operator(caller) {
        return Ok(());
    }
    let who = &caller.credentials;
    if ask.meta.uid != who.uid || !(ask.meta.gid == who.gid || who.groups.contains(&ask.meta.gid)) {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "it claims to belong to user {} and group {}; user {} may push only its own frames",
                ask.meta.uid, ask.meta.gid, who.uid
            ),
        ));
    }
    let fresh = |session: &mut crate::session::Session| {
        session.push_allowed.get(&at.dataset).is_some_and(|since| since.elapsed() < ALLOWED_FOR)
    };
    if node.sessions.with(caller.connection, fresh) {
        return Ok(());
    }
    if !may_write(at, who)? {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            format!("user {} may not write to the dataset's directory on the backing store", who.uid),
        ));
    }
    node.sessions.with(caller.connection, |session| {
        session.push_allowed.insert(at.dataset.clone(), Instant::now());
    });
    Ok(())
}

fn may_write(at: &Located, who: &Credentials) -> Result<bool> {
    let mut folder = at.beneath.clone();
    loop {
        let stat = match at.root.backing.stat(&folder) {
            Ok(stat) => stat,
            Err(error) if error.kind() == ErrorKind::NotFound => match folder.split() {
                Some((above, _)) => {
                    folder = above;
                    continue;
                }
                None => return Err(error),
            },
            Err(error) => return Err(error),
        };
        return Ok(writable(who, &stat) && at.root.backing.may_search(who, &folder)?);
    }
}

fn writable(who: &Credentials, stat: &SourceStat) -> bool {
    // The write bits, moved to where the rule for reading looks.
    stat.is_dir && who.may_read(stat.uid, stat.gid, (stat.mode & 0o222) << 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_follows_the_kernels_rule() {
        let who = Credentials { uid: 7, gid: 8, groups: vec![9] };
        let check = |uid, gid, mode, expected| {
            let validator = Validator::default();
            let stat = SourceStat { validator, uid, gid, mode, is_dir: true };
            assert_eq!(writable(&who, &stat), expected, "{uid} {gid} {mode:o}");
        };
        check(7, 0, 0o700, true);
        check(7, 0, 0o577, false);
        check(0, 9, 0o020, true);
        check(0, 9, 0o702, false);
        check(0, 0, 0o002, true);
        check(0, 0, 0o775, false);
    }
}
