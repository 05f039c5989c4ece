//! Looking at sources before copies of them are handed out: `zazen_frames::look` decides, this file
//! asks the store.
//!
//! A pushed copy that came without a validator takes over what its source looks like when the two
//! are first compared.

use crate::grown::Comparison;
use crate::node::Node;
use crate::opened::OpenedDataset;
use zazen_core::{Credentials, Error, ErrorKind, Validator};
use zazen_frames::look::{Action, Event, Looking, Refusal, Rules, Verdict};
use zazen_store::CachedFrame;

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
pub fn look(node: &Node, opened: &OpenedDataset, who: &Credentials, group: &[CachedFrame]) -> Vec<Look> {
    let layout = opened.told_layout();
    let (validate, own) = (node.config().validate, opened.viewer.is_own());
    let mut looking = Looking::new(Rules { validate, own, who, layout: layout.as_deref() }, group);
    let mut event = Event::Begin;
    let mut actions = Vec::with_capacity(1);
    let beneath = &opened.at.beneath;
    let (verdicts, mut adopted) = loop {
        looking.step(event, &mut actions);
        event = match actions.pop() {
            Some(Action::StatAll(paths)) => {
                Event::Stats(opened.backing().stat_beneath(beneath, &paths.into()))
            }
            Some(Action::ProbeAll(paths)) => {
                Event::Stats(opened.backing().probe_beneath(beneath, &paths.into()))
            }
            Some(Action::StatFolder) => Event::Folder(opened.backing().stat(beneath).map(drop)),
            Some(Action::IsStoreAway) => Event::StoreAway(opened.is_store_away()),
            Some(Action::Open(at)) => {
                let entry = &group[at];
                let opened = opened.open_source(&entry.source, entry.meta.number.get());
                Event::Opened(opened.map(drop))
            }
            Some(Action::Done(verdicts, adopted)) => break (verdicts, adopted),
            None => unreachable!("a look asks for something or ends"),
        };
    };
    let mut comparison = Comparison::new(node, opened);
    let mut looks = Vec::with_capacity(group.len());
    for (at, (entry, verdict)) in group.iter().zip(verdicts).enumerate() {
        looks.push(match verdict {
            Verdict::Fresh => as_opened(opened, entry),
            Verdict::Stale => Look::Stale,
            Verdict::Refused(refusal) => Look::Refused(tell(opened, entry, refusal)),
            Verdict::Grown(now) => match comparison.is_same(entry) {
                Ok(true) => {
                    // The next look need not compare bytes, unless the file grows again.
                    if !now.unsettled {
                        adopted.push((at, now));
                    }
                    Look::Fresh
                }
                Ok(false) => Look::Stale,
                Err(error) => Look::Refused(error),
            },
        });
    }
    adopt(node, opened, group, &adopted);
    looks
}

/// Blocks of a file: a copy goes out only if it is of the version that was opened. Where the source
/// is of that version and the copy is not (sources are taken not to change), the copy is stale.
fn as_opened(opened: &OpenedDataset, entry: &CachedFrame) -> Look {
    let Err(error) = entry.meta.validator.map_or(Ok(()), |copy| opened.check_version(&copy)) else {
        return Look::Fresh;
    };
    let path = opened.at.beneath.join(entry.source.path.as_str());
    let now = path.and_then(|path| opened.backing().stat(&path));
    match now.and_then(|now| opened.check_version(&now.validator)) {
        Ok(()) => Look::Stale,
        Err(_) => Look::Refused(error),
    }
}

fn adopt(node: &Node, opened: &OpenedDataset, group: &[CachedFrame], adopted: &[(usize, Validator)]) {
    let adopted: Vec<_> = adopted.iter().map(|(at, validator)| (&group[*at], *validator)).collect();
    if !adopted.is_empty()
        && let Err(error) = node.store.adopt(&opened.series(), &adopted)
    {
        tracing::warn!("note what sources of {} look like: {error}", opened.spelled());
    }
}

fn tell(opened: &OpenedDataset, entry: &CachedFrame, refusal: Refusal) -> Error {
    let number = entry.meta.number;
    match refusal {
        Refusal::Deleted => Error::new(
            ErrorKind::NotFound,
            format!("frame {number} of {}: its source {} was deleted", opened.spelled(), entry.source.path),
        ),
        Refusal::Denied(error) => opened.denied(number.get(), &error),
        Refusal::Unknowable(error) => opened.unknowable(error),
        Refusal::NotOpened(error) => error,
        Refusal::Failed(error) => error.within(format!("frame {number} of {}", opened.spelled())),
    }
}
