//! `zazen plugin new`: a plug-in that works, to be changed into one's own.

use crate::output;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

macro_rules! template {
    ($($file:literal),* $(,)?) => {
        [$(($file, include_str!(concat!("../../../../../sdk/plugin/template/", $file)))),*]
    };
}

/// A plug-in as it is, whose name and number are replaced, in the files' names too.
const TEMPLATE: [(&str, &str); 7] =
    template!["sample.h", "sample.c", "client.c", "client.py", "Makefile", "test.sh", "README.md"];
const NAME: &str = "sample";
const ID: &str = "4711";

pub(super) fn make(name: &str, dir: Option<&Path>) -> Result<()> {
    check_name(name)?;
    let folder = dir.map_or_else(|| PathBuf::from(name), Path::to_path_buf);
    let occupied = std::fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some());
    if occupied || folder.is_file() {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("{} is there already and not empty; choose another --dir", folder.display()),
        ));
    }
    let id = number(name).to_string();
    let filled = TEMPLATE.map(|(file, text)| {
        let fill = |text: &str| {
            let upper = name.to_uppercase();
            text.replace(ID, &id).replace(NAME, name).replace(&NAME.to_uppercase(), &upper)
        };
        (fill(file), fill(text))
    });
    super::sdk::write_all(&folder, filled.iter().map(|(file, text)| (file.as_str(), text.as_str())))?;
    make_executable(&folder.join("test.sh"))?;
    output::line(format!(
        "{}: plug-in {name}, ID {id}; `make -C {} test` builds and tests it",
        folder.display(),
        folder.display()
    ));
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    let good = name.len() <= 40
        && name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_');
    if good {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("name {name:?}: give lower-case letters, digits and _, a letter first, at most 40"),
    ))
}

/// A number for the plug-in, so that two templates rarely meet: FNV-1a of the name, in 1000 …
/// 65535.
fn number(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    1000 + hash % 64_536
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| Error::io(format!("file {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_c() {
        for good in ["a", "adder", "fft_2d"] {
            check_name(good).unwrap();
        }
        for bad in ["", "2d", "Adder", "a-b", "a/b", "../a", "_a"] {
            assert_eq!(check_name(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn numbers_are_ids() {
        for name in ["a", "adder", "z"] {
            assert!((1000..=65_535).contains(&number(name)));
        }
    }
}
