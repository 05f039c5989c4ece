//! A plug-in's shared object: loaded, and checked before anything of it runs but its constructors.
//!
//! Invariant: what an [`Object`] says of its entry table was checked once; pointers into it stay
//! good for as long as the object lives.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_char};
use std::mem::{align_of, offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_plugin_abi::plugin as abi;

/// Functions of one plug-in, at most.
const FUNCTIONS_MAX: u32 = 65_536;
/// The longest name of a plug-in or a function, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// What a plug-in is: what binding compares, and what people want to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// `ID=` of its header.
    pub id: u16,
    /// The header's name without `.h`.
    pub name: String,
    /// Of prototypes and annotations.
    pub schema_hash: u64,
    /// The same with the structs' sizes and alignments.
    pub layout_hash: u64,
    /// It acts with its caller's identity: a process of its own for each.
    pub acts_as_caller: bool,
    /// Its functions, in the header's order.
    pub functions: Vec<FunctionDescription>,
}

impl Description {
    /// What its functions are called in all of the node.
    pub(crate) fn function_names(&self) -> impl Iterator<Item = ((u16, u32), String)> {
        let named = |(index, function): (u32, &FunctionDescription)| {
            ((self.id, index), format!("{}.{}", self.name, function.name))
        };
        (0..).zip(&self.functions).map(named)
    }
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionDescription {
    /// Its name in C.
    pub name: String,
    /// `ZAZEN_FUNCTION_...`.
    pub flags: u32,
}

/// A loaded plug-in.
pub(crate) struct Object {
    plugin: *const abi::Plugin,
    pub(crate) description: Description,
    /// Declared last: the pointers above are into it.
    _library: Library,
}

// SAFETY: the entry table is constant memory of the object; its functions may be called from any
// thread (zazen_plugin.h).
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

fn refuse(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Config, format!("plug-in {}: {why}", path.display()))
}

impl Object {
    /// Loads the object at `path`, or what `opened` has of it, and checks its entry table. Fails
    /// with `Config`, naming what is wrong.
    pub(crate) fn load(path: &Path, opened: Option<&OwnedFd>) -> Result<Object> {
        // A process that has become a caller may not be allowed to search the folders above.
        let by_number = opened.map(|fd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())));
        let place = by_number.as_deref().unwrap_or(path);
        if !place.is_file() {
            return Err(refuse(path, "there is no such file; build it, or mend the path in the settings"));
        }
        // SAFETY: loading runs the object's constructors: whoever names a plug-in in the daemon's
        // settings trusts it with the daemon (in-process) or with a worker process.
        let library = unsafe { Library::open(Some(place), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| {
            // The error's own words are "dlopen failed"; what the loader said is its cause.
            let why =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            refuse(path, format!("it can't be loaded: {why}"))
        })?;
        // SAFETY: the symbol is the entry table by the interface's definition; it is checked below,
        // `abi` first, which stays where it is in all versions.
        let symbol = unsafe { library.get::<*const abi::Plugin>(b"zazen_plugin_v1\0") };
        let plugin = match symbol {
            Ok(symbol) => symbol.into_raw().cast_const().cast::<abi::Plugin>(),
            Err(_) => {
                return Err(refuse(path, "it exports no zazen_plugin_v1: link the generated _dispatch.c"));
            }
        };
        let description = check(plugin).map_err(|why| refuse(path, why))?;
        Ok(Object { plugin, description, _library: library })
    }

    pub(crate) fn plugin(&self) -> &abi::Plugin {
        // SAFETY: checked at loading, and the library lives as long as `self`.
        unsafe { &*self.plugin }
    }

    /// The function `index`, if there is one.
    pub(crate) fn function(&self, index: u32) -> Option<&abi::Function> {
        let plugin = self.plugin();
        if index >= plugin.function_count {
            return None;
        }
        // SAFETY: `index` is within the table, whose stride and entries were checked at loading.
        Some(unsafe { &*entry(plugin, index) })
    }
}

fn entry(plugin: &abi::Plugin, index: u32) -> *const abi::Function {
    plugin.functions.wrapping_byte_add(index as usize * plugin.function_bytes as usize)
}

fn check(plugin: *const abi::Plugin) -> std::result::Result<Description, String> {
    if plugin.is_null() || !plugin.is_aligned() {
        return Err("zazen_plugin_v1 is no entry table".to_owned());
    }
    // SAFETY: not null and aligned; `abi` and `struct_size` are in every version of the table.
    let (version, bytes) = unsafe { ((*plugin).abi, (*plugin).struct_size) };
    if version != abi::ABI {
        return Err(format!(
            "it was made for version {version} of the plug-in interface, this daemon has {}; generate and \
             build it again with this release",
            abi::ABI
        ));
    }
    if (bytes as usize) < size_of::<abi::Plugin>() {
        return Err(format!(
            "its entry table has {bytes} bytes, fewer than {}; build it again with this release's \
             zazen_plugin.h",
            size_of::<abi::Plugin>()
        ));
    }
    // SAFETY: a table of `bytes` bytes, by the interface's definition.
    let acts_as_caller = unsafe { abi::acts_as_caller(plugin) };
    // SAFETY: it is as large as this build knows it.
    let plugin = unsafe { &*plugin };
    let id = u16::try_from(plugin.id).ok().filter(|id| *id > 0);
    let id = id.ok_or_else(|| format!("its ID is {}; an ID is from 1 to 65535", plugin.id))?;
    let name = text(plugin.name, "its name")?;
    let count = plugin.function_count;
    if count > FUNCTIONS_MAX {
        return Err(format!("it has {count} functions, more than {FUNCTIONS_MAX}"));
    }
    let least = offset_of!(abi::Function, allocate) + size_of::<usize>();
    let stride = plugin.function_bytes as usize;
    if count > 0
        && (plugin.functions.is_null()
            || stride < least
            || !stride.is_multiple_of(align_of::<abi::Function>()))
    {
        return Err("its table of functions is malformed".to_owned());
    }
    let mut functions = Vec::with_capacity(count as usize);
    for index in 0..count {
        // SAFETY: the table has `count` entries, `function_bytes` apart, by the interface's
        // definition.
        let function = unsafe { &*entry(plugin, index) };
        if function.dispatch.is_none() {
            return Err(format!("its function {index} has no dispatcher"));
        }
        functions.push(FunctionDescription {
            name: text(function.name, "a function's name")?,
            flags: function.flags,
        });
    }
    let description = Description {
        id,
        name,
        schema_hash: plugin.schema_hash,
        layout_hash: plugin.layout_hash,
        acts_as_caller,
        functions,
    };
    compare_with_schema(&description, plugin.schema)?;
    Ok(description)
}

/// The table and the schema beside it are made by one generator run; anything else was put together
/// by hand.
fn compare_with_schema(description: &Description, schema: *const c_char) -> std::result::Result<(), String> {
    if schema.is_null() {
        return Err("it carries no schema: link the generated _dispatch.c".to_owned());
    }
    // SAFETY: a NUL-terminated string in the object's constant memory, by the interface's
    // definition.
    let text = unsafe { CStr::from_ptr(schema) };
    let parsed: serde_json::Value = serde_json::from_slice(text.to_bytes())
        .map_err(|error| format!("its schema is malformed ({error}); generate it again"))?;
    let hash = format!("{:016x}", description.schema_hash);
    let functions = parsed["functions"].as_array().map(Vec::len);
    for (what, agrees) in [
        ("name", parsed["name"] == description.name.as_str()),
        ("id", parsed["id"] == description.id),
        ("schema_hash", parsed["schema_hash"] == hash.as_str()),
        ("number of functions", functions == Some(description.functions.len())),
    ] {
        if !agrees {
            return Err(format!(
                "its schema and its entry table disagree about the {what}; generate it again"
            ));
        }
    }
    Ok(())
}

fn text(pointer: *const c_char, what: &str) -> std::result::Result<String, String> {
    if pointer.is_null() {
        return Err(format!("{what} is missing"));
    }
    // SAFETY: a NUL-terminated string in the object's constant memory, by the interface's
    // definition.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str().unwrap_or_default();
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Err(format!("{what} is empty, too long or no UTF-8"));
    }
    Ok(text.to_owned())
}
