//! Maps frame numbers to sources: file-name templates, pieces of trajectory files, lists of files,
//! blocks of any file.

use crate::error::{Error, ErrorKind, Result};
use crate::frame::FrameNo;
use crate::limits::FRAME_NO_MAX;
use crate::path::RelPath;
use crate::runset::RunSet;
use crate::source::Source;
use crate::trajectory::Trajectory;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

mod blocks;
mod pieces;

pub use blocks::Blocks;
pub use pieces::Piece;

/// The most digits that a template may ask for: those of the largest u64.
pub(crate) const WIDTH_MAX: usize = 20;

/// A file-name template with one place for the number: `frame-{n:07}.dcd`, `step{n}/data.vtu`.
///
/// Invariant: every name that the template makes is a [`RelPath`] in normal form, and no two frames
/// have the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameTemplate {
    prefix: String,
    suffix: String,
    /// The least number of digits, padded with zeros; 0: not padded. Never 1.
    width: usize,
}

impl NameTemplate {
    /// Parses `prefix{n}suffix` or `prefix{n:0W}suffix`; fails with `InvalidArgument` naming what
    /// is wrong.
    pub fn parse(text: &str) -> Result<NameTemplate> {
        let refuse = |why: &str| {
            let shown: String = text.chars().take(120).collect();
            let context =
                format!("name template {shown:?}: {why}; write it like frame-{{n:07}}.dcd or step{{n}}.vtu");
            Error::new(ErrorKind::InvalidArgument, context)
        };
        let (prefix, rest) =
            text.split_once('{').ok_or_else(|| refuse("has no place for the frame number"))?;
        let (field, suffix) = rest.split_once('}').ok_or_else(|| refuse("has a `{` without its `}`"))?;
        let width = match field.strip_prefix('n') {
            Some("") => 0,
            Some(format) => format
                .strip_prefix(":0")
                .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .filter(|width| (1..=WIDTH_MAX).contains(width))
                .ok_or_else(|| refuse("the number's format is not {n} or {n:0W} with W from 1 to 20"))?,
            None => return Err(refuse("only {n} or {n:0W} may stand in braces")),
        };
        NameTemplate::new(prefix, width, suffix).map_err(|error| refuse(error.context()))
    }

    /// The template of `prefix`, a number of at least `width` digits (0 or 1: not padded), and
    /// `suffix`.
    ///
    /// Fails with `InvalidArgument` where a name would hold a brace or be no relative path in
    /// normal form.
    pub fn new(prefix: &str, width: usize, suffix: &str) -> Result<NameTemplate> {
        let refuse = |why: String| Error::new(ErrorKind::InvalidArgument, why);
        if [prefix, suffix].iter().any(|part| part.contains(['{', '}'])) {
            return Err(refuse("has a brace outside its one {n}".into()));
        }
        if width > WIDTH_MAX {
            return Err(refuse(format!("asks for {width} digits, more than {WIDTH_MAX}")));
        }
        let width = if width == 1 { 0 } else { width };
        let template = NameTemplate { prefix: prefix.to_owned(), suffix: suffix.to_owned(), width };
        for number in [0, FRAME_NO_MAX] {
            let name = template.spell(number);
            let path = RelPath::new(&name).map_err(|error| refuse(error.context().to_owned()))?;
            if path.as_str() != name {
                return Err(refuse(format!("has a repeated or trailing slash in {name:?}")));
            }
        }
        Ok(template)
    }

    /// What stands before the number; may hold slashes.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What stands behind the number; may hold slashes.
    pub fn suffix(&self) -> &str {
        &self.suffix
    }

    /// The least number of digits, padded with zeros; 0: not padded.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The folder that holds every frame, relative to the dataset; `None` where the number is part
    /// of a folder's name, so that each frame has its own.
    pub fn folder(&self) -> Option<RelPath> {
        if self.suffix.contains('/') {
            return None;
        }
        let folder = self.prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        RelPath::new(folder).ok()
    }

    /// The same template without padding.
    pub fn unpadded(&self) -> NameTemplate {
        NameTemplate { width: 0, ..self.clone() }
    }

    /// Whether `name` spells `number` in this template's place, with any padding.
    pub fn spells(&self, name: &str, number: FrameNo) -> bool {
        let digits =
            name.strip_prefix(self.prefix.as_str()).and_then(|rest| rest.strip_suffix(self.suffix.as_str()));
        digits.is_some_and(|digits| spelled(digits) == Some(number))
    }

    /// The template of a file that a writer calls frame `number`. The frame number is the group of
    /// digits that [`NameTemplate::detect`] would take, if these digits spell `number`; otherwise
    /// it is the only group of digits that spells `number`.
    ///
    /// Fails with `InvalidArgument` if no group of digits spells `number`, or several do.
    pub fn of_file(name: &str, number: FrameNo) -> Result<NameTemplate> {
        let refuse = |why: &str| {
            let context = format!(
                "file {name} as frame {number}: {why}; give a pattern (like frame-{{n:07}}.dcd), or list the files in \
                 zazen.toml"
            );
            Err(Error::new(ErrorKind::InvalidArgument, context))
        };
        let runs = digit_runs(name).filter(|(_, digits, _)| spelled(digits) == Some(number));
        let mut runs: Vec<_> = runs.collect();
        if let Some(last) = last_digits(name).filter(|(_, digits, _)| spelled(digits) == Some(number)) {
            runs = vec![last];
        }
        match runs[..] {
            [(prefix, digits, suffix)] => {
                let width = if digits.starts_with('0') { digits.len() } else { 0 };
                NameTemplate::new(prefix, width, suffix)
            }
            [] => refuse("its name does not hold that number"),
            _ => refuse("its name holds that number more than once"),
        }
    }

    /// The name of frame `number`.
    pub fn name(&self, number: FrameNo) -> String {
        self.spell(number.get())
    }

    fn spell(&self, number: u64) -> String {
        format!("{}{number:0width$}{}", self.prefix, self.suffix, width = self.width)
    }

    /// The number that `name` spells, if `name` is exactly what [`NameTemplate::name`] would print
    /// for it.
    pub fn number(&self, name: &str) -> Option<FrameNo> {
        let digits = name.strip_prefix(self.prefix.as_str())?.strip_suffix(self.suffix.as_str())?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let needless_zero = digits.len() > 1 && digits.starts_with('0') && digits.len() != self.width;
        if digits.len() < self.width || needless_zero {
            return None;
        }
        FrameNo::new(digits.parse().ok()?).ok()
    }

    /// The template that most of `names` follow, by the last run of digits of each; `None` if no
    /// name has one. Ties go to the template met first in sorted order, so that every node agrees.
    ///
    /// Digits in the extension (`.h5`, `.mp4`) count only if a name has no other digits. An
    /// extension begins with a letter, so in `frame.0007` the digits are not an extension. Names
    /// with leading zeros show the padding: the template gets the width with which most names
    /// agree.
    pub fn detect<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<NameTemplate> {
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        let mut groups: BTreeMap<(&str, &str), Widths> = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            if let Some((prefix, digits, suffix)) = last_digits(name)
                && digits.parse().is_ok_and(|number: u64| number <= FRAME_NO_MAX)
                && digits.len() <= WIDTH_MAX
            {
                groups.entry((prefix, suffix)).or_insert_with(|| Widths::new(at)).count(digits);
            }
        }
        let mut best: Option<(u64, usize, NameTemplate)> = None;
        for ((prefix, suffix), widths) in groups {
            let (width, followers) = widths.best();
            let better = best.as_ref().is_none_or(|(most, met, _)| {
                followers > *most || (followers == *most && widths.met_at < *met)
            });
            if better && let Ok(template) = NameTemplate::new(prefix, width, suffix) {
                best = Some((followers, widths.met_at, template));
            }
        }
        best.map(|(_, _, template)| template)
    }
}

impl fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.width {
            0 => write!(f, "{}{{n}}{}", self.prefix, self.suffix),
            width => write!(f, "{}{{n:0{width}}}{}", self.prefix, self.suffix),
        }
    }
}

/// For the names of one prefix and suffix: counts by number of digits, with and without a leading
/// zero.
pub(crate) struct Widths {
    /// The position of the first of these names among all names, sorted.
    met_at: usize,
    plain: [u64; WIDTH_MAX + 1],
    padded: [u64; WIDTH_MAX + 1],
}

impl Widths {
    pub(crate) fn new(met_at: usize) -> Widths {
        Widths { met_at, plain: [0; WIDTH_MAX + 1], padded: [0; WIDTH_MAX + 1] }
    }

    pub(crate) fn count(&mut self, digits: &str) {
        let padded = digits.len() > 1 && digits.starts_with('0');
        let counts = if padded { &mut self.padded } else { &mut self.plain };
        counts[digits.len()] += 1;
    }

    /// The width that most names agree with, and how many do; padding wins a tie.
    pub(crate) fn best(&self) -> (usize, u64) {
        let plain: u64 = self.plain.iter().sum();
        let seen = (2..=WIDTH_MAX).filter(|width| self.padded[*width] > 0);
        let followers = |width: usize| self.padded[width] + self.plain[width..].iter().sum::<u64>();
        let choices = seen.map(|width| (width, followers(width)));
        choices.fold((0, plain), |best, choice| if choice.1 >= best.1 { choice } else { best })
    }
}

/// The frame number that `digits` spell, with any padding that a template can ask for.
fn spelled(digits: &str) -> Option<FrameNo> {
    let fits = (1..=WIDTH_MAX).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !fits {
        return None;
    }
    FrameNo::new(digits.parse().ok()?).ok()
}

/// Every group of digits in `name`: the text before it, the digits, the text after it.
fn digit_runs(name: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + name[at..].find(|c: char| c.is_ascii_digit())?;
        let end = name[start..].find(|c: char| !c.is_ascii_digit()).map_or(name.len(), |len| start + len);
        at = end;
        Some((&name[..start], &name[start..end], &name[end..]))
    })
}

/// The digits of `name` that may be a frame number: the text before them, the digits, the text
/// after them.
pub(crate) fn last_digits(name: &str) -> Option<(&str, &str, &str)> {
    let component = name.rfind('/').map_or(0, |slash| slash + 1);
    let extension = name[component..]
        .rfind('.')
        .map(|dot| component + dot)
        .filter(|dot| *dot > component && !name[dot + 1..].starts_with(|first: char| first.is_ascii_digit()))
        .unwrap_or(name.len());
    let digit = |byte: &u8| byte.is_ascii_digit();
    let within = |end: usize| name.as_bytes()[..end].iter().rposition(digit);
    let last = within(extension).or_else(|| within(name.len()))?;
    let first = name.as_bytes()[..last].iter().rposition(|byte| !digit(byte)).map_or(0, |at| at + 1);
    Some((&name[..first], &name[first..=last], &name[last + 1..]))
}

/// How a dataset's frame numbers map to sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One file per frame.
    Files(NameTemplate),
    /// Frames inside trajectory files.
    Pieces(Vec<Piece>),
    /// One file per frame, whatever its name: frame i is file i of the list.
    List(Vec<RelPath>),
    /// All frames of trajectory files.
    Trajectory(Arc<Trajectory>),
    /// Byte ranges of one version of a file.
    Blocks(Blocks),
}

impl Layout {
    /// The source of frame `number`, if this layout has one.
    pub fn source(&self, number: FrameNo) -> Option<Source> {
        match self {
            Layout::Files(template) => {
                Some(Source { path: RelPath::new(&template.name(number)).ok()?, offset: 0, length: None })
            }
            Layout::Pieces(pieces) => {
                let number = number.get();
                // Pieces are usually in order. If they are not, the search below finds the right
                // one.
                let likely = pieces.partition_point(|piece| piece.first <= number).checked_sub(1);
                let likely = likely.map(|at| &pieces[at]);
                let (piece, offset) = likely
                    .into_iter()
                    .chain(pieces)
                    .find_map(|piece| piece.offset_of(number).map(|offset| (piece, offset)))?;
                Some(Source { path: piece.path.clone(), offset, length: Some(piece.frame_bytes) })
            }
            Layout::List(files) => {
                let path = files.get(usize::try_from(number.get()).ok()?)?;
                Some(Source { path: path.clone(), offset: 0, length: None })
            }
            Layout::Blocks(blocks) => blocks.source(number),
            Layout::Trajectory(trajectory) => trajectory.source(number.get()),
        }
    }

    /// For pieces, lists, trajectories and blocks, the set of all frame numbers. `None` for a
    /// template: only a directory listing shows which of its numbers exist. Pieces that
    /// [`Layout::validate`] would refuse are left out.
    pub fn declared_extent(&self) -> Option<RunSet> {
        match self {
            Layout::Files(_) => None,
            Layout::Pieces(pieces) => Some(pieces::extent(pieces)),
            Layout::List(files) => Some(match files.len() as u64 {
                0 => RunSet::new(),
                count => RunSet::range(0, count - 1),
            }),
            Layout::Blocks(blocks) => Some(blocks.extent()),
            Layout::Trajectory(trajectory) => Some(trajectory.extent()),
        }
    }

    /// The trajectory of a layout with all frames of trajectory files.
    pub fn trajectory(&self) -> Option<&Trajectory> {
        match self {
            Layout::Trajectory(trajectory) => Some(trajectory),
            Layout::Files(_) | Layout::Pieces(_) | Layout::List(_) | Layout::Blocks(_) => None,
        }
    }

    /// The template of a layout with one file per frame.
    pub fn template(&self) -> Option<&NameTemplate> {
        match self {
            Layout::Files(template) => Some(template),
            _ => None,
        }
    }

    /// The version of a file that this layout is made for; `None` for a layout of another kind.
    pub fn blocks(&self) -> Option<&Blocks> {
        match self {
            Layout::Blocks(blocks) => Some(blocks),
            _ => None,
        }
    }

    /// The pieces of a layout with frames inside trajectory files.
    pub fn pieces(&self) -> Option<&[Piece]> {
        match self {
            Layout::Files(_) | Layout::List(_) | Layout::Trajectory(_) | Layout::Blocks(_) => None,
            Layout::Pieces(pieces) => Some(pieces),
        }
    }

    /// Whether `source` is the source that this layout names for frame `number`.
    pub fn gives(&self, number: FrameNo, source: &Source) -> bool {
        match self {
            Layout::Files(template) => {
                let whole = source.offset == 0 && source.length.is_none();
                whole && template.number(source.path.as_str()) == Some(number)
            }
            Layout::Pieces(_) | Layout::List(_) | Layout::Trajectory(_) | Layout::Blocks(_) => {
                self.source(number).as_ref() == Some(source)
            }
        }
    }

    /// Checks that no frame number or listed file appears twice and that all limits hold. Time and
    /// memory grow with the number of pieces or files, within limits; a layout that needs more is
    /// `TooLarge`.
    pub fn validate(&self) -> Result<()> {
        match self {
            Layout::Files(_) => Ok(()),
            Layout::Pieces(pieces) => pieces::validate(pieces),
            Layout::List(files) => check_list(files),
            Layout::Trajectory(trajectory) => trajectory.validate(),
            Layout::Blocks(blocks) => blocks.validate(),
        }
    }
}

fn check_list(files: &[RelPath]) -> Result<()> {
    let refuse = |number: usize, why: &str| {
        let file = &files[number];
        Err(Error::new(ErrorKind::InvalidArgument, format!("file {number} of the list, {file}: {why}")))
    };
    if let Some(number) = files.iter().position(RelPath::is_root) {
        return refuse(number, "names no file; give the file's path in the dataset");
    }
    // Sorting finds what is listed twice; a list that is sorted already takes one look.
    let mut sorted: Vec<(&RelPath, usize)> = files.iter().zip(0..).collect();
    sorted.sort_unstable();
    let again = sorted.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1).min();
    again.map_or(Ok(()), |number| refuse(number, "is listed twice; a file is one frame"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn template(text: &str) -> NameTemplate {
        NameTemplate::parse(text).unwrap()
    }

    fn frame(number: u64) -> FrameNo {
        FrameNo::new(number).unwrap()
    }

    #[test]
    fn templates_parse_and_print_alike() {
        for text in ["frame-{n:07}.dcd", "step{n}/data.vtu", "{n}", "a/b/{n:02}", "1{n}2", "{n:020}"] {
            assert_eq!(template(text).to_string(), text);
        }
        assert_eq!(template("x{n:01}").to_string(), "x{n}", "one digit is no padding");
    }

    #[test]
    fn bad_templates_are_refused_by_name() {
        let too_long = format!("{}{{n}}", "x".repeat(250));
        for text in [
            "",
            "frame.dcd",
            "frame{n.dcd",
            "frame{}.dcd",
            "{m}",
            "{n:7}",
            "{n:0}",
            "{n:00}",
            "{n:021}",
            "{n:0+7}",
            "{n}{n}",
            "a}{n}",
            "../{n}",
            "a/../{n}",
            "/{n}",
            "a//{n}",
            "{n}/",
            "./{n}",
            ".zazen/{n}",
            "{n}\0",
            &too_long,
        ] {
            let error = NameTemplate::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.context().starts_with("name template"), "{error}");
        }
    }

    #[test]
    fn only_the_exact_spelling_is_a_number() {
        fn check(text: &str, name: &str, expected: Option<u64>) {
            assert_eq!(template(text).number(name).map(FrameNo::get), expected, "{text} of {name}");
        }
        check("f{n:03}.x", "f007.x", Some(7));
        check("f{n:03}.x", "f000.x", Some(0));
        check("f{n:03}.x", "f1000.x", Some(1000));
        check("f{n:03}.x", "f0100.x", None);
        check("f{n:03}.x", "f07.x", None);
        check("f{n:03}.x", "f007.xy", None);
        check("f{n:03}.x", "f.x", None);
        check("f{n}.x", "f0.x", Some(0));
        check("f{n}.x", "f00.x", None);
        check("f{n}.x", "f07.x", None);
        check("f{n}.x", "f+7.x", None);
        check("f{n}.x", "f٧.x", None);
        check("f{n}", "f1099511627776", Some(1 << 40));
        check("f{n}", "f1099511627777", None);
        check("f{n}", "f99999999999999999999999", None);
        check("ab{n}ba", "aba", None);
        check("s{n}/d.vtu", "s12/d.vtu", Some(12));
    }

    #[test]
    fn folder_is_told_where_all_frames_share_one() {
        assert_eq!(template("f{n}").folder(), Some(RelPath::default()));
        assert_eq!(template("a/b/f{n}.x").folder(), RelPath::new("a/b").ok());
        assert_eq!(template("step{n}/data.vtu").folder(), None);
    }

    #[test]
    fn detection_follows_the_majority() {
        fn check(names: &[&str], expected: Option<&str>) {
            let found = NameTemplate::detect(names.iter().copied()).map(|template| template.to_string());
            assert_eq!(found.as_deref(), expected, "{names:?}");
            let backwards = NameTemplate::detect(names.iter().rev().copied());
            assert_eq!(backwards.map(|template| template.to_string()), found, "order matters for {names:?}");
        }
        check(&[], None);
        check(&["topology.pdb", "README"], None);
        check(&["f-0001.dcd", "f-0002.dcd", "topol.pdb"], Some("f-{n:04}.dcd"));
        check(&["f-0999.dcd", "f-1000.dcd"], Some("f-{n:04}.dcd"));
        check(&["f-999.dcd", "f-1000.dcd"], Some("f-{n}.dcd"));
        check(&["f-100.dcd", "f-200.dcd"], Some("f-{n}.dcd"));
        check(&["f-099.x", "f-100.x", "f-1000.x"], Some("f-{n:03}.x"));
        check(&["f0.x", "f1.x", "f10.x"], Some("f{n}.x"));
        check(&["a1.x", "a2.x", "b1.y", "b2.y", "b3.y"], Some("b{n}.y"));
        check(&["b1", "b2", "a1", "a2"], Some("a{n}"));
        check(&["sim2-run3-7.vtu", "sim2-run3-8.vtu"], Some("sim2-run3-{n}.vtu"));
        check(&["step5/data.vtu", "step6/data.vtu"], Some("step{n}/data.vtu"));
        check(&["run1/f01.h5", "run1/f02.h5"], Some("run1/f{n:02}.h5"));
        check(&["movie.mp4"], Some("movie.mp{n}"));
        check(&["f.0007", "f.0008"], Some("f.{n:04}"));
        check(&["log-1699999999999.txt", "f1.x"], Some("f{n}.x"));
        check(&["/abs/1", "../2"], None);
    }

    fn piece(path: &str, first: u64, count: u64, step: u64) -> Piece {
        Piece { path: RelPath::new(path).unwrap(), first, count, step, offset: 100, frame_bytes: 10 }
    }

    #[test]
    fn pieces_give_offsets_and_extent() {
        let layout =
            Layout::Pieces(vec![piece("b", 100, 50, 2), piece("a", 0, 100, 1), piece("c", 101, 50, 2)]);
        layout.validate().unwrap();
        assert_eq!(layout.declared_extent().unwrap(), RunSet::range(0, 199));
        for (number, path, offset) in [(0, "a", 100), (99, "a", 1090), (100, "b", 100), (103, "c", 110)] {
            let source = layout.source(frame(number)).unwrap();
            assert_eq!((source.path.as_str(), source.offset, source.length), (path, offset, Some(10)));
            assert!(layout.gives(frame(number), &source) && !layout.gives(frame(number ^ 1), &source));
        }
        assert_eq!(layout.source(frame(200)), None);
        let files = Layout::Files(template("s/{n:03}"));
        let source = files.source(frame(5)).unwrap();
        assert_eq!((source.path.as_str(), source.offset, source.length), ("s/005", 0, None));
        assert!(files.gives(frame(5), &source) && !files.gives(frame(6), &source));
        assert!(!files.gives(frame(5), &Source { offset: 1, ..source.clone() }));
        assert!(files.declared_extent().is_none() && files.validate().is_ok());
    }

    #[test]
    fn a_list_numbers_its_files() {
        let list =
            |names: &[&str]| Layout::List(names.iter().map(|name| RelPath::new(name).unwrap()).collect());
        let layout = list(&["cat.jpg", "sub/dog 7.jpg"]);
        layout.validate().unwrap();
        assert_eq!(layout.declared_extent().unwrap(), RunSet::range(0, 1));
        assert_eq!(layout.source(frame(1)).unwrap().path.as_str(), "sub/dog 7.jpg");
        assert_eq!((layout.source(frame(2)), layout.source(frame(1)).unwrap().length), (None, None));
        assert!(list(&[]).declared_extent().unwrap().is_empty());
        assert!(list(&["a", "b", "a"]).validate().is_err() && list(&["a", ""]).validate().is_err());
    }

    #[test]
    fn bad_pieces_are_refused() {
        fn check(pieces: Vec<Piece>, kind: ErrorKind) {
            let error = Layout::Pieces(pieces).validate().unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
        check(vec![piece("a", 0, 10, 3), piece("b", 1, 10, 4)], ErrorKind::Conflict);
        check(vec![piece("a", 0, 1 << 39, 2), piece("b", 7, 1 << 30, 3)], ErrorKind::Conflict);
        check(vec![piece("a", 0, 0, 1)], ErrorKind::InvalidArgument);
        check(vec![piece("a", 0, 2, 0)], ErrorKind::InvalidArgument);
        check(vec![piece("", 0, 2, 1)], ErrorKind::InvalidArgument);
        check(vec![piece("a", 1, 1 << 40, 1), piece("a", 1 << 40, 2, 1)], ErrorKind::TooLarge);
        check(vec![piece("a", 0, u64::MAX, u64::MAX)], ErrorKind::TooLarge);
        check(vec![Piece { frame_bytes: 0, ..piece("a", 0, 1, 1) }], ErrorKind::InvalidArgument);
        check(vec![Piece { frame_bytes: u64::MAX, ..piece("a", 0, 2, 1) }], ErrorKind::TooLarge);
        check(vec![Piece { offset: u64::MAX, ..piece("a", 0, 2, 1) }], ErrorKind::TooLarge);
        Layout::Pieces(vec![piece("a", 0, 1 << 39, 2), piece("b", 1, 1 << 39, 2)]).validate().unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn name_and_number_are_inverse(
            prefix in "[a-z0-9_.-]{0,3}(/[a-z0-9]{1,3})?",
            suffix in "[a-z0-9_.-]{0,4}",
            width in 0usize..=20,
            number in prop_oneof![0u64..2000, 0u64..=(1 << 40)],
            other in "[a-z0-9/]{0,8}",
        ) {
            if let Ok(template) = NameTemplate::new(&prefix, width, &suffix) {
                let name = template.name(frame(number));
                prop_assert_eq!(template.number(&name), Some(frame(number)));
                let path = RelPath::new(&name).unwrap();
                prop_assert_eq!(path.as_str(), name.as_str());
                prop_assert_eq!(&NameTemplate::parse(&template.to_string()).unwrap(), &template);
                let strange = format!("{prefix}{other}{suffix}");
                if let Some(found) = template.number(&strange) {
                    prop_assert_eq!(template.name(found), strange);
                }
            }
        }

        #[test]
        fn detection_finds_what_made_the_names(
            width in prop_oneof![Just(0usize), 2usize..8],
            numbers in prop::collection::btree_set(0u64..3000, 1..40),
        ) {
            let made = NameTemplate::new("run/f-", width, ".dcd").unwrap();
            let names: Vec<String> = numbers.iter().map(|number| made.name(frame(*number))).collect();
            let found = NameTemplate::detect(names.iter().map(String::as_str)).unwrap();
            for (name, number) in names.iter().zip(&numbers) {
                prop_assert_eq!(found.number(name), Some(frame(*number)));
            }
        }
    }
}
