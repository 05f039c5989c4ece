//! What a client knows of the trajectory files that hold a dataset's frames.

use crate::warn::warn_once;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, Layout, Result, Trajectory};

/// The trajectory of an opened dataset, as it was when the dataset was opened.
#[derive(Clone, Debug)]
pub struct OpenedTrajectory {
    /// Its files. With a daemon, only the daemon knows where each frame is.
    pub trajectory: Arc<Trajectory>,
    /// The directory that the files' paths are relative to.
    pub directory: PathBuf,
}

impl OpenedTrajectory {
    /// The trajectory of the dataset that was opened by `path` and `pattern`, if it is one.
    pub(crate) fn of(
        layout: Option<&Layout>,
        path: &Path,
        pattern: Option<&str>,
    ) -> Option<OpenedTrajectory> {
        let Some(Layout::Trajectory(trajectory)) = layout else { return None };
        // The user named the file itself, perhaps by a link.
        let directory_of = |path: &Path| {
            let file = trajectory.files.first().filter(|_| trajectory.single && pattern.is_none())?;
            let named = path.ends_with(file.path.as_str()) && !path.is_dir();
            path.parent().filter(|_| named).map(Path::to_owned)
        };
        let by_link = || directory_of(&path.canonicalize().ok()?);
        let directory = directory_of(path).or_else(by_link).unwrap_or_else(|| path.to_owned());
        Some(OpenedTrajectory { trajectory: trajectory.clone(), directory })
    }

    /// What is wrong with the files, each with file, frame and byte offset.
    pub fn troubles(&self) -> Vec<String> {
        let files = self.trajectory.files.iter();
        let told = files.filter_map(|file| {
            file.trouble.as_ref()?;
            let (_, why) = self.trajectory.why_not(file.first + file.count);
            Some(format!("{}: {why}", self.directory.display()))
        });
        told.collect()
    }

    /// Warns of what is wrong, so that nobody takes the good frames for all frames.
    pub(crate) fn warn(&self) {
        for trouble in self.troubles() {
            warn_once(&format!("trajectory {trouble}"), &format!("{trouble}. The frames before it are read"));
        }
    }
}

/// Fails with `Stale` unless `now`, which the same dataset gave later, is the trajectory `before`,
/// perhaps with more frames: a reader must not get frames of two files under one dataset.
pub(crate) fn check_goes_on(before: &Trajectory, now: &Trajectory) -> Result<()> {
    let alike = (before.format, before.n_atoms) == (now.format, now.n_atoms);
    for (at, file) in before.files.iter().enumerate() {
        let goes_on = |later| zazen_backing::trajectory::goes_on(before.format, file, later);
        let goes_on = now.files.get(at).is_some_and(goes_on);
        if !alike || !goes_on {
            let what = "was replaced, cut or rewritten since the dataset was opened; open it again";
            return Err(Error::new(ErrorKind::Stale, format!("trajectory {}: {what}", file.path)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::trajectory::Format;
    use zazen_core::{RelPath, TrajectoryFile, Validator};

    #[test]
    fn a_trajectory_goes_on_or_is_another() {
        let one = |inode, count| {
            let file = TrajectoryFile {
                path: RelPath::new("a.xtc").unwrap(),
                first: 0,
                count,
                table: None,
                header: Arc::default(),
                seen: Validator { inode, ..Validator::default() },
                trouble: None,
                samples: None,
            };
            Trajectory { format: Format::Xtc, n_atoms: 3, single: true, files: vec![file] }
        };
        let before = one(7, 2);
        for good in [one(7, 2), one(7, 3), one(0, 2)] {
            check_goes_on(&before, &good).unwrap();
        }
        for bad in [one(8, 2), one(7, 1), Trajectory { n_atoms: 4, ..one(7, 2) }] {
            assert_eq!(check_goes_on(&before, &bad).unwrap_err().kind(), ErrorKind::Stale);
        }
    }
}
