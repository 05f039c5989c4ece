//! The entry table under the name that hosts look for.

use std::mem::size_of;
use zazen_plugin_abi::plugin::PluginTable;

/// `struct zazen_plugin` as bytes with its alignment. The host reads as much as its `struct_size`
/// says.
#[repr(C, align(8))]
pub struct TableBytes([u8; size_of::<PluginTable>()]);

impl TableBytes {
    /// Filled by [`copy_table`].
    pub const EMPTY: TableBytes = TableBytes([0; size_of::<PluginTable>()]);
}

const _: () = assert!(size_of::<TableBytes>() == size_of::<PluginTable>());
const _: () = assert!(align_of::<TableBytes>() == align_of::<PluginTable>());

/// Copies the generated table to the exported one.
///
/// # Safety
///
/// Both are whole tables, and nobody looks at `to` meanwhile.
pub unsafe fn copy_table(from: *const TableBytes, to: *mut TableBytes) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, 1) };
}

/// Exports the entry table `zazen_plugin_v1`; once in a plug-in's `lib.rs`.
///
/// A Rust library cannot export what C defines. So the dispatcher's table has another name (see
/// `zazen_stubs_build`), and this one is a copy of it, made when the object is loaded.
#[macro_export]
macro_rules! export_entry_table {
    () => {
        mod entry_table {
            use $crate::{TableBytes, copy_table};

            unsafe extern "C" {
                static zazen_plugin_table: TableBytes;
            }

            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            pub(crate) static mut zazen_plugin_v1: TableBytes = TableBytes::EMPTY;

            #[used]
            #[unsafe(link_section = ".init_array")]
            static COPY_TABLE: extern "C" fn() = copy;

            extern "C" fn copy() {
                // SAFETY: runs once, before anybody can look; C defines a whole table.
                unsafe { copy_table(&raw const zazen_plugin_table, &raw mut zazen_plugin_v1) };
            }
        }
    };
}
