//! How a reader reaches its daemon.

use crate::cluster::{CONNECT_TIMEOUT, Remote, Target};
use crate::trajectory::check_goes_on;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zazen_backing::dataset::layout_of_pattern;
use zazen_core::{Blocks, Error, ErrorKind, Layout, Result};

/// How long a daemon may take for one batch of a scan, with its misses, before it counts as dead.
pub(crate) const SCAN_TIMEOUT: Duration = Duration::from_secs(300);

/// How to reach the daemon and what to ask it for.
#[derive(Clone, Debug)]
pub(crate) struct DaemonSpec {
    pub target: Target,
    /// The dataset as the daemon knows it.
    pub path: PathBuf,
    pub pattern: Option<String>,
    /// The layout or pattern that names the frames, as the daemon reported it when the dataset was
    /// opened.
    pub layout: Option<Arc<Layout>>,
    /// The node's name.
    pub node: String,
    /// How long the daemon may be silent before it counts as dead.
    pub silence: Duration,
}

impl DaemonSpec {
    /// How long a healthy daemon may take to connect or to answer a ping.
    pub(crate) fn patience(&self) -> Duration {
        self.silence.min(CONNECT_TIMEOUT)
    }

    /// A new connection with the dataset opened on it.
    pub(crate) fn open(&self) -> Result<(Remote, u32)> {
        let mut remote = self.connect()?;
        let handle = self.open_on(&mut remote)?;
        Ok((remote, handle))
    }

    /// A new connection that gives up a silent daemon.
    pub(crate) fn connect(&self) -> Result<Remote> {
        let mut remote = Remote::connect(&self.target, None)?;
        remote.set_timeout(Some(SCAN_TIMEOUT.max(self.silence)));
        remote.give_up_after(self.silence);
        Ok(remote)
    }

    /// Opens the dataset over `remote`: its handle there.
    pub(crate) fn open_on(&self, remote: &mut Remote) -> Result<u32> {
        // The frames are those that were found when the dataset was opened; an object store at a
        // distance is not asked for their names again.
        let found = || self.layout.as_deref().and_then(pattern_of);
        let info = remote.open(&self.path, self.pattern.clone().or_else(found).as_deref(), false)?;
        check_same_version(self.layout.as_deref(), info.layout.as_ref())?;
        Ok(info.handle)
    }
}

/// The pattern that means `layout`, if there is one.
fn pattern_of(layout: &Layout) -> Option<String> {
    let Layout::Files(template) = layout else { return None };
    let pattern = template.to_string();
    // A file's own name may hold what means something else in a pattern.
    let is_same = matches!(layout_of_pattern(&pattern), Ok(Layout::Files(meant)) if meant == *template)
        && Blocks::parse_pattern(&pattern).is_none();
    is_same.then_some(pattern)
}

/// Fails with `Stale` if `now` is of another version of a file than `before`, which was opened
/// first, or if a frame of a list has another number now. A trajectory and a list may have grown.
pub(crate) fn check_same_version(before: Option<&Layout>, now: Option<&Layout>) -> Result<()> {
    if let (Some(before), Some(now)) = (before.and_then(Layout::trajectory), now.and_then(Layout::trajectory))
    {
        return check_goes_on(before, now);
    }
    if let (Some(Layout::List(before)), Some(Layout::List(now))) = (before, now) {
        let changed = before.iter().zip(now.iter()).position(|(before, now)| before != now);
        return match changed.or((now.len() < before.len()).then_some(now.len())) {
            None => Ok(()),
            Some(number) => Err(Error::new(
                ErrorKind::Stale,
                format!(
                    "frame {number} was the file {} when the dataset was opened, and is another now, because \
                     files came or went; open it again",
                    before[number]
                ),
            )),
        };
    }
    match (before.and_then(Layout::blocks), now.and_then(Layout::blocks)) {
        (Some(before), Some(now)) => before.check_version(&now.version),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::NameTemplate;

    #[test]
    fn a_layout_found_by_names_is_asked_for_by_its_pattern() {
        for pattern in ["frame-{n:04}.dcd", "step{n}/data.vtu", "{n}"] {
            let layout = Layout::Files(NameTemplate::parse(pattern).unwrap());
            assert_eq!(pattern_of(&layout).as_deref(), Some(pattern));
        }
        assert_eq!(pattern_of(&Layout::List(Arc::new(vec![]))), None);
    }
}
