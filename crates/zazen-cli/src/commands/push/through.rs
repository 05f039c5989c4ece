//! `zazen push --write-through`: files become objects of an object store, then frames.

use super::outcome::{judge, judge_written, tell};
use super::{Push, Submit};
use crate::output;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use zazen_backing::objects::ObjectLocation;
use zazen_client::{FrameSource, WriteThrough, WriteThroughOptions};
use zazen_core::{Error, FrameNo, Layout, Result};

/// Writes and pushes what `arguments` name: files of `directory`.
pub(super) fn run(
    arguments: &Push,
    location: &ObjectLocation,
    directory: &Path,
    pattern: Option<&str>,
    layout: Option<&Layout>,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let spinner = output::spinner("watching");
    let options = WriteThroughOptions {
        location: location.clone(),
        uploads: arguments.uploads.into(),
        bytes_max: arguments.window_bytes,
        // While a simulation runs, its object store may be away for a while.
        patient: arguments.watch.is_some(),
    };
    let shown = spinner.clone();
    let say = move |name: &str, error: &Error| shown.suspend(|| output::note(format!("{name}: {error}")));
    let push = arguments.options()?;
    let through = WriteThrough::new(directory, pattern, &options, push, Arc::clone(stop), Box::new(say))?;
    let mut submit = |number: FrameNo, bytes: Vec<u8>, source: FrameSource| {
        let modified_ns = modified_ns(directory, &source)?;
        through.submit(number, bytes, source, modified_ns)
    };
    let submit: &mut Submit<'_> = &mut submit;
    let outcome = match &arguments.watch {
        Some(_) => arguments.watch(directory, through.pusher(), &spinner, submit, stop),
        None => {
            spinner.finish_and_clear();
            arguments.push_files(submit, layout, stop)
        }
    };
    let (written, counters, problems) = through.finish();
    let dataset = location.root();
    tell(Path::new(&dataset), &counters, Some(&written), &problems, arguments.json);
    outcome?;
    judge_written(&written)
        .and_then(|()| judge(&counters, arguments.nodes.as_deref().unwrap_or_default()))
        .map_err(|error| error.within(dataset))
}

/// When the file was changed. A watch has looked at it.
fn modified_ns(directory: &Path, source: &FrameSource) -> Result<i64> {
    if let Some(seen) = source.validator {
        return Ok(seen.mtime_ns);
    }
    let at = directory.join(source.name.as_deref().unwrap_or_default());
    Ok(zazen_backing::directory::stat_local(&at)?.validator.mtime_ns)
}
