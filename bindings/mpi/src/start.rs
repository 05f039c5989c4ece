//! Starts MPI in a program that was not linked with any: finds the library, then calls `MPI_Init`.
//!
//! The library must be the launcher's own, or each rank starts as a world of one. So it is looked
//! for beside the launcher (an ancestor of this process), then beside this program (a virtual
//! environment has both), then under the names that the loader knows. Only libraries that speak the
//! launcher's protocol count: Open MPI's for Open MPI's launcher, all others for PMI.

use crate::library::{LIBRARY_VARIABLE, Mpi, NAMES, adopt, already_loaded};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// Programs that start ranks, by the beginning of their names.
const LAUNCHERS: &[&str] = &["hydra_pmi_proxy", "mpiexec", "mpirun", "orted", "orterun", "prted", "prterun"];
/// How many ancestors are searched for a launcher, because shells and wrappers may be in between.
const ANCESTORS_MAX: usize = 16;
/// Open MPI's library; the other names speak PMI.
const OPEN_MPI: &str = "libmpi.so.40";

/// MPI, initialised by this crate and finalised on drop. Collectives must be dropped before it. It
/// stays on its thread.
pub struct Started {
    mpi: &'static Mpi,
    _one_thread: PhantomData<*const ()>,
}

impl Started {
    /// Finds the launcher's MPI library (or the one that `$ZAZEN_MPI_LIBRARY` names) and
    /// initialises it. Call it once, and not in a program that is linked with MPI.
    ///
    /// Fails with `Mpi` if there is no such library, if MPI is up already, or if `MPI_Init` fails.
    pub fn new() -> Result<Started> {
        if let Some(mpi) = already_loaded().iter().find(|mpi| mpi.is_up()) {
            let context = format!("MPI ({}) is initialised already; use MPI_COMM_WORLD as it is", mpi.file);
            return Err(Error::new(ErrorKind::Mpi, context));
        }
        let open_mpi = std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some();
        let mpi = adopt(match std::env::var_os(LIBRARY_VARIABLE).filter(|named| !named.is_empty()) {
            Some(named) => load(&named)?,
            None => find(open_mpi)?,
        });
        // SAFETY: MPI_Init takes null for both arguments since MPI 2; MPI is not up, as was just
        // found.
        let code = unsafe { (mpi.calls.init)(std::ptr::null_mut(), std::ptr::null_mut()) };
        if code != 0 {
            let context = format!("MPI_Init of {} failed with code {code}; see its own message", mpi.file);
            return Err(Error::new(ErrorKind::Mpi, context));
        }
        Ok(Started { mpi, _one_thread: PhantomData })
    }

    /// The library's file.
    pub fn file(&self) -> &str {
        &self.mpi.file
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // A panicking rank must not wait for the others in MPI_Finalize: its exit ends the job
        // instead.
        if self.mpi.is_up() && !std::thread::panicking() {
            // SAFETY: MPI is up and was initialised on this thread, which the type cannot leave.
            unsafe { (self.mpi.calls.finalize)() };
        }
    }
}

fn load(file: &OsString) -> Result<Mpi> {
    // SAFETY: loading an MPI library runs its initialisers, as linking with it would have. Open
    // MPI's components look its symbols up globally.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| {
        // The loader's message becomes the cause of the error.
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let file = Path::new(file).display();
        Error::new(ErrorKind::Mpi, format!("MPI library {file}: {why}; set {LIBRARY_VARIABLE} to another"))
    })?;
    Mpi::bind(library)
}

fn find(open_mpi: bool) -> Result<Mpi> {
    // A name without a version says nothing about the kind.
    let names = || NAMES.iter().filter(|name| !name.ends_with(".so") && (**name == OPEN_MPI) == open_mpi);
    let own = std::env::current_exe().ok();
    let programs = launcher().into_iter().chain(own);
    let beside = programs.filter_map(|program| Some(program.parent()?.parent()?.join("lib")));
    let files = beside.flat_map(|folder| names().map(move |name| folder.join(name)));
    let files = files.filter(|file| file.is_file()).map(PathBuf::into_os_string);
    let mut why = None;
    for file in files.chain(names().map(OsString::from)) {
        match load(&file) {
            Ok(mpi) => return Ok(mpi),
            Err(error) => why = why.or(Path::new(&file).is_absolute().then_some(error)),
        }
    }
    let names: Vec<&str> = names().copied().collect();
    let what = format!(
        "no MPI library of this launcher's kind found ({}); set {LIBRARY_VARIABLE} to the one that came with \
         it",
        names.join(", ")
    );
    Err(why.unwrap_or_else(|| Error::new(ErrorKind::Mpi, what)))
}

/// The program that started this process as a rank.
fn launcher() -> Option<PathBuf> {
    let mut pid = std::process::id();
    for _ in 0..ANCESTORS_MAX {
        pid = parent(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        if program.file_name().is_some_and(|name| is_launcher(&name.to_string_lossy())) {
            return Some(program);
        }
    }
    None
}

fn is_launcher(name: &str) -> bool {
    LAUNCHERS.iter().any(|launcher| name.starts_with(launcher))
}

/// The parent in a line of /proc/PID/stat, whose second field, in brackets, may hold anything.
fn parent(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_read_past_odd_names() {
        assert_eq!(parent("12 (a) S 7) S 34 12 0"), Some(34));
        assert_eq!(parent("1 (init) S 0 1 1"), None);
        assert_eq!(parent("nonsense"), None);
        assert_eq!(
            std::fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(parent),
            Some(std::os::unix::process::parent_id())
        );
    }

    #[test]
    fn launchers_are_known_by_name() {
        for (name, expected) in [("hydra_pmi_proxy", true), ("mpiexec.hydra", true), ("orterun", true)] {
            assert_eq!(is_launcher(name), expected, "{name}");
        }
        for name in ["bash", "zazen", "python3.11", "slurmstepd"] {
            assert!(!is_launcher(name), "{name}");
        }
    }

    #[test]
    fn a_library_that_cannot_be_is_named() {
        let error = load(&OsString::from("/nowhere/libmpi.so")).err().unwrap();
        assert!(error.to_string().contains("/nowhere/libmpi.so: cannot open"), "{error}");
    }
}
