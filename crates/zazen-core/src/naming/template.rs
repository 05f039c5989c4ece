//! File-name templates: which part of a name is the frame's number.
//!
//! A template has one number (`frame-{n:07}.dcd`), or two where a time step has several files
//! (`step{t}/block{b}.vtu`). Invariant: no two frames have the same name, and a name has one
//! reading at most.

use super::digits::{WIDTH_MAX, Widths, digit_runs, last_digits, spelled};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::FrameNo;
use crate::limits::FRAME_NO_MAX;
use crate::path::RelPath;
use std::collections::BTreeMap;
use std::fmt;

/// In a template with `{t}` and `{b}`, the frame number is t · 2²⁰ + b.
pub const PARTS_PER_STEP_MAX: u64 = 1 << 20;

/// What stands in braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Field {
    /// `{n}`: the frame number.
    Number,
    /// `{t}`: the time step.
    Step,
    /// `{b}`: the file's number in its time step.
    Block,
}

impl Field {
    const ALL: [(&'static str, Field); 3] = [("n", Field::Number), ("t", Field::Step), ("b", Field::Block)];

    fn letter(self) -> &'static str {
        Field::ALL.iter().find(|(_, field)| *field == self).map_or("n", |(letter, _)| letter)
    }

    fn of(self, number: u64) -> u64 {
        match self {
            Field::Number => number,
            Field::Step => number / PARTS_PER_STEP_MAX,
            Field::Block => number % PARTS_PER_STEP_MAX,
        }
    }
}

/// A number in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct NumberField {
    field: Field,
    /// The least number of digits, padded with zeros; 0: not padded. Never 1.
    width: usize,
}

/// A file-name template: `frame-{n:07}.dcd`, `step{n}/data.vtu`, `step{t:04}/block{b}.vtu`.
///
/// Invariant: every name that the template makes is a [`RelPath`] in normal form, and no two frames
/// have the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameTemplate {
    /// What stands before each place.
    places: Vec<(String, NumberField)>,
    suffix: String,
}

/// One component of a template's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// The same name for all frames.
    Fixed(String),
    /// A name with a number.
    Numbered(Component),
}

/// A component of a path with a number in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component(NameTemplate);

impl Component {
    /// Whether a frame may have this name at this level.
    pub fn may_be(&self, name: &str) -> bool {
        self.0.read(name).is_some_and(|values| values.iter().all(|value| value.canonical))
    }
}

/// A number read from a name.
struct Value {
    field: Field,
    number: u64,
    /// Whether the template would print it with these digits.
    canonical: bool,
}

impl NameTemplate {
    /// Parses `prefix{n}suffix`, or a text with `{t}` and `{b}`; each may ask for padding as in
    /// `{n:07}`. Fails with `InvalidArgument` naming what is wrong.
    pub fn parse(text: &str) -> Result<NameTemplate> {
        let refuse = |why: &str| {
            let shown: String = text.chars().take(120).collect();
            let context = format!(
                "name template {shown:?}: {why}; write it like frame-{{n:07}}.dcd, or with a time step and a \
                 block like step{{t}}/block{{b}}.vtu"
            );
            Error::new(ErrorKind::InvalidArgument, context)
        };
        let mut places = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let (inside, behind) =
                behind.split_once('}').ok_or_else(|| refuse("has a `{` without its `}`"))?;
            let place = NumberField::parse(inside).map_err(|error| refuse(error.context()))?;
            places.push((before.to_owned(), place));
            rest = behind;
        }
        if places.is_empty() {
            return Err(refuse("has no place for the frame number"));
        }
        let template = NameTemplate { places, suffix: rest.to_owned() };
        template.check().map_err(|error| refuse(error.context()))?;
        Ok(template)
    }

    /// The template of `prefix`, a number of at least `width` digits (0 or 1: not padded), and
    /// `suffix`.
    ///
    /// Fails with `InvalidArgument` where a name would hold a brace or be no relative path in
    /// normal form.
    pub fn new(prefix: &str, width: usize, suffix: &str) -> Result<NameTemplate> {
        if width > WIDTH_MAX {
            return Err(refused(format!("asks for {width} digits, more than {WIDTH_MAX}")));
        }
        let place = NumberField { field: Field::Number, width: if width == 1 { 0 } else { width } };
        let template = NameTemplate { places: vec![(prefix.to_owned(), place)], suffix: suffix.to_owned() };
        template.check()?;
        Ok(template)
    }

    fn check(&self) -> Result<()> {
        if self.texts().any(|text| text.contains(['{', '}'])) {
            return Err(refused("has a brace that is no number's".into()));
        }
        let has = |field: Field| self.places.iter().any(|(_, place)| place.field == field);
        match (has(Field::Number), has(Field::Step), has(Field::Block)) {
            (true, false, false) if self.places.len() > 1 => {
                return Err(refused("has {n} twice; a time step with several files is {t} and {b}".into()));
            }
            (true, false, false) | (false, true, true) => {}
            _ => return Err(refused("needs either {n}, or both {t} and {b}".into())),
        }
        let between = self.places.iter().skip(1).map(|(text, _)| text);
        if between.clone().any(|text| text.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(refused("has two numbers that only digits or nothing separate".into()));
        }
        for number in [0, FRAME_NO_MAX.min(self.number_max())] {
            let name = self.spell(number);
            let path = RelPath::new(&name).map_err(|error| refused(error.context().to_owned()))?;
            if path.as_str() != name {
                return Err(refused(format!("has a repeated or trailing slash in {name:?}")));
            }
        }
        Ok(())
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|(text, _)| text.as_str()).chain([self.suffix.as_str()])
    }

    fn number_max(&self) -> u64 {
        if self.has_parts() { FRAME_NO_MAX - 1 } else { FRAME_NO_MAX }
    }

    /// Whether a time step has several files: the template has `{t}` and `{b}`.
    pub fn has_parts(&self) -> bool {
        self.places.first().is_some_and(|(_, place)| place.field != Field::Number)
    }

    /// Whether no number is padded.
    pub fn is_unpadded(&self) -> bool {
        self.places.iter().all(|(_, place)| place.width == 0)
    }

    /// The components of the path, from the dataset's directory down.
    pub fn levels(&self) -> Vec<Level> {
        self.to_string().split('/').map(Level::of).collect()
    }

    /// The folder that holds every frame, relative to the dataset; `None` where a number is part of
    /// a folder's name.
    pub fn folder(&self) -> Option<RelPath> {
        let text = self.to_string();
        let folder = text.rsplit_once('/').map_or("", |(folder, _)| folder);
        if folder.contains('{') {
            return None;
        }
        RelPath::new(folder).ok()
    }

    /// The same template without padding.
    pub fn unpadded(&self) -> NameTemplate {
        let mut same = self.clone();
        same.places.iter_mut().for_each(|(_, place)| place.width = 0);
        same
    }

    /// Whether `name` spells `number` in this template's places, with any padding.
    pub fn spells(&self, name: &str, number: FrameNo) -> bool {
        self.read(name).and_then(|values| self.joined(&values)) == Some(number)
    }

    /// The template of a file that a writer calls frame `number`. The frame number is the group of
    /// digits that [`NameTemplate::detect`] would take, if these digits spell `number`; otherwise
    /// it is the only group of digits that spells `number`.
    ///
    /// Fails with `InvalidArgument` if no group of digits spells `number`, or several do.
    pub fn of_file(name: &str, number: FrameNo) -> Result<NameTemplate> {
        let refuse = |why: &str| {
            let context = format!(
                "file {name} as frame {number}: {why}; give a pattern (like frame-{{n:07}}.dcd), or list the \
                 files in zazen.toml"
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
        let mut name = String::new();
        for (text, place) in &self.places {
            name.push_str(text);
            name.push_str(&format!("{:0width$}", place.field.of(number), width = place.width));
        }
        name + &self.suffix
    }

    /// The number that `name` spells, if `name` is exactly what [`NameTemplate::name`] would print
    /// for it.
    pub fn number(&self, name: &str) -> Option<FrameNo> {
        let values = self.read(name)?;
        if values.iter().any(|value| !value.canonical) {
            return None;
        }
        self.joined(&values)
    }

    /// The digits of each place.
    fn read(&self, name: &str) -> Option<Vec<Value>> {
        let (first, _) = self.places.first()?;
        let mut rest = name.strip_prefix(first.as_str())?.strip_suffix(self.suffix.as_str())?;
        let mut values = Vec::with_capacity(self.places.len());
        for (index, (_, place)) in self.places.iter().enumerate() {
            let digits = match self.places.get(index + 1) {
                None => std::mem::take(&mut rest),
                Some((text, _)) => {
                    // The text holds something that is no digit, so it shows where the number ends.
                    let lead = text.bytes().take_while(u8::is_ascii_digit).count();
                    let run = rest.bytes().take_while(u8::is_ascii_digit).count();
                    let (digits, behind) = rest.split_at(run.checked_sub(lead)?);
                    rest = behind.strip_prefix(text.as_str())?;
                    digits
                }
            };
            values.push(place.value(digits)?);
        }
        Some(values)
    }

    /// The frame number, if places of one field agree and it is within the limits.
    fn joined(&self, values: &[Value]) -> Option<FrameNo> {
        let of = |field: Field| {
            let mut numbers = values.iter().filter(|value| value.field == field).map(|value| value.number);
            let first = numbers.next()?;
            numbers.all(|number| number == first).then_some(first)
        };
        if !self.has_parts() {
            return FrameNo::new(of(Field::Number)?).ok();
        }
        let (step, block) = (of(Field::Step)?, of(Field::Block)?);
        (step < PARTS_PER_STEP_MAX && block < PARTS_PER_STEP_MAX)
            .then(|| FrameNo::new(step * PARTS_PER_STEP_MAX + block).ok())
            .flatten()
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

    /// The template that gives exactly these names, where `steps` has the files of each time step.
    /// `None` if the names follow none: then they need a list.
    ///
    /// A group of digits that differs from step to step only is the step; one that differs within
    /// a step is the block. With one step, or one file a step, the template has one number.
    pub fn of_steps<S: AsRef<str>>(steps: &[Vec<S>]) -> Option<NameTemplate> {
        let names: Vec<Vec<&str>> =
            steps.iter().map(|step| step.iter().map(AsRef::as_ref).collect()).collect();
        let groups = |name: &str| -> Vec<String> {
            digit_runs(name).map(|(_, digits, _)| digits.to_owned()).collect()
        };
        let skeleton = |name: &str| -> Vec<String> {
            name.split(|letter: char| letter.is_ascii_digit())
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let all: Vec<&str> = names.iter().flatten().copied().collect();
        let first = all.first()?;
        let begins = |name: &str| name.starts_with(|letter: char| letter.is_ascii_digit());
        let alike = |name: &&str| {
            skeleton(name) == skeleton(first)
                && groups(name).len() == groups(first).len()
                && begins(name) == begins(first)
        };
        if !all.iter().all(alike) {
            return None;
        }
        let digits: Vec<Vec<Vec<String>>> =
            names.iter().map(|step| step.iter().map(|name| groups(name)).collect()).collect();
        let mut fields = Vec::new();
        for at in 0..groups(first).len() {
            let within =
                |step: &Vec<Vec<String>>| step.iter().any(|name| spelled(&name[at]) != spelled(&step[0][at]));
            let differs = digits.iter().flatten().any(|name| name[at] != digits[0][0][at]);
            fields.push(match (digits.iter().any(within), differs) {
                (_, false) => None,
                (true, true) => Some(Field::Block),
                (false, true) => Some(Field::Step),
            });
        }
        let kinds: std::collections::BTreeSet<Field> = fields.iter().flatten().copied().collect();
        if kinds.len() == 1 {
            fields.iter_mut().flatten().for_each(|field| *field = Field::Number);
        }
        let template = NameTemplate::from_groups(first, &fields, &digits)?;
        template.check().ok()?;
        let mut numbers: Vec<FrameNo> = Vec::new();
        for name in &all {
            numbers.push(template.number(name)?);
        }
        numbers.sort_unstable();
        numbers.windows(2).all(|pair| pair[0] != pair[1]).then_some(template)
    }

    fn from_groups(
        name: &str,
        fields: &[Option<Field>],
        digits: &[Vec<Vec<String>>],
    ) -> Option<NameTemplate> {
        let mut places = Vec::new();
        let mut before = String::new();
        let mut end = 0;
        for (at, (prefix, group, _)) in digit_runs(name).enumerate() {
            before.push_str(&name[end..prefix.len()]);
            end = prefix.len() + group.len();
            let Some(field) = fields.get(at).copied().flatten() else {
                before.push_str(group);
                continue;
            };
            let mut padded = digits
                .iter()
                .flatten()
                .map(|name| &name[at])
                .filter(|digits| digits.len() > 1 && digits.starts_with('0'));
            let width = padded.next().map_or(0, String::len);
            if width > WIDTH_MAX {
                return None;
            }
            places.push((std::mem::take(&mut before), NumberField { field, width }));
        }
        before.push_str(&name[end..]);
        (!places.is_empty()).then_some(NameTemplate { places, suffix: before })
    }
}

impl NumberField {
    /// The place of what stands in braces.
    fn parse(inside: &str) -> Result<NumberField> {
        let (letter, format) = inside.split_once(':').map_or((inside, None), |(l, f)| (l, Some(f)));
        let known = Field::ALL.iter().find(|(known, _)| *known == letter);
        let (_, field) = known.ok_or_else(|| refused("only {n}, {t} or {b} may stand in braces".into()))?;
        let width = match format {
            None => 0,
            Some(format) => format
                .strip_prefix('0')
                .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .filter(|width| (1..=WIDTH_MAX).contains(width))
                .ok_or_else(|| {
                    refused("the number's format is not {n} or {n:0W} with W from 1 to 20".into())
                })?,
        };
        Ok(NumberField { field: *field, width: if width == 1 { 0 } else { width } })
    }

    fn value(&self, digits: &str) -> Option<Value> {
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let needless_zero = digits.len() > 1 && digits.starts_with('0') && digits.len() != self.width;
        let canonical = digits.len() >= self.width && !needless_zero;
        if digits.len() > WIDTH_MAX {
            return None;
        }
        Some(Value { field: self.field, number: digits.parse().ok()?, canonical })
    }
}

impl Level {
    fn of(text: &str) -> Level {
        let mut places = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{')
            && let Some((inside, behind)) = behind.split_once('}')
            && let Ok(place) = NumberField::parse(inside)
        {
            places.push((before.to_owned(), place));
            rest = behind;
        }
        match places.is_empty() {
            true => Level::Fixed(text.to_owned()),
            false => Level::Numbered(Component(NameTemplate { places, suffix: rest.to_owned() })),
        }
    }
}

impl fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (text, place) in &self.places {
            let letter = place.field.letter();
            match place.width {
                0 => write!(f, "{text}{{{letter}}}")?,
                width => write!(f, "{text}{{{letter}:0{width}}}")?,
            }
        }
        f.write_str(&self.suffix)
    }
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

#[cfg(test)]
mod tests;
