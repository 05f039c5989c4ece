//! A series: the frames of one directory in one layout. The cache keeps each series separately, so
//! `pos-{n}` and `vel-{n}` of one directory do not collide, although they have the same numbers.
//!
//! In the cache a series is a folder inside the folder of its directory: `sim1/.zazen@pos-{n}.bin`.
//! The name shows an administrator what is in the folder. No name of a user begins like this
//! ([`RelPath::new`] refuses it).
//!
//! Invariant: two layouts share a series only if they differ only in the width of the number, or
//! both have pieces, or both have a list of files, or both have blocks of the same size, or both
//! are of the same trajectory file, or of the manifest's. So a series says where to look for a
//! copy. The copy's own source says whether it is the right one ([`crate::Source`]).

use crate::error::{Error, ErrorKind, Result};
use crate::fnv::fnv1a_128;
use crate::frame::FrameNo;
use crate::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, SERIES_MARK};
use crate::naming::{Layout, NameTemplate};
use crate::path::RelPath;
use std::fmt;

/// A longer name is cut and gets a hash of the whole name.
const NAME_BYTES_WHOLE: usize = 180;
/// The bytes that remain of a longer name.
const NAME_BYTES_LEFT: usize = 120;
/// The separator of a cut name and its hash. In a name, `~` never follows a percent sign.
const CUT_MARK: &str = "%~";

/// The part of a layout that identifies its series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Series {
    /// One file per frame, by a template whose number is not padded.
    Files(NameTemplate),
    /// Pieces of larger files.
    Pieces,
    /// Files from a list.
    List,
    /// The frames of one trajectory file, beneath the dataset's directory.
    Trajectory(RelPath),
    /// The frames of the trajectory files that the manifest names.
    Trajectories,
    /// Blocks of this many bytes, of any files.
    Blocks(u64),
}

/// In a folder's name, this stands before a trajectory's name.
const TRAJECTORY_MARK: &str = "trajectory=";

impl Series {
    /// The series of frames in `layout`.
    pub fn of(layout: &Layout) -> Series {
        match layout {
            Layout::Files(template) => Series::Files(template.unpadded()),
            Layout::Pieces(_) => Series::Pieces,
            Layout::List(_) => Series::List,
            Layout::Trajectory(trajectory) => match &trajectory.files[..] {
                [file] if trajectory.single => Series::Trajectory(file.path.clone()),
                _ => Series::Trajectories,
            },
            Layout::Blocks(blocks) => Series::Blocks(blocks.block_bytes),
        }
    }

    /// The series of a writer that says only that frame `number` is the file `name`. A reader that
    /// derives the template from the file names gets the same series.
    ///
    /// Fails with `InvalidArgument` if the name does not spell the number, or if it spells the
    /// number in several places and its last digits do not.
    pub fn of_file(name: &str, number: FrameNo) -> Result<Series> {
        let template = NameTemplate::of_file(name, number)?;
        Ok(Series::Files(template.unpadded()))
    }

    /// Whether a frame with this number and file may belong to the series, whatever the number's
    /// width.
    pub fn may_hold(&self, path: &str, number: FrameNo, is_part: bool) -> bool {
        match self {
            Series::Files(template) => !is_part && template.spells(path, number),
            Series::Pieces => is_part,
            Series::List => !is_part,
            Series::Trajectory(file) => is_part && file.as_str() == path,
            Series::Trajectories => is_part,
            // Blocks come by misses alone.
            Series::Blocks(_) => false,
        }
    }

    /// The name of the series' folder.
    pub fn folder_name(&self) -> String {
        let whole = match self {
            Series::Files(template) => encode(&template.to_string()),
            Series::Pieces => "pieces".to_owned(),
            Series::List => "list".to_owned(),
            Series::Trajectory(file) => format!("{TRAJECTORY_MARK}{}", encode_braces(file.as_str())),
            Series::Trajectories => "trajectories".to_owned(),
            Series::Blocks(_) => encode(&self.to_string()),
        };
        if whole.len() <= NAME_BYTES_WHOLE {
            return format!("{SERIES_MARK}{whole}");
        }
        let mut left = NAME_BYTES_LEFT;
        while !whole.is_char_boundary(left) {
            left -= 1;
        }
        format!("{SERIES_MARK}{}{CUT_MARK}{:032x}", &whole[..left], fnv1a_128(whole.as_bytes()))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Series::Files(template) => template.fmt(f),
            Series::Pieces => f.write_str("pieces"),
            Series::List => f.write_str("list"),
            Series::Trajectory(file) => write!(f, "{TRAJECTORY_MARK}{file}"),
            Series::Trajectories => f.write_str("trajectories"),
            Series::Blocks(block_bytes) => write!(f, "{{n*{block_bytes}}}"),
        }
    }
}

impl RelPath {
    /// The folder of `series` of the dataset directory `self`; fails only where the path gets too
    /// long.
    pub fn series(&self, series: &Series) -> Result<RelPath> {
        RelPath::with_series(self, &series.folder_name())
    }

    /// As [`RelPath::new`], but the last component may name a series: for paths that a daemon wrote
    /// or sent.
    pub fn stored(text: &str) -> Result<RelPath> {
        let (directory, last) = text.rsplit_once('/').unwrap_or(("", text));
        match last.strip_prefix(SERIES_MARK) {
            None => RelPath::new(text),
            Some(name) if decode(name).is_some() && last.len() <= NAME_BYTES_MAX => {
                RelPath::with_series(&RelPath::new(directory)?, last)
            }
            Some(_) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("path {:?}: its last component names no series", shortened(text)),
            )),
        }
    }

    /// The directory of a series' path, and the series as people see it (`pos-{n}.bin`); `None` if
    /// this is not the path of a series.
    pub fn series_parts(&self) -> Option<(RelPath, String)> {
        let (directory, name) = self.split()?;
        let shown = decode(name.strip_prefix(SERIES_MARK)?)?;
        Some((directory, shown))
    }

    /// Whether this is the path of a series.
    pub fn is_series(&self) -> bool {
        self.series_parts().is_some()
    }

    fn with_series(directory: &RelPath, name: &str) -> Result<RelPath> {
        let path = if directory.is_root() { name.to_owned() } else { format!("{directory}/{name}") };
        if path.len() > PATH_BYTES_MAX {
            let context = format!("path {:?}: longer than {PATH_BYTES_MAX} bytes", shortened(&path));
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        Ok(RelPath::normal(path))
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(120).collect()
}

fn is_plain(character: char) -> bool {
    !matches!(character, '/' | '%') && !character.is_control()
}

/// `text` without slashes, percent signs and control characters: each of their bytes is written as
/// `%xx`.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for character in text.chars() {
        if is_plain(character) {
            encoded.push(character);
        } else {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                encoded.push_str(&format!("%{byte:02x}"));
            }
        }
    }
    encoded
}

/// As [`encode`], and braces too: a trajectory's name is no template.
fn encode_braces(text: &str) -> String {
    encode(text).replace('{', "%7b").replace('}', "%7d")
}

/// The text that [`encode`] was given, for people. A cut name ends with an ellipsis. `None` if no
/// series has this name.
fn decode(name: &str) -> Option<String> {
    let (whole, cut) = match name.split_once(CUT_MARK) {
        None => (name, false),
        Some((left, hash)) if hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            // The cut may be inside an escape. Then the rest of the escape is dropped.
            let whole = left.rfind('%').filter(|at| left.len() - at < 3).map_or(left, |at| &left[..at]);
            (whole, true)
        }
        Some(_) => return None,
    };
    let mut bytes = Vec::with_capacity(whole.len());
    let mut rest = whole.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let code = rest.get(..2).and_then(|code| std::str::from_utf8(code).ok())?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        rest = &rest[2..];
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(broken) if cut => String::from_utf8_lossy(broken.as_bytes()).into_owned(),
        Err(_) => return None,
    };
    if cut {
        return Some(format!("{text}…"));
    }
    if let Some(file) = text.strip_prefix(TRAJECTORY_MARK)
        && encode_braces(&text) == name
        && RelPath::new(file).is_ok_and(|path| path.as_str() == file && !path.is_root())
    {
        return Some(text);
    }
    let is_known = matches!(text.as_str(), "pieces" | "list" | "trajectories")
        || is_blocks(&text)
        || NameTemplate::parse(&text).is_ok_and(|template| template.is_unpadded());
    (is_known && encode(&text) == name).then_some(text)
}

fn is_blocks(text: &str) -> bool {
    let size = text.strip_prefix("{n*").and_then(|rest| rest.strip_suffix('}'));
    size.and_then(|size| size.parse().ok()).is_some_and(|size| Series::Blocks(size).to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn files(text: &str) -> Series {
        Series::of(&Layout::Files(NameTemplate::parse(text).unwrap()))
    }

    #[test]
    fn folders_tell_the_layout() {
        fn check(series: Series, folder: &str, shown: &str) {
            let directory = RelPath::new("a/sim1").unwrap();
            let path = directory.series(&series).unwrap();
            assert_eq!(path.as_str(), format!("a/sim1/{folder}"));
            assert_eq!(path.series_parts(), Some((directory, shown.to_owned())));
            assert_eq!(RelPath::stored(path.as_str()).unwrap(), path);
            assert!(RelPath::new(path.as_str()).is_err(), "users' paths never name a series");
        }
        check(files("pos-{n}.bin"), ".zazen@pos-{n}.bin", "pos-{n}.bin");
        check(files("pos-{n:05}.bin"), ".zazen@pos-{n}.bin", "pos-{n}.bin");
        check(files("run1/f-{n}"), ".zazen@run1%2ff-{n}", "run1/f-{n}");
        check(files("50% {n}\té"), ".zazen@50%25 {n}%09é", "50% {n}\té");
        check(Series::Pieces, ".zazen@pieces", "pieces");
        check(Series::List, ".zazen@list", "list");
        let file = |name: &str| Series::Trajectory(RelPath::new(name).unwrap());
        check(file("md.xtc"), ".zazen@trajectory=md.xtc", "trajectory=md.xtc");
        check(file("a/{n}%.xtc"), ".zazen@trajectory=a%2f%7bn%7d%25.xtc", "trajectory=a/{n}%.xtc");
        check(files("trajectory=x{n}"), ".zazen@trajectory=x{n}", "trajectory=x{n}");
        check(Series::Trajectories, ".zazen@trajectories", "trajectories");
        check(Series::Blocks(4096), ".zazen@{n*4096}", "{n*4096}");
        let root = RelPath::default().series(&files("f{n}")).unwrap();
        assert_eq!(root.as_str(), ".zazen@f{n}");
        assert_eq!(root.series_parts(), Some((RelPath::default(), "f{n}".to_owned())));
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let one = files(&format!("{}/é{{n}}", "x".repeat(200)));
        let other = files(&format!("{}/è{{n}}", "x".repeat(200)));
        let wild = files(&format!("{}{{n}}", "/é%".repeat(60).trim_start_matches('/')));
        for series in [&one, &other, &wild] {
            let name = series.folder_name();
            assert!(name.len() <= NAME_BYTES_WHOLE && name.starts_with(SERIES_MARK), "{name}");
            let path = RelPath::default().series(series).unwrap();
            assert_eq!(RelPath::stored(path.as_str()).unwrap(), path);
            assert!(path.series_parts().unwrap().1.ends_with('…'));
        }
        assert_ne!(one.folder_name(), other.folder_name());
    }

    #[test]
    fn strange_paths_are_no_series() {
        for text in [
            ".zazen@",
            ".zazen@x",
            ".zazen@{n:05}",
            ".zazen@a%2",
            ".zazen@%41{n}",
            ".zazen@{n}/x",
            ".zazen@{n*04096}",
            ".zazen@x{n*4096}",
            "../.zazen@{n}",
        ] {
            assert!(RelPath::stored(text).is_err(), "{text}");
        }
        assert!(RelPath::stored("a/b").is_ok_and(|path| !path.is_series()));
    }

    #[test]
    fn writers_and_readers_come_to_one_series() {
        fn check(name: &str, number: u64, expected: Option<&str>) {
            let found = Series::of_file(name, FrameNo::new(number).unwrap());
            assert_eq!(found.as_ref().ok().map(Series::to_string).as_deref(), expected, "{name} {found:?}");
            if let Some(template) = NameTemplate::detect([name])
                && template.number(name) == FrameNo::new(number).ok()
            {
                assert_eq!(found.unwrap(), Series::Files(template.unpadded()), "{name}");
            }
        }
        check("pos-00012.bin", 12, Some("pos-{n}.bin"));
        check("pos-100000.bin", 100_000, Some("pos-{n}.bin"));
        check("step12/data.vtu", 12, Some("step{n}/data.vtu"));
        check("step12/data-3.vtu", 12, Some("step{n}/data-3.vtu"));
        check("run3/f-3.x", 3, Some("run3/f-{n}.x"));
        check("f-3.h5", 3, Some("f-{n}.h5"));
        check("f-3.h5", 5, Some("f-3.h{n}"));
        check("a-7-7-1.x", 7, None);
        check("last.pdb", 12, None);
        check("f-13.x", 12, None);
        check("0", 0, Some("{n}"));
        check("f-00000000000000000000000012", 12, None);
    }

    #[test]
    fn a_series_knows_its_files() {
        let number = FrameNo::new(12).unwrap();
        let series = files("pos-{n:05}.bin");
        assert!(
            series.may_hold("pos-00012.bin", number, false) && series.may_hold("pos-12.bin", number, false)
        );
        for (path, is_part) in [("pos-00012.bin", true), ("vel-00012.bin", false), ("pos-13.bin", false)] {
            assert!(!series.may_hold(path, number, is_part), "{path}");
        }
        assert!(Series::Pieces.may_hold("x", number, true) && !Series::Pieces.may_hold("x", number, false));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn folder_names_are_injective(
            one in "[a-z%/é~2f]{0,90}", other in "[a-z%/é~2f]{0,90}", behind in "[a-z%/]{0,90}",
        ) {
            let series = |before: &str| NameTemplate::new(before, 0, &behind).ok().map(Series::Files);
            if let (Some(one), Some(other)) = (series(&one), series(&other)) {
                prop_assert_eq!(one == other, one.folder_name() == other.folder_name());
                let path = RelPath::new("d").unwrap().series(&one).unwrap();
                prop_assert_eq!(&RelPath::stored(path.as_str()).unwrap(), &path);
                if !one.folder_name().contains(CUT_MARK) {
                    prop_assert_eq!(path.series_parts().unwrap().1, one.to_string());
                }
            }
        }
    }
}
