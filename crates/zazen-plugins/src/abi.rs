//! `zazen_plugin.h` in Rust: what a plug-in exports, and what its host gives it.
//!
//! Invariant: each struct is laid out as in the header (the test below compares them); fields
//! are only ever added at the end, and `struct_size` says how many the other side knows.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;

/// The version of the plug-in interface.
pub(crate) const ABI: u32 = 1;
/// Room for a host's name, with its NUL.
pub(crate) const HOST_BYTES: usize = 256;
/// The function may block for long.
pub(crate) const FUNCTION_BLOCKING: u32 = 1;

/// Why a client is gone: `enum zazen_detach_reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum DetachReason {
    /// It said goodbye.
    Closed = 0,
    /// Its process ended, or its connection broke.
    Died = 1,
    /// It broke the protocol.
    Expelled = 2,
    /// The host is stopping.
    Shutdown = 3,
}

/// Who is calling.
#[repr(C)]
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) struct_size: u32,
    pub(crate) pid: u32,
    pub(crate) client: u64,
    pub(crate) generation: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rank: i32,
    pub(crate) ranks: i32,
    pub(crate) host: [c_char; HOST_BYTES],
}

/// Told once when the host needs a registered buffer no more.
pub(crate) type Completion = unsafe extern "C" fn(status: i32, argument: *mut c_void);

/// Flag of a host: the kernel lets the process make, remove and rename names beneath the exports only.
pub(crate) const HOST_CONFINED: u32 = 1;

/// What a host offers a plug-in at any time.
#[repr(C)]
pub(crate) struct Host {
    pub(crate) struct_size: u32,
    pub(crate) abi: u32,
    pub(crate) process_count: i32,
    /// [`HOST_CONFINED`].
    pub(crate) flags: u32,
    pub(crate) caller: unsafe extern "C" fn(*mut Caller) -> c_int,
    pub(crate) log: unsafe extern "C" fn(c_int, *const c_char),
    pub(crate) allocate: unsafe extern "C" fn(u64) -> *mut c_void,
    pub(crate) release: unsafe extern "C" fn(*mut c_void),
    pub(crate) register_userbuf:
        unsafe extern "C" fn(*const c_void, Option<Completion>, *mut c_void) -> c_int,
    pub(crate) groups: unsafe extern "C" fn(*mut u32, u32) -> c_int,
    pub(crate) cancelled: unsafe extern "C" fn() -> c_int,
    pub(crate) exported: unsafe extern "C" fn(u32) -> *const c_char,
}

/// What a dispatcher asks of its host during a call.
#[repr(C)]
pub(crate) struct CallOps {
    pub(crate) struct_size: u32,
    pub(crate) reserved: u32,
    pub(crate) allocate: unsafe extern "C" fn(*mut Call, u64) -> *mut c_void,
    pub(crate) receive: unsafe extern "C" fn(*mut Call, u32, *mut *mut c_void) -> i32,
    pub(crate) prepare: unsafe extern "C" fn(*mut Call, u32, *mut *mut c_void) -> i32,
    pub(crate) send: unsafe extern "C" fn(*mut Call, u32, *const c_void, u64) -> i32,
    pub(crate) reply: unsafe extern "C" fn(*mut Call, u64, *mut *mut c_void) -> i32,
    pub(crate) send_fd: unsafe extern "C" fn(*mut Call, c_int, *mut i64) -> i32,
    pub(crate) handle_enter: unsafe extern "C" fn(*mut Call, *const c_char, i64, *mut i64) -> i32,
    pub(crate) handle_get: unsafe extern "C" fn(*mut Call, *const c_char, i64, *mut i64) -> i32,
    pub(crate) handle_remove: unsafe extern "C" fn(*mut Call, *const c_char, i64, *mut i64) -> i32,
}

/// One call in progress.
#[repr(C)]
pub(crate) struct Call {
    pub(crate) struct_size: u32,
    pub(crate) flags: u32,
    pub(crate) message: *mut c_void,
    pub(crate) message_bytes: u64,
    pub(crate) reply_bytes_max: u64,
    pub(crate) in_bytes: *const u64,
    pub(crate) out_bytes: *const u64,
    pub(crate) in_count: u32,
    pub(crate) out_count: u32,
    pub(crate) fds: *const c_int,
    pub(crate) fd_count: u32,
    pub(crate) reserved: u32,
    pub(crate) userbuf: *const c_void,
    pub(crate) ops: *const CallOps,
    pub(crate) host_data: *mut c_void,
}

/// One function of a plug-in.
#[repr(C)]
pub(crate) struct Function {
    pub(crate) name: *const c_char,
    pub(crate) dispatch: Option<unsafe extern "C" fn(*mut Call) -> i32>,
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
    pub(crate) allocate: Option<unsafe extern "C" fn(u64) -> *mut c_void>,
}

/// The entry table, `zazen_plugin_v1`.
#[repr(C)]
pub(crate) struct Plugin {
    pub(crate) abi: u32,
    pub(crate) struct_size: u32,
    pub(crate) id: u32,
    pub(crate) function_count: u32,
    pub(crate) name: *const c_char,
    pub(crate) schema: *const c_char,
    pub(crate) schema_hash: u64,
    pub(crate) layout_hash: u64,
    pub(crate) functions: *const Function,
    pub(crate) function_bytes: u64,
    pub(crate) init: Option<unsafe extern "C" fn(*const Host) -> c_int>,
    pub(crate) fini: Option<unsafe extern "C" fn()>,
    pub(crate) client_attach: Option<unsafe extern "C" fn(*const Caller)>,
    pub(crate) client_detach: Option<unsafe extern "C" fn(*const Caller, i32)>,
}

/// The plug-in acts with its caller's identity.
const PLUGIN_ACTS_AS_CALLER: u32 = 1;

/// What tables have behind [`Plugin`] since the second release.
#[repr(C)]
#[derive(Clone, Copy)]
struct PluginTail {
    flags: u32,
    reserved: u32,
}

/// Whether the plug-in asks to be run with its caller's identity; older tables can't.
///
/// # Safety
///
/// `plugin` points to an entry table of `struct_size` bytes.
pub(crate) unsafe fn acts_as_caller(plugin: *const Plugin) -> bool {
    // SAFETY: `struct_size` is in every version of the table; the tail is read only where it is there.
    unsafe {
        ((*plugin).struct_size as usize) >= size_of::<Plugin>() + size_of::<PluginTail>()
            && (*plugin.add(1).cast::<PluginTail>()).flags & PLUGIN_ACTS_AS_CALLER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The compiler of C says the same of `zazen_plugin.h`.
    #[test]
    fn structs_are_laid_out_as_in_the_header() {
        let lines = [
            format!(
                "caller {} {} {}",
                size_of::<Caller>(),
                offset_of!(Caller, rank),
                offset_of!(Caller, host)
            ),
            format!("host {} {}", size_of::<Host>(), offset_of!(Host, exported)),
            format!("ops {} {}", size_of::<CallOps>(), offset_of!(CallOps, handle_remove)),
            format!("call {} {} {}", size_of::<Call>(), offset_of!(Call, fds), offset_of!(Call, host_data)),
            format!("function {} {}", size_of::<Function>(), offset_of!(Function, allocate)),
            format!(
                "plugin {} {} {}",
                size_of::<Plugin>() + size_of::<PluginTail>(),
                offset_of!(Plugin, init),
                size_of::<Plugin>() + offset_of!(PluginTail, flags)
            ),
        ];
        let program = r#"
            #include "zazen_plugin.h"
            #include <stdio.h>
            #define AT(type, field) offsetof(struct type, field)
            int main(void) {
                printf("caller %zu %zu %zu\n", sizeof(struct zazen_caller), AT(zazen_caller, rank), AT(zazen_caller, host));
                printf("host %zu %zu\n", sizeof(struct zazen_host), AT(zazen_host, exported));
                printf("ops %zu %zu\n", sizeof(struct zazen_call_ops), AT(zazen_call_ops, handle_remove));
                printf("call %zu %zu %zu\n", sizeof(struct zazen_call), AT(zazen_call, fds), AT(zazen_call, host_data));
                printf("function %zu %zu\n", sizeof(struct zazen_function), AT(zazen_function, allocate));
                printf("plugin %zu %zu %zu\n", sizeof(struct zazen_plugin), AT(zazen_plugin, init), AT(zazen_plugin, flags));
                return 0;
            }"#;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("abi.c"), program).unwrap();
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/plugin/include");
        let built = std::process::Command::new("cc")
            .args(["-std=c11", "-I", include, "abi.c", "-o", "abi"])
            .current_dir(folder.path())
            .status()
            .unwrap();
        assert!(built.success());
        let said = std::process::Command::new(folder.path().join("abi")).output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), lines.join("\n") + "\n");
    }
}
