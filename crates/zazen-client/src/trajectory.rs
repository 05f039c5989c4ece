//! What a client knows of the trajectory files that hold a dataset's frames.

use crate::warn::warn_once;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zazen_core::{Layout, Trajectory};

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
        let by_name = |file: &zazen_core::TrajectoryFile| path.ends_with(file.path.as_str());
        let is_file = trajectory.single
            && pattern.is_none()
            && trajectory.files.first().is_some_and(by_name)
            && !path.is_dir();
        let directory = if is_file { path.parent().unwrap_or(path) } else { path };
        Some(OpenedTrajectory { trajectory: trajectory.clone(), directory: directory.to_owned() })
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
