//! Where an installation keeps its libraries: one rule for the programs that need them.

use std::path::{Path, PathBuf};

/// The library `name` of this program's installation: beside the program (a build folder), in the `lib` folder beside its
/// folder (a prefix), or in the Python package of an environment that the program is in.
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
        let lib = prefix.join("lib");
        let pythons = std::fs::read_dir(&lib).into_iter().flatten().flatten();
        found.push(lib.clone());
        found.extend(
            pythons.map(|python| python.path().join("site-packages/zazen/lib")).filter(|path| path.is_dir()),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_folders_prefixes_and_python_environments_are_searched() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("lib");
        let package = lib.join("python3.11/site-packages/zazen/lib");
        std::fs::create_dir_all(&package).unwrap();
        std::fs::create_dir_all(lib.join("python3.12/site-packages/other")).unwrap();
        let programs = root.path().join("bin");
        assert_eq!(folders(&programs), [programs.clone(), lib, package]);
    }
}
