//! Looking at sources before copies of them are handed out: does the copy still stand for its source, and may this user
//! read that source now?
//!
//! Invariants: a user other than the daemon's own gets a copy only if its own rights have just opened the source; one
//! question to the store for a whole group. The daemon's own user is not asked about each frame: it can read the
//! cache's files.

use crate::config::Validate;
use crate::guarded_backing::is_outage;
use crate::node::{Node, Opened};
use std::collections::HashMap;
use std::sync::Arc;
use zazen_backing::SourceStat;
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result, Source};
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
    match opened.viewer.is_own() {
        true => as_own(node, opened, who, group),
        false => as_other(node, opened, group),
    }
}

fn as_own(node: &Node, opened: &Opened, who: &Credentials, group: &[Entry]) -> Vec<Look> {
    let recorded = |entry: &Entry| (entry.meta.uid, entry.meta.gid, entry.meta.mode);
    let unchecked = || group.iter().map(|entry| (Look::Fresh, recorded(entry))).collect();
    let looks: Vec<(Look, _)> = if node.config.validate == Validate::Never {
        unchecked()
    } else {
        let (asked, paths) = sources_of(group, false);
        match stat_all(opened, paths) {
            Some(stats) => group
                .iter()
                .zip(asked)
                .map(|(entry, at)| match at.and_then(|at| stats.get(at)) {
                    Some(Ok(stat)) => (compare(entry, stat), (stat.uid, stat.gid, stat.mode)),
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
    // Not a frame's but the dataset's directory is gone: rather a mount's trouble than deleted frames.
    let is_away = stats.iter().all(Result::is_err) && opened.backing().stat(beneath).is_err();
    (!is_away).then_some(stats)
}

fn as_other(node: &Node, opened: &Opened, group: &[Entry]) -> Vec<Look> {
    let (asked, paths) = sources_of(group, true);
    let paths: Arc<[RelPath]> = paths.into();
    let beneath = &opened.at.beneath;
    let probed = opened.backing().probe_beneath(beneath, &paths);
    let away = match &probed {
        Err(error) => Some(copy_of(error)),
        Ok(probed) if probed.iter().all(Result::is_err) => {
            let gone = |error: &Error| error.kind() == ErrorKind::NotFound || is_outage(error);
            opened.backing().stat(beneath).err().filter(gone)
        }
        Ok(_) => None,
    };
    if let Some(why) = away {
        let verdict = |entry: &Entry| match opened.may_have_unasked(node, &entry.meta, &entry.source) {
            true => Look::Fresh,
            false => Look::Refused(opened.unknowable(copy_of(&why))),
        };
        return group.iter().map(verdict).collect();
    }
    let probed = probed.unwrap_or_default();
    let mut folder_noted: Option<RelPath> = None;
    let verdict = |(entry, at): (&Entry, Option<usize>)| {
        let number = entry.meta.number.get();
        match at.and_then(|at| probed.get(at)) {
            Some(Ok(stat)) => {
                let folder = opened.folder_of(&entry.source);
                if folder != folder_noted {
                    folder.iter().for_each(|folder| node.seen.note(&opened.viewer, folder));
                    folder_noted = folder;
                }
                match node.config.validate {
                    Validate::Always => compare(entry, stat),
                    Validate::Never => Look::Fresh,
                }
            }
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => Look::Refused(deleted(opened, entry)),
            Some(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
                let folder = opened.folder_of(&entry.source);
                folder.iter().for_each(|folder| node.seen.forget(&opened.viewer, folder));
                Look::Refused(opened.denied(number, error))
            }
            Some(Err(error)) if is_outage(error) => {
                match opened.may_have_unasked(node, &entry.meta, &entry.source) {
                    true => Look::Fresh,
                    false => Look::Refused(opened.unknowable(copy_of(error))),
                }
            }
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

fn compare(entry: &Entry, stat: &SourceStat) -> Look {
    let changed = entry.meta.validator.is_some_and(|validator| validator != stat.validator);
    // The recorded mode decides while the store is away: it must not allow more than the source does.
    let narrowed = entry.meta.mode & !stat.mode & 0o444 != 0;
    if changed || narrowed { Look::Stale } else { Look::Fresh }
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

/// The source files of `group`, each once, and for each frame which of them is its own; `None` for a frame that has
/// nothing to compare, unless `all` are wanted.
fn sources_of(group: &[Entry], all: bool) -> (Vec<Option<usize>>, Vec<RelPath>) {
    let mut paths: Vec<RelPath> = Vec::with_capacity(group.len());
    let mut shared: HashMap<&RelPath, usize> = HashMap::new();
    let mut add = |path: &RelPath| {
        paths.push(path.clone());
        paths.len() - 1
    };
    let is_whole = |source: &Source| source.offset == 0 && source.length.is_none();
    let asked = group.iter().map(|entry| {
        if !all {
            entry.meta.validator.as_ref()?;
        }
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
