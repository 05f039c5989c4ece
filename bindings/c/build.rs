//! Gives libzazen its SONAME, and puts a link of that name beside the library, so that programs
//! which were linked with a build folder's library find it there.

use std::path::PathBuf;

/// What programs ask the loader for. The number grows when an existing call changes its meaning or
/// its layout; calls and fields that are added at the end leave it.
const SONAME: &str = "libzazen.so.0";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // OUT_DIR is FOLDER/build/PACKAGE-HASH/out. Where it is another, the link is missing and no
    // more.
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    if let Some(folder) = out.ancestors().nth(3) {
        let link = folder.join(SONAME);
        if std::fs::symlink_metadata(&link).is_err()
            && let Err(error) = std::os::unix::fs::symlink("libzazen.so", &link)
        {
            println!("cargo::warning={}: {error}", link.display());
        }
    }
}
