//! Groups of digits in names, and what they tell about padding.

use crate::frame::FrameNo;

/// The most digits that a template may ask for: those of the largest u64.
pub(crate) const WIDTH_MAX: usize = 20;

/// For the names of one prefix and suffix: counts by number of digits, with and without a leading
/// zero.
pub(crate) struct Widths {
    /// The position of the first of these names among all names, sorted.
    pub(super) met_at: usize,
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
pub(super) fn spelled(digits: &str) -> Option<FrameNo> {
    let fits = (1..=WIDTH_MAX).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !fits {
        return None;
    }
    FrameNo::new(digits.parse().ok()?).ok()
}

/// Every group of digits in `name`: the text before it, the digits, the text after it.
pub(crate) fn digit_runs(name: &str) -> impl Iterator<Item = (&str, &str, &str)> {
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
