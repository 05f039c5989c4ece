//! Finds the MPI library of this process and binds the calls that the collectives need.
//!
//! `ompi_mpi_comm_world` identifies Open MPI, and the file name `libmpi_abi*` the standard ABI. The
//! symbol `MPI_Abi_get_version` does not show the ABI: MPICH 5 and Intel MPI export it from the
//! library of their own ABI too.

use crate::abi::{self, Abi, Constants, Handle};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::sync::Mutex;
use zazen_core::{Error, ErrorKind, Result};

/// Names under which MPI libraries are found; the standard ABI first, unversioned names (which need
/// a development package) last.
pub(crate) const NAMES: &[&str] = &[
    "libmpi_abi.so.1",
    "libmpi_abi.so.0",
    "libmpi.so.12",
    "libmpi.so.40",
    "libmpich.so.12",
    "libmpi_abi.so",
    "libmpi.so",
];

/// Names the library to load where the process has none yet.
pub(crate) const LIBRARY_VARIABLE: &str = "ZAZEN_MPI_LIBRARY";

/// glibc's and musl's RTLD_NOLOAD: open only what is loaded already.
const RTLD_NOLOAD: c_int = libc::RTLD_NOLOAD;

/// Declares the bound calls once: field, C name, type.
macro_rules! calls {
    ($($field:ident = $name:literal: fn($($arg:ty),*);)*) => {
        /// The MPI calls that the collectives make, as C function pointers.
        #[derive(Clone, Copy)]
        pub(crate) struct Calls {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Calls {
            fn bind(library: &Library) -> std::result::Result<Calls, &'static str> {
                Ok(Calls {
                    // SAFETY: each type is that of the MPI standard's C binding, with handles as
                    // pointer-sized integers (see the crate's header).
                    $($field: unsafe {
                        *library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($name).map_err(|_| $name)?
                    },)*
                })
            }
        }
    };
}

calls! {
    init = "MPI_Init": fn(*mut c_int, *mut c_void);
    finalize = "MPI_Finalize": fn();
    initialized = "MPI_Initialized": fn(*mut c_int);
    finalized = "MPI_Finalized": fn(*mut c_int);
    comm_rank = "MPI_Comm_rank": fn(Handle, *mut c_int);
    comm_size = "MPI_Comm_size": fn(Handle, *mut c_int);
    comm_test_inter = "MPI_Comm_test_inter": fn(Handle, *mut c_int);
    comm_dup = "MPI_Comm_dup": fn(Handle, *mut c_void);
    comm_free = "MPI_Comm_free": fn(*mut c_void);
    comm_set_errhandler = "MPI_Comm_set_errhandler": fn(Handle, Handle);
    error_string = "MPI_Error_string": fn(c_int, *mut c_char, *mut c_int);
    op_create = "MPI_Op_create": fn(UserOp, c_int, *mut c_void);
    op_free = "MPI_Op_free": fn(*mut c_void);
    allreduce = "MPI_Allreduce": fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle);
    alltoall = "MPI_Alltoall": fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle);
    allgather = "MPI_Allgather": fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle);
    allgatherv = "MPI_Allgatherv": fn(
        *const c_void, c_int, Handle,
        *mut c_void, *const c_int, *const c_int, Handle,
        Handle
    );
    issend = "MPI_Issend": fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    iprobe = "MPI_Iprobe": fn(c_int, c_int, Handle, *mut c_int, *mut c_void);
    get_count = "MPI_Get_count": fn(*const c_void, Handle, *mut c_int);
    recv = "MPI_Recv": fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    ibarrier = "MPI_Ibarrier": fn(Handle, *mut c_void);
    test = "MPI_Test": fn(*mut c_void, *mut c_int, *mut c_void);
    bcast = "MPI_Bcast": fn(*mut c_void, c_int, Handle, c_int, Handle);
    sendrecv = "MPI_Sendrecv": fn(
        *const c_void, c_int, Handle, c_int, c_int,
        *mut c_void, c_int, Handle, c_int, c_int,
        Handle, *mut c_void
    );
}

/// `MPI_User_function`.
pub(crate) type UserOp = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut c_void);

/// A bound MPI library. It is never unloaded, because MPI libraries do not survive that.
pub(crate) struct Mpi {
    pub(crate) calls: Calls,
    pub(crate) constants: Constants,
    pub(crate) abi: Abi,
    /// Its file, as the loader knows it.
    pub(crate) file: String,
}

impl Mpi {
    pub(crate) fn bind(library: Library) -> Result<Mpi> {
        let file = file_of(&library).unwrap_or_else(|| "this program".into());
        let unusable = |what: String| Error::new(ErrorKind::Mpi, format!("MPI library {file}: {what}"));
        let calls = Calls::bind(&library).map_err(|name| {
            unusable(format!("it has no {name}; set {LIBRARY_VARIABLE} to a complete MPI library"))
        })?;
        let (abi, constants) = if has(&library, "ompi_mpi_comm_world") {
            let address = |name: &str| {
                // SAFETY: only the object's address is taken, never its contents.
                unsafe { library.get::<*mut c_void>(name) }.ok().map(|symbol| symbol.into_raw() as Handle)
            };
            let constants = abi::open_mpi(address)
                .ok_or_else(|| unusable("an Open MPI without its predefined objects".to_string()))?;
            (Abi::OpenMpi, constants)
        } else if is_standard_abi(&file) {
            (Abi::Standard, abi::STANDARD)
        } else {
            (Abi::Mpich, abi::MPICH)
        };
        std::mem::forget(library);
        Ok(Mpi { calls, constants, abi, file })
    }

    /// Whether MPI calls may be made now.
    pub(crate) fn is_up(&self) -> bool {
        let (mut initialized, mut finalized) = (0, 0);
        // SAFETY: both calls are allowed at any time and write one int.
        unsafe {
            (self.calls.initialized)(&mut initialized);
            (self.calls.finalized)(&mut finalized);
        }
        initialized != 0 && finalized == 0
    }

    /// Fails with `Mpi` and the library's own message if `code` is not MPI_SUCCESS.
    pub(crate) fn check(&self, code: c_int, call: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // MPI_MAX_ERROR_STRING is 512 at most in all three ABIs.
        let mut text = [0u8; 1024];
        let mut length: c_int = 0;
        // SAFETY: the buffer is longer than any MPI_MAX_ERROR_STRING; the code came from this
        // library.
        unsafe { (self.calls.error_string)(code, text.as_mut_ptr().cast(), &mut length) };
        let text = String::from_utf8_lossy(&text[..usize::try_from(length).unwrap_or(0).min(text.len())]);
        Err(Error::new(
            ErrorKind::Mpi,
            format!(
                "{call} failed with code {code} ({}); end the job, its ranks are out of step",
                text.trim()
            ),
        ))
    }
}

fn has(library: &Library, name: &str) -> bool {
    // SAFETY: only the presence of the symbol is asked.
    unsafe { library.get::<*mut c_void>(name) }.is_ok()
}

fn is_standard_abi(file: &str) -> bool {
    file.rsplit('/').next().is_some_and(|name| name.starts_with("libmpi_abi"))
}

/// The file that `MPI_Comm_dup` comes from.
fn file_of(library: &Library) -> Option<String> {
    // SAFETY: only the function's address is taken.
    let symbol = unsafe { library.get::<*mut c_void>("MPI_Comm_dup") }.ok()?;
    let address = symbol.into_raw();
    // SAFETY: Dl_info is plain data for which zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `address` is any address; `info` is written on success only.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returned a string that lives as long as the library, which is never unloaded.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned())
}

/// The process's own MPI, then whatever is loaded under a known name, each library once.
pub(crate) fn already_loaded() -> Vec<Mpi> {
    let mut found: Vec<Mpi> = Vec::new();
    let own = Library::this();
    let loaded = NAMES.iter().filter_map(|name| {
        // SAFETY: RTLD_NOLOAD runs no initialiser: the library is there already or the call fails.
        unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) }.ok()
    });
    for library in std::iter::once(own).filter(|own| has(own, "MPI_Comm_dup")).chain(loaded) {
        if let Ok(mpi) = Mpi::bind(library)
            && found.iter().all(|other| other.file != mpi.file)
        {
            found.push(mpi);
        }
    }
    found
}

fn by_name() -> Option<Mpi> {
    let named: Option<OsString> = std::env::var_os(LIBRARY_VARIABLE);
    let names = named.into_iter().chain(NAMES.iter().map(OsString::from));
    // SAFETY: loading an MPI library runs its initialisers, as linking with it would have.
    names
        .filter_map(|name| unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.ok())
        .find_map(|library| Mpi::bind(library).ok())
}

/// The MPI that this process uses. Once found, it does not change.
static RUNNING: Mutex<Option<&'static Mpi>> = Mutex::new(None);

/// Records `mpi` as this process's MPI, unless one was found before.
pub(crate) fn adopt(mpi: Mpi) -> &'static Mpi {
    let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    running.get_or_insert_with(|| Box::leak(Box::new(mpi)))
}

/// The MPI that this process runs on. Of several loaded libraries the initialised one counts.
///
/// Fails with `Mpi` if there is none or it is not initialised.
pub(crate) fn running() -> Result<&'static Mpi> {
    let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(mpi) = *running {
        return if mpi.is_up() { Ok(mpi) } else { Err(not_up(&mpi.file)) };
    }
    let mut loaded = already_loaded();
    match loaded.iter().position(Mpi::is_up) {
        Some(at) => Ok(*running.insert(Box::leak(Box::new(loaded.swap_remove(at))))),
        None => match loaded.pop().or_else(by_name) {
            Some(mpi) => Err(not_up(&mpi.file)),
            None => Err(Error::new(
                ErrorKind::Mpi,
                format!(
                    "no MPI library in this process and none of {} found; install one (`pip install mpich \
                     mpi4py`) or set {LIBRARY_VARIABLE}",
                    NAMES.join(", ")
                ),
            )),
        },
    }
}

fn not_up(file: &str) -> Error {
    Error::new(
        ErrorKind::Mpi,
        format!(
            "MPI ({file}) is not initialised, or is finalised already; call MPI_Init (in Python: \
             `from mpi4py import MPI`) first and keep MPI up while Zazen uses the communicator"
        ),
    )
}

/// Fails with `Mpi` unless this process's MPI is found and its MPI_COMM_WORLD is `world`. Then
/// handles from the same source as `world` are valid for the bound library. Makes no collective
/// call.
pub fn check_world(world: usize) -> Result<()> {
    let mpi = running()?;
    let expected = mpi.constants.comm_world;
    if world == expected || (mpi.constants.int_handles && world & 0xffff_ffff == expected) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Mpi,
        format!(
            "the communicator belongs to another MPI than {}: MPI_COMM_WORLD is {world:#x} there and \
             {expected:#x} here; load one MPI only, or take the mpi4py carrier",
            mpi.file
        ),
    ))
}

/// The MPI library that this process runs on: its file and its ABI. Fails with `Mpi` if there is
/// none or MPI is not initialised.
pub fn loaded_library() -> Result<(String, Abi)> {
    running().map(|mpi| (mpi.file.clone(), mpi.abi))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_tells_the_standard_abi() {
        for (file, expected) in [
            ("/opt/mpi/lib/libmpi_abi.so.1", true),
            ("libmpi_abi.so.0.0.0", true),
            ("/opt/libmpi_abi/lib/libmpi.so.12", false),
            ("/usr/lib/libmpich.so.12", false),
        ] {
            assert_eq!(is_standard_abi(file), expected, "{file}");
        }
    }

    #[test]
    fn without_mpi_the_error_says_what_to_do() {
        let error = running().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Mpi);
        let text = error.to_string();
        assert!(text.contains("MPI_Init") || text.contains("pip install"), "{text}");
    }
}
