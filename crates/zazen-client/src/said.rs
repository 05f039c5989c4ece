//! One warning for a job instead of one for each rank.
//!
//! The first rank to claim a text says it; a claim is a file in the user's state folder, named
//! after the job and the text. A batch system's job has one name on all machines, so that a state
//! folder which they share gives one warning for the job. Without a batch system, the ranks of one
//! launcher process share a claim: one warning for each machine. Without a launcher, or without a
//! folder, each process warns.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use zazen_wire::checksum::frame_checksum;

/// Claims are removed when they are older: the job is over, or may say it again.
const AGE_MAX: Duration = Duration::from_secs(86_400);

/// Whether this process is the one of its job that says `text`.
pub(crate) fn is_ours(text: &str) -> bool {
    let variable = |name: &str| std::env::var(name).ok();
    let ranks = zazen_core::launcher::rank_of_ranks(variable).map_or(1, |(_, ranks)| ranks);
    let (true, Some(job), Some(folder)) = (ranks > 1, job(), folder()) else { return true };
    claim(&folder, &job, text)
}

/// A name of the job that its ranks share: the batch job's step, or the process that launched them.
fn job() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let names = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMIX_NAMESPACE"];
    if let Some(job) = names.into_iter().find_map(variable) {
        let step = variable("SLURM_STEP_ID").unwrap_or_default();
        return Some(format!("{job}.{step}"));
    }
    let parent = std::os::unix::process::parent_id();
    // A process number is used again; with its start time it is not.
    let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).ok()?;
    let start = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.to_owned();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Some(format!("{host}.{parent}.{start}"))
}

fn folder() -> Option<PathBuf> {
    Some(crate::record_folder::folder()?.parent()?.join("said"))
}

fn claim(folder: &Path, job: &str, text: &str) -> bool {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    if made.is_err() {
        return true;
    }
    let name = folder.join(format!("{:016x}", frame_checksum(format!("{job}\n{text}").as_bytes())));
    let mut options = std::fs::OpenOptions::new();
    let claimed = options.write(true).create_new(true).mode(0o600).open(name);
    match claimed {
        Ok(_) => {
            remove_old(folder);
            true
        }
        Err(error) => error.kind() != std::io::ErrorKind::AlreadyExists,
    }
}

fn remove_old(folder: &Path) {
    let Ok(listed) = std::fs::read_dir(folder) else { return };
    for entry in listed.flatten() {
        let age = entry.metadata().and_then(|found| found.modified()).ok();
        let age = age.and_then(|modified| SystemTime::now().duration_since(modified).ok());
        if age.is_some_and(|age| age > AGE_MAX) {
            // Another rank may have removed it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_job_says_it() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("said");
        assert!(claim(&folder, "7.0", "no daemon"));
        assert!(!claim(&folder, "7.0", "no daemon"));
        assert!(claim(&folder, "7.0", "another") && claim(&folder, "8.0", "no daemon"));
    }

    #[test]
    fn without_a_folder_each_says_it() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(claim(&file.join("said"), "7.0", "x") && claim(&file.join("said"), "7.0", "x"));
    }

    #[test]
    fn old_claims_go() {
        let home = tempfile::tempdir().unwrap();
        let old = home.path().join("old");
        let file = std::fs::File::create(&old).unwrap();
        file.set_modified(SystemTime::now() - 2 * AGE_MAX).unwrap();
        assert!(claim(home.path(), "7.0", "x"));
        assert!(!old.exists());
    }
}
