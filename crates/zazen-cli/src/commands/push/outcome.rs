//! What a push came to.

use crate::output::{self, human_bytes};
use serde_json::json;
use std::path::Path;
use zazen_client::Written;
use zazen_core::{Error, ErrorKind, Result};
use zazen_push::Counters;

/// Whether the push as a whole counts as done: single frames may be skipped, the backing store has
/// them.
pub(super) fn judge(counters: &Counters, nodes: &str) -> Result<()> {
    if counters.refused > 0 {
        let what = format!("{} frames were refused; the lines above say why", counters.refused);
        return Err(Error::new(ErrorKind::Conflict, what));
    }
    if counters.submitted > 0 && counters.pushed + counters.already_there == 0 {
        let what = format!(
            "none of {} frames reached a node; see `zazen status --nodes {nodes}`",
            counters.submitted
        );
        return Err(Error::new(ErrorKind::Unavailable, what));
    }
    Ok(())
}

/// Whether all files are with the object store. It is their permanent home, so none may be missing.
pub(super) fn judge_written(written: &Written) -> Result<()> {
    match written.failed {
        0 => Ok(()),
        failed => Err(Error::new(
            ErrorKind::Unavailable,
            format!("{failed} files failed; the lines above say why. Mend that and run it again"),
        )),
    }
}

/// Prints what became of the frames, and why some were not pushed. `written`: what was written to
/// an object store before.
pub(super) fn tell(
    dataset: &Path,
    counters: &Counters,
    written: Option<&Written>,
    problems: &[String],
    as_json: bool,
) {
    for problem in problems {
        output::note(problem);
    }
    if as_json {
        let written = written.map(|written| {
            json!({
                "written": written.written,
                "written_bytes": written.written_bytes,
                "there": written.there,
                "failed": written.failed,
            })
        });
        return output::json(&json!({
            "write_through": written,
            "dataset": dataset,
            "submitted": counters.submitted,
            "pushed": counters.pushed,
            "already_there": counters.already_there,
            "skipped": skipped(counters),
            "skipped_slow": counters.skipped_slow,
            "skipped_no_node": counters.skipped_no_node,
            "refused": counters.refused,
            "resent": counters.resent,
            "node_deaths": counters.node_deaths,
            "bytes_pushed": counters.bytes_pushed,
            "problems": problems,
        }));
    }
    if let Some(written) = written {
        output::line(format!(
            "{}: {} objects written ({}), {} were there, {} failed",
            dataset.display(),
            written.written,
            human_bytes(written.written_bytes),
            written.there,
            written.failed
        ));
    }
    output::line(format!(
        "{}: {} frames seen: {} pushed ({}), {} there already, {} skipped (nodes too slow), {} skipped (no \
         node alive or with room), {} refused; {} resent, {} deaths of nodes",
        dataset.display(),
        counters.submitted,
        counters.pushed,
        human_bytes(counters.bytes_pushed),
        counters.already_there,
        counters.skipped_slow,
        counters.skipped_no_node,
        counters.refused,
        counters.resent,
        counters.node_deaths,
    ));
}

/// Frames that were left out.
pub(super) fn skipped(counters: &Counters) -> u64 {
    counters.skipped_slow + counters.skipped_no_node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_fails_if_frames_are_refused_or_none_arrives() {
        let check = |counters: Counters, good| {
            assert_eq!(judge(&counters, "n1").is_ok(), good, "{counters:?}");
        };
        check(Counters::default(), true);
        check(Counters { submitted: 2, pushed: 1, skipped_slow: 1, ..Counters::default() }, true);
        check(Counters { submitted: 1, already_there: 1, ..Counters::default() }, true);
        check(Counters { submitted: 1, skipped_no_node: 1, ..Counters::default() }, false);
        check(Counters { submitted: 2, pushed: 1, refused: 1, ..Counters::default() }, false);
    }

    #[test]
    fn a_file_that_is_not_written_fails_the_push() {
        assert!(judge_written(&Written { written: 1, there: 1, ..Written::default() }).is_ok());
        assert!(judge_written(&Written { written: 1, failed: 1, ..Written::default() }).is_err());
    }
}
