//! `zazen_plugin.h`: what a plug-in exports, and what its host gives it.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// `ZAZEN_PLUGIN_ABI`: the version of the plug-in interface.
pub const ABI: u32 = 1;
/// Room for a host's name, with its NUL.
pub const HOST_BYTES: usize = 256;
/// `ZAZEN_PLUGIN_ACTS_AS_CALLER`: the plug-in acts with its caller's identity.
pub const ACTS_AS_CALLER: u32 = 1;

/// `ZAZEN_HOST_CONFINED`: the kernel lets the process make, remove and rename names beneath the
/// exports only.
pub const HOST_CONFINED: u32 = 1;

/// `enum zazen_detach_reason`: why a client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DetachReason {
    /// It said goodbye.
    Closed = 0,
    /// Its process ended, or its connection broke.
    Died = 1,
    /// It broke the protocol.
    Expelled = 2,
    /// The host is stopping.
    Shutdown = 3,
}

/// `struct zazen_caller`: who is calling. `client` and `generation` together never come twice in a
/// host's life.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Caller {
    /// The plug-in sets it to the bytes that it wants; the host fills no more than that.
    pub struct_size: u32,
    /// The caller's process; 0 if unknown.
    pub pid: u32,
    /// The client's number.
    pub client: u64,
    /// The host's generation.
    pub generation: u64,
    /// The caller's user.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// The caller's MPI rank; -1 if unknown.
    pub rank: i32,
    /// How many ranks there are; -1 if unknown.
    pub ranks: i32,
    /// The caller's machine, with a NUL.
    pub host: [c_char; HOST_BYTES],
}

/// `zazen_completion`: called once when the host no longer needs a registered buffer.
pub type Completion = unsafe extern "C" fn(status: i32, argument: *mut c_void);

/// `struct zazen_host`: what a host offers a plug-in from init to the end of fini.
///
/// A host sets all functions that it knows. A plug-in may read only the fields that `struct_size`
/// covers.
#[repr(C)]
#[derive(Debug)]
pub struct Host {
    /// Bytes of this structure that the host knows.
    pub struct_size: u32,
    /// [`ABI`] of the host.
    pub abi: u32,
    /// Clients to expect; -1 if unknown.
    pub process_count: i32,
    /// [`HOST_CONFINED`], or 0.
    pub flags: u32,
    /// The caller of the function that this thread runs: 0, or -1 outside of a function.
    pub caller: Option<unsafe extern "C" fn(*mut Caller) -> c_int>,
    /// Writes a line to the host's log.
    pub log: Option<unsafe extern "C" fn(c_int, *const c_char)>,
    /// A buffer that transports can send without a copy; NULL if there is none.
    pub allocate: Option<unsafe extern "C" fn(u64) -> *mut c_void>,
    /// Frees a buffer of `allocate`.
    pub release: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Names the memory of the running function's zerocopy:userbuf output.
    pub register_userbuf:
        Option<unsafe extern "C" fn(*const c_void, Option<Completion>, *mut c_void) -> c_int>,
    /// The caller's supplementary groups: how many, or -1 outside of a function.
    pub groups: Option<unsafe extern "C" fn(*mut u32, u32) -> c_int>,
    /// 1 once nobody waits for the running function any more.
    pub cancelled: Option<unsafe extern "C" fn() -> c_int>,
    /// An exported folder by its index; NULL behind the last.
    pub exported: Option<unsafe extern "C" fn(u32) -> *const c_char>,
    /// A folder by its index that callers may reach and that no path leads to: what they call it,
    /// and its descriptor; NULL behind the last.
    pub mounted: Option<unsafe extern "C" fn(u32, *mut c_int) -> *const c_char>,
}

/// `struct zazen_call_ops`: what a dispatcher asks of its host during a call. Results are statuses.
#[repr(C)]
#[derive(Debug)]
pub struct CallOps {
    /// Bytes of this structure that the host knows.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Zeroed memory that the host frees after the call; NULL if there is none.
    pub allocate: unsafe extern "C" fn(*mut PluginCall, u64) -> *mut c_void,
    /// Makes an input segment be here.
    pub receive: unsafe extern "C" fn(*mut PluginCall, u32, *mut *mut c_void) -> i32,
    /// Memory for an output segment.
    pub prepare: unsafe extern "C" fn(*mut PluginCall, u32, *mut *mut c_void) -> i32,
    /// Says which bytes an output segment is.
    pub send: unsafe extern "C" fn(*mut PluginCall, u32, *const c_void, u64) -> i32,
    /// Memory for the reply's message.
    pub reply: unsafe extern "C" fn(*mut PluginCall, u64, *mut *mut c_void) -> i32,
    /// Passes a descriptor, which becomes the host's.
    pub send_fd: unsafe extern "C" fn(*mut PluginCall, c_int, *mut i64) -> i32,
    /// Enters a value into the caller's table of handles of one kind.
    pub handle_enter: unsafe extern "C" fn(*mut PluginCall, *const c_char, i64, *mut i64) -> i32,
    /// The value of a handle.
    pub handle_get: unsafe extern "C" fn(*mut PluginCall, *const c_char, i64, *mut i64) -> i32,
    /// The value of a handle, which is then removed.
    pub handle_remove: unsafe extern "C" fn(*mut PluginCall, *const c_char, i64, *mut i64) -> i32,
}

/// `struct zazen_call`: one call in progress. The host makes it; it is the dispatcher's until that
/// returns.
#[repr(C)]
#[derive(Debug)]
pub struct PluginCall {
    /// Bytes of this structure that the host knows.
    pub struct_size: u32,
    /// `ZAZEN_CALL_SHARED`, or 0.
    pub flags: u32,
    /// The request's message.
    pub message: *mut c_void,
    /// Its size.
    pub message_bytes: u64,
    /// The longest reply that client and transport take.
    pub reply_bytes_max: u64,
    /// Sizes of the input segments.
    pub in_bytes: *const u64,
    /// Capacities of the output segments.
    pub out_bytes: *const u64,
    /// How many inputs.
    pub in_count: u32,
    /// How many outputs.
    pub out_count: u32,
    /// Descriptors that came; the host closes them after the call.
    pub fds: *const c_int,
    /// How many.
    pub fd_count: u32,
    /// 0.
    pub reserved: u32,
    /// Set by `register_userbuf`.
    pub userbuf: *const c_void,
    /// The host's functions for this call.
    pub ops: *const CallOps,
    /// The host's own.
    pub host_data: *mut c_void,
}

/// `struct zazen_function`: one function of a plug-in.
#[repr(C)]
#[derive(Debug)]
pub struct Function {
    /// Its name in C.
    pub name: *const c_char,
    /// Its dispatcher.
    pub dispatch: Option<unsafe extern "C" fn(*mut PluginCall) -> i32>,
    /// `FUNCTION_` constants of [`crate::segment`].
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// What the dispatcher calls for memory before a zerocopy:userbuf input arrives; or NULL.
    pub allocate: Option<unsafe extern "C" fn(u64) -> *mut c_void>,
}

/// `struct zazen_plugin` as of its first release: the fields that every entry table has.
#[repr(C)]
#[derive(Debug)]
pub struct Plugin {
    /// [`ABI`] of the plug-in.
    pub abi: u32,
    /// Bytes of the table.
    pub struct_size: u32,
    /// `ID=` of the header.
    pub id: u32,
    /// How many functions.
    pub function_count: u32,
    /// The header's name without `.h`.
    pub name: *const c_char,
    /// JSON, as in `NAME_schema.json`.
    pub schema: *const c_char,
    /// A hash of prototypes and annotations.
    pub schema_hash: u64,
    /// The same with the structs' sizes and alignments.
    pub layout_hash: u64,
    /// The table of functions.
    pub functions: *const Function,
    /// Bytes from one function to the next.
    pub function_bytes: u64,
    /// Called once, before any call; 0, or a refusal.
    pub init: Option<unsafe extern "C" fn(*const Host) -> c_int>,
    /// Called once, after the last call.
    pub fini: Option<unsafe extern "C" fn()>,
    /// Called before a client's first call.
    pub client_attach: Option<unsafe extern "C" fn(*const Caller)>,
    /// Called after a client's last call.
    pub client_detach: Option<unsafe extern "C" fn(*const Caller, i32)>,
}

/// What tables have behind [`Plugin`] since the second release.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PluginTail {
    /// [`ACTS_AS_CALLER`], or 0.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// `struct zazen_plugin` as of this release.
#[repr(C)]
#[derive(Debug)]
pub struct PluginTable {
    /// The fields of the first release.
    pub plugin: Plugin,
    /// The fields since.
    pub tail: PluginTail,
}

/// Whether the plug-in asks to be run with its caller's identity. Older tables can't ask.
///
/// # Safety
///
/// `plugin` points to an entry table of `struct_size` bytes.
pub unsafe fn acts_as_caller(plugin: *const Plugin) -> bool {
    // SAFETY: `struct_size` is in every version of the table; the tail is read only where it is
    // there.
    unsafe {
        (*plugin).struct_size as usize >= size_of::<PluginTable>()
            && (*plugin.byte_add(offset_of!(PluginTable, tail)).cast::<PluginTail>()).flags & ACTS_AS_CALLER
                != 0
    }
}
