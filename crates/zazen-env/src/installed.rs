//! Where an installation has its libraries. All programs that need them use this rule.

use std::path::{Path, PathBuf};

/// The library `name` of this program's installation. It may lie beside the program (a build
/// folder, or files that were copied together), in the folder `lib` or `lib/zazen` beside the
/// program's folder (a prefix, or a system's package), or in the Python package of the environment
/// that the program is in.
pub fn find_library(name: &str) -> Option<PathBuf> {
    folders(std::env::current_exe().ok()?.parent()?)
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Where [`find_library`] looks, for error messages.
pub fn library_folders() -> Vec<PathBuf> {
    std::env::current_exe().ok().and_then(|program| Some(folders(program.parent()?))).unwrap_or_default()
}

fn folders(programs: &Path) -> Vec<PathBuf> {
    let mut found = vec![programs.to_owned()];
    if let Some(prefix) = programs.parent() {
        // pip's --target puts the package beside the folder of programs.
        found.extend(["lib", "lib/zazen", "zazen/lib"].map(|folder| prefix.join(folder)));
        for lib in ["lib", "lib64", "local/lib"] {
            let pythons = std::fs::read_dir(prefix.join(lib)).into_iter().flatten().flatten();
            for python in pythons {
                // Debian's own Python installs into dist-packages.
                found.extend(
                    ["site-packages", "dist-packages"].map(|kind| python.path().join(kind).join("zazen/lib")),
                );
            }
        }
        found.retain(|folder| folder == programs || folder.is_dir());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_folders_prefixes_and_python_environments_are_searched() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let programs = root.join("bin");
        assert_eq!(folders(&programs), std::slice::from_ref(&programs));
        let places = [
            "lib",
            "lib/zazen",
            "zazen/lib",
            "lib/python3.11/site-packages/zazen/lib",
            "lib64/python3.11/site-packages/zazen/lib",
            "local/lib/python3.11/dist-packages/zazen/lib",
        ];
        for place in places {
            std::fs::create_dir_all(root.join(place)).unwrap();
        }
        std::fs::create_dir_all(root.join("lib/python3.12/site-packages/other")).unwrap();
        let expected: Vec<_> = std::iter::once("bin").chain(places).map(|place| root.join(place)).collect();
        assert_eq!(folders(&programs), expected);
    }
}
