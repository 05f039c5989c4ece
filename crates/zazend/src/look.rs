//! Looking at sources before copies of them are handed out: does the copy still stand for its source, and may this user
//! read that source now?
//!
//! A copy stands for its source if the layout that the reader's side tells names just this source for its number, and the
//! source looks as it did when it was copied: owner, size, times, inode. A pushed copy that came without a validator
//! takes over what its source looks like when it is first compared.
//!
//! Invariants: a user other than the daemon's own gets a copy only if its own rights have just opened the source; one
//! question to the store for a whole group. The daemon's own user is not asked about each frame: it can read the
//! cache's files.

use crate::config::Validate;
use crate::guarded_backing::is_outage;
use crate::node::{Node, Opened};
use std::cell::LazyCell;
use std::collections::HashMap;
use std::sync::Arc;
use zazen_backing::SourceStat;
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result, Source, Validator};
use zazen_frames::stale::{is_same_file, stands_for};
use zazen_store::Entry;

/// What comparing a copy with its source says.
pub enum Look {
    /// It may be handed out.
    Fresh,
    /// The source changed.
    Stale,
    /// The source is gone, or the user may not read it, or nobody can tell.
    Refused(Error),
}

/// Looks at the sources of `group` for `who`, the user of `opened`.
pub fn look(node: &Node, opened: &Opened, who: &Credentials, group: &[Entry]) -> Vec<Look> {
    let layout = opened.told_layout();
    let is_named =
        |entry: &Entry| layout.as_ref().is_none_or(|layout| layout.gives(entry.meta.number, &entry.source));
    let mut adopted = Vec::new();
    let looks = match opened.viewer.is_own() {
        true => as_own(node, opened, who, group, &mut adopted),
        false => as_other(node, opened, group, &mut adopted),
    };
    let looks: Vec<Look> = group
        .iter()
        .zip(looks)
        .map(|(entry, look)| if is_named(entry) { look } else { Look::Stale })
        .collect();
    adopted.retain(|(entry, _): &(&Entry, Validator)| is_named(entry));
    if !adopted.is_empty()
        && let Err(error) = node.store.adopt(&opened.series(), &adopted)
    {
        tracing::warn!("note what sources of {} look like: {error}", opened.spelled());
    }
    looks
}

fn as_own<'a>(
    node: &Node,
    opened: &Opened,
    who: &Credentials,
    group: &'a [Entry],
    adopted: &mut Adopted<'a>,
) -> Vec<Look> {
    let recorded = |entry: &Entry| (entry.meta.uid, entry.meta.gid, entry.meta.mode);
    let unchecked = || group.iter().map(|entry| (Look::Fresh, recorded(entry))).collect();
    let looks: Vec<(Look, _)> = if node.config.validate == Validate::Never {
        unchecked()
    } else {
        let (asked, paths) = sources_of(group);
        match stat_all(opened, paths) {
            Some(stats) => group
                .iter()
                .zip(asked)
                .map(|(entry, at)| match at.and_then(|at| stats.get(at)) {
                    Some(Ok(stat)) => (compare(entry, stat, adopted), (stat.uid, stat.gid, stat.mode)),
                    Some(Err(error)) if error.kind() == ErrorKind::NotFound => {
                        (Look::Refused(deleted(opened, entry)), recorded(entry))
                    }
                    _ => (Look::Fresh, recorded(entry)),
                })
                .collect(),
            None => unchecked(),
        }
    };
    let verdict = |(entry, (look, (uid, gid, mode))): (&Entry, (Look, (u32, u32, u32)))| match look {
        // Mode bits do not tell of access lists; opening the file does.
        Look::Fresh if !who.may_read(uid, gid, mode) => {
            let opened_now = opened.open_source(&entry.source, entry.meta.number.get());
            opened_now.map_or_else(Look::Refused, |_| Look::Fresh)
        }
        look => look,
    };
    group.iter().zip(looks).map(verdict).collect()
}

/// The stats of sources; `None` where the store does not answer for them.
fn stat_all(opened: &Opened, paths: Vec<RelPath>) -> Option<Vec<Result<SourceStat>>> {
    if paths.is_empty() {
        return None;
    }
    let beneath = &opened.at.beneath;
    let stats = opened.backing().stat_beneath(beneath, &paths.into()).ok()?;
    let is_away = stats.iter().all(Result::is_err)
        && opened.backing().stat(beneath).is_err_and(|error| error.kind() != ErrorKind::NotFound);
    (!is_away).then_some(stats)
}

fn as_other<'a>(node: &Node, opened: &Opened, group: &'a [Entry], adopted: &mut Adopted<'a>) -> Vec<Look> {
    let (asked, paths) = sources_of(group);
    let paths: Arc<[RelPath]> = paths.into();
    let beneath = &opened.at.beneath;
    let probed = opened.backing().probe_beneath(beneath, &paths);
    let away = match &probed {
        Err(error) => Some(copy_of(error)),
        Ok(probed) if probed.iter().all(Result::is_err) => {
            // That its directory is not there says a store that answers: whoever pushed such a frame may have meant
            // another file than the one that comes.
            opened.backing().stat(beneath).err().filter(is_outage)
        }
        Ok(_) => None,
    };
    let store_away = LazyCell::new(|| opened.is_store_away());
    let unasked = |entry: &Entry, why: &Error| match opened.owns(&entry.meta) && *store_away {
        true => Look::Fresh,
        false => Look::Refused(opened.unknowable(copy_of(why))),
    };
    if let Some(why) = away {
        return group.iter().map(|entry| unasked(entry, &why)).collect();
    }
    let probed = probed.unwrap_or_default();
    let verdict = |(entry, at): (&'a Entry, Option<usize>)| {
        let number = entry.meta.number.get();
        match at.and_then(|at| probed.get(at)) {
            Some(Ok(stat)) => match node.config.validate {
                Validate::Always => compare(entry, stat, adopted),
                Validate::Never if is_same_file(&entry.meta, stat) => Look::Fresh,
                Validate::Never => Look::Stale,
            },
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => Look::Refused(deleted(opened, entry)),
            Some(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
                Look::Refused(opened.denied(number, error))
            }
            Some(Err(error)) if is_outage(error) => unasked(entry, error),
            Some(Err(error)) => {
                Look::Refused(copy_of(error).within(format!("frame {number} of {}", opened.spelled())))
            }
            None => Look::Refused(Error::new(ErrorKind::Io, format!("frame {number} was not looked at"))),
        }
    };
    group.iter().zip(asked).map(verdict).collect()
}

fn copy_of(error: &Error) -> Error {
    Error::new(error.kind(), error.to_string())
}

/// Frames that came without a validator, and the one that their sources have.
type Adopted<'a> = Vec<(&'a Entry, Validator)>;

fn compare<'a>(entry: &'a Entry, stat: &SourceStat, adopted: &mut Adopted<'a>) -> Look {
    if !stands_for(&entry.meta, &entry.source, stat) {
        return Look::Stale;
    }
    if entry.meta.validator.is_none() && !stat.validator.unsettled {
        adopted.push((entry, stat.validator));
    }
    Look::Fresh
}

fn deleted(opened: &Opened, entry: &Entry) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!(
            "frame {} of {}: its source {} was deleted",
            entry.meta.number,
            opened.spelled(),
            entry.source.path
        ),
    )
}

/// The source files of `group`, each once, and for each frame which of them is its own.
fn sources_of(group: &[Entry]) -> (Vec<Option<usize>>, Vec<RelPath>) {
    let mut paths: Vec<RelPath> = Vec::with_capacity(group.len());
    let mut shared: HashMap<&RelPath, usize> = HashMap::new();
    let mut add = |path: &RelPath| {
        paths.push(path.clone());
        paths.len() - 1
    };
    let is_whole = |source: &Source| source.offset == 0 && source.length.is_none();
    let asked = group.iter().map(|entry| {
        let path = &entry.source.path;
        // A frame that is all of its file has no other to share it with.
        Some(if is_whole(&entry.source) {
            add(path)
        } else {
            *shared.entry(path).or_insert_with(|| add(path))
        })
    });
    (asked.collect(), paths)
}
