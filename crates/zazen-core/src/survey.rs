//! Finds the frames among the files of a directory that has no pattern and no manifest.
//!
//! The rule: files whose names differ only in their last digits are a numbered series. If a
//! directory has one series of two files or more, these are its frames, and single files beside it
//! (a topology, a README) are ignored. If it has a second such series, it is not known which one is
//! meant, and a reader would not notice that it got half of the files. This is an error, which
//! lists what was found.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::FRAME_NO_MAX;
use crate::naming::{NameTemplate, WIDTH_MAX, Widths, last_digits};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Extensions of files that usually hold many frames.
const CONTAINERS: [&str; 15] = [
    "xtc",
    "trr",
    "dcd",
    "nc",
    "ncdf",
    "netcdf",
    "h5",
    "hdf5",
    "h5md",
    "tng",
    "mdcrd",
    "trj",
    "lammpstrj",
    "gsd",
    "binpos",
];
/// Stands in a listed name for what is not UTF-8 there. No file's name has it, so that such a name
/// spells no file, and whoever would need the file says so.
pub const NO_UTF8: char = '\0';
/// Patterns that an error lists.
const LISTED_MAX: usize = 12;

/// Files with the same prefix, suffix and width of the number. Names may be many and long, so a
/// group keeps none of its own.
struct Group<'a> {
    prefix: &'a str,
    suffix: &'a str,
    /// The template's width; `None` if there is none: the numbers are beyond the limit, or no
    /// pattern spells such names.
    width: Option<usize>,
    files: u64,
    example: &'a str,
}

impl Group<'_> {
    fn template(&self) -> Option<NameTemplate> {
        NameTemplate::new(self.prefix, self.width?, self.suffix).ok()
    }

    /// In an error, the group with most files comes first.
    fn order(&self) -> (Reverse<u64>, &str, Option<usize>, &str) {
        (Reverse(self.files), self.prefix, self.width, self.suffix)
    }

    fn pattern(&self) -> String {
        match self.template() {
            Some(template) => template.to_string(),
            None => format!("{}{{n}}{}", self.prefix, self.suffix).replace(NO_UTF8, "\u{fffd}"),
        }
    }

    /// Why these files cannot be the frames: for a group without a template.
    fn refuse(&self) -> Error {
        let pattern = self.pattern();
        let texts = [self.prefix, self.suffix];
        refuse(if texts.iter().any(|text| text.contains(NO_UTF8)) {
            format!("the names of {pattern} ({} files) are not UTF-8: rename them", self.files)
        } else if texts.iter().any(|text| text.contains(['{', '}'])) {
            format!(
                "the names of {pattern} ({} files) have braces, which no pattern can: give pattern=\"*\" \
                 to number the files by their sorted names, or list them (zazen number DIR)",
                self.files
            )
        } else {
            format!(
                "the numbers of {pattern} are beyond the limit of 2^40 ({FRAME_NO_MAX}): give pattern=\"*\" \
                 to number the files by their sorted names, or list them (zazen number DIR)"
            )
        })
    }
}

/// The template of the frames among `names`; `None` if no name has a number.
///
/// Fails with `InvalidArgument` if several templates fit, or if the only file usually holds many
/// frames.
pub fn choose<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Option<NameTemplate>> {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let groups = groups(&names);
    let (mut several, mut single): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.files > 1);
    let candidates = if several.is_empty() { &mut single } else { &mut several };
    if candidates.len() > 1 {
        return Err(ambiguous(candidates, &names));
    }
    let chosen = candidates.pop();
    let alone = chosen.as_ref().is_none_or(|group| group.files == 1);
    let frames = || chosen.as_ref().map(|group| group.example).into_iter().chain(names.iter().copied());
    if alone && let Some(container) = frames().find(|name| is_container(name)) {
        let container = container.replace(NO_UTF8, "\u{fffd}");
        return Err(refuse(format!(
            "{container} looks like a trajectory file, which holds many frames, and no other files are \
             numbered alike: open it by its own path, name it in zazen.toml (trajectories = [..], or \
             [[pieces]]), or give pattern= to take the whole file as one frame"
        )));
    }
    match chosen {
        Some(group) if group.width.is_none() => Err(group.refuse()),
        Some(group) => Ok(group.template()),
        None => Ok(None),
    }
}

/// The trajectory file among `names`, if there is exactly one and no series of two files or more.
/// `None` if its name has a number: it may be the first file of a series.
pub fn lone_trajectory<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let mut containers = names.iter().filter(|name| is_container(name));
    let (Some(alone), None) = (containers.next(), containers.next()) else { return None };
    let no_series = groups(&names).iter().all(|group| group.files == 1);
    (no_series && !has_number(alone)).then_some(*alone)
}

/// Whether a file of this name may be one of a numbered series.
pub fn has_number(name: &str) -> bool {
    numbered(name).is_some()
}

/// The digits of `name` that may be a frame number. Those in the ending of a trajectory file, as in
/// `.h5md`, are none.
fn numbered(name: &str) -> Option<(&str, &str, &str)> {
    last_digits(name).filter(|(_, _, behind)| behind.contains('.') || !is_container(name))
}

/// Whether files with this name usually hold many frames.
pub fn is_container(name: &str) -> bool {
    let extension =
        name.rsplit('/').next().and_then(|last| last.rsplit_once('.')).map(|(_, extension)| extension);
    extension.is_some_and(|found| CONTAINERS.iter().any(|known| found.eq_ignore_ascii_case(known)))
}

fn groups<'a>(names: &[&'a str]) -> Vec<Group<'a>> {
    let mut around: BTreeMap<(&str, &str), (Widths, Vec<&str>)> = BTreeMap::new();
    let mut beyond: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (at, name) in names.iter().enumerate() {
        let Some((prefix, digits, suffix)) = numbered(name) else { continue };
        let fits =
            digits.len() <= WIDTH_MAX && digits.parse().is_ok_and(|number: u64| number <= FRAME_NO_MAX);
        if fits {
            let (widths, all) =
                around.entry((prefix, suffix)).or_insert_with(|| (Widths::new(at), Vec::new()));
            widths.count(digits);
            all.push(name);
        } else {
            beyond.entry((prefix, suffix)).or_default().push(name);
        }
    }
    let mut groups = Vec::new();
    for ((prefix, suffix), (widths, all)) in around {
        split_by_width(prefix, suffix, &widths, &all, &mut groups);
    }
    for ((prefix, suffix), all) in beyond {
        let example = all.first().copied().unwrap_or_default();
        groups.push(Group { prefix, suffix, width: None, files: all.len() as u64, example });
    }
    groups
}

/// `f-12` and `f-0012` are two files, and both may be there: each width is a series.
fn split_by_width<'a>(
    prefix: &'a str,
    suffix: &'a str,
    widths: &Widths,
    all: &[&'a str],
    into: &mut Vec<Group<'a>>,
) {
    let mut left = all.to_vec();
    let mut width = widths.best().0;
    while !left.is_empty() {
        let Ok(template) = NameTemplate::new(prefix, width, suffix) else {
            // No pattern spells these names. They are told, not left out.
            let example = left.first().copied().unwrap_or_default();
            into.push(Group { prefix, suffix, width: None, files: left.len() as u64, example });
            return;
        };
        let (ours, others): (Vec<&str>, Vec<&str>) =
            left.iter().partition(|name| template.number(name).is_some());
        let Some(example) = ours.first() else { return };
        into.push(Group { prefix, suffix, width: Some(width), files: ours.len() as u64, example });
        // The next template has the width of the first remaining name, so it matches at least that
        // name.
        let digits = others.first().map_or("", |name| &name[prefix.len()..name.len() - suffix.len()]);
        width = if digits.starts_with('0') { digits.len() } else { 0 };
        left = others;
    }
}

fn ambiguous(groups: &mut [Group<'_>], names: &[&str]) -> Error {
    groups.sort_by(|one, other| one.order().cmp(&other.order()));
    let listed = groups.iter().take(LISTED_MAX);
    let listed: Vec<String> =
        listed.map(|group| format!("{} ({} files)", group.pattern(), group.files)).collect();
    let more = match groups.len().saturating_sub(LISTED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let both = match parts(names) {
        Some(template) => format!("pattern={template} for all of them (time step t, block b), "),
        None => String::new(),
    };
    refuse(format!(
        "its files are numbered in {} ways: {}{more}; give {both}pattern= for one of them, or pattern=\"*\" \
         to number all files by their sorted names",
        groups.len(),
        listed.join(", ")
    ))
}

/// The template of names with a time step and a block.
fn parts(names: &[&str]) -> Option<NameTemplate> {
    let mut steps: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for name in names {
        if let Some((prefix, _, suffix)) = last_digits(name) {
            steps.entry((prefix, suffix)).or_default().push(name);
        }
    }
    NameTemplate::of_steps(&steps.into_values().collect::<Vec<_>>())
}

fn refuse(why: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(template: &str, count: u64) -> Vec<String> {
        let template = NameTemplate::parse(template).unwrap();
        (0..count).map(|n| template.name(crate::FrameNo::new(n).unwrap())).collect()
    }

    fn check(parts: &[&[String]], lone: &[&str], expected: std::result::Result<Option<&str>, &[&str]>) {
        let names = parts.iter().flat_map(|part| part.iter().map(String::as_str)).chain(lone.iter().copied());
        match (choose(names), expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!(found.map(|template| template.to_string()).as_deref(), expected);
            }
            (Err(error), Err(words)) => {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
            }
            (found, expected) => panic!("{found:?} where {expected:?} is expected"),
        }
    }

    #[test]
    fn one_series_is_found_beside_single_files() {
        check(&[], &[], Ok(None));
        check(&[], &["README", "top.pdb"], Ok(None));
        check(
            &[&many("f-{n:04}.bin", 20)],
            &["top.pdb", "run7.log", "notes-2024.txt"],
            Ok(Some("f-{n:04}.bin")),
        );
        check(&[&many("f{n}.bin", 1100)], &["top.pdb"], Ok(Some("f{n}.bin")));
        check(&[&many("f-{n:02}.bin", 120)], &[], Ok(Some("f-{n:02}.bin")));
        check(&[], &["f-7.bin", "README"], Ok(Some("f-{n}.bin")));
        check(&[&many("f-{n}.dcd", 2)], &["top.dcd"], Ok(Some("f-{n}.dcd")));
    }

    #[test]
    fn a_second_series_is_an_error() {
        let words = ["cat_{n}.jpg (100 files)", "dog_{n}.jpg (90 files)", "pattern="];
        check(&[&many("cat_{n}.jpg", 100), &many("dog_{n}.jpg", 90)], &["x.txt"], Err(&words));
        check(&[&many("f-{n}", 30), &many("f-{n:04}", 30)], &[], Err(&["f-{n} (", "f-{n:04} ("]));
        check(&[], &["a1.x", "b2.y"], Err(&["a{n}.x (1 files)", "b{n}.y (1 files)"]));
        let parts = [many("t0_b{n}.vtu", 3), many("t1_b{n}.vtu", 3)];
        check(&[&parts[0], &parts[1]], &[], Err(&["pattern=t{t}_b{b}.vtu for all of them", "in 2 ways"]));
        let twenty: Vec<Vec<String>> =
            (0..20).map(|k| many(&format!("s{}-{{n}}", "x".repeat(k + 1)), 2)).collect();
        let parts: Vec<&[String]> = twenty.iter().map(Vec::as_slice).collect();
        check(&parts, &[], Err(&["in 20 ways", "and 8 more"]));
    }

    #[test]
    fn numbers_beyond_the_limit_are_not_left_out() {
        let stamps = ["f-1699999999999.x".to_owned(), "f-1700000000000.x".to_owned()];
        check(&[&stamps], &[], Err(&["2^40"]));
        check(&[&many("f{n}.x", 5), &stamps], &[], Err(&["f-{n}.x (2 files)", "f{n}.x (5 files)"]));
    }

    #[test]
    fn names_that_no_pattern_spells_are_not_left_out() {
        let braces = ["a{n}1.x".to_owned(), "a{n}2.x".to_owned()];
        check(&[&braces], &["README"], Err(&["a{n}{n}.x (2 files)", "pattern=\"*\""]));
        let no_utf8 = ["f\0-1.x".to_owned(), "f\0-2.x".to_owned()];
        check(&[&no_utf8], &[], Err(&["f\u{fffd}-{n}.x (2 files)", "not UTF-8", "rename"]));
        check(
            &[&many("f-{n}.x", 5), &no_utf8],
            &[],
            Err(&["f-{n}.x (5 files)", "f\u{fffd}-{n}.x (2 files)"]),
        );
        // A single file is as any other beside a series.
        check(&[&many("f-{n}.x", 5)], &["f\0-7.x", "\0.txt"], Ok(Some("f-{n}.x")));
    }

    #[test]
    fn a_trajectory_alone_is_found() {
        let check = |names: &[&str], expected| {
            assert_eq!(lone_trajectory(names.iter().copied()), expected, "{names:?}");
        };
        check(&["md.xtc", "top.gro", "run7.log"], Some("md.xtc"));
        check(&["md.xtc", "md.trr"], None);
        check(&["frame-12.xtc"], None);
        check(&["md.h5md", "top.gro"], Some("md.h5md"));
        check(&["md.h5"], Some("md.h5"));
        check(&["run1.h5md"], None);
        check(&["a.h5", "b.h5"], None);
        check(&["md.xtc", "f1.bin", "f2.bin"], None);
        check(&[], None);
    }

    #[test]
    fn a_trajectory_alone_is_no_frame() {
        for name in ["traj.xtc", "traj-1.XTC", "run1.h5md", "md.h5md", "md.hdf5", "md.trr"] {
            check(&[], &[name, "top.pdb"], Err(&[name, "zazen.toml", "pattern="]));
        }
        check(&[&many("frame-{n}.xtc", 2)], &[], Ok(Some("frame-{n}.xtc")));
        check(&[&many("frame-{n}.h5", 2)], &["top.h5"], Ok(Some("frame-{n}.h5")));
        check(&[], &["a.h5", "b.h5"], Err(&["a.h5 looks like a trajectory"]));
        assert!(
            is_container("a.b/x.nc")
                && !is_container("xtc")
                && !is_container("a.xtc/b")
                && !is_container("a.pdb")
        );
    }
}
