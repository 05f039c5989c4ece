//! Lines of text that comes in pieces.

/// The longest line.
const LINE_BYTES_MAX: usize = 1 << 20;

/// The first line of `bytes`, without its end, and its length with the end. `None`: it does not end
/// here.
pub(crate) fn first(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    Some((bytes[..end].trim_ascii(), end + 1))
}

/// Refuses the beginning of a line that is too long to be one.
pub(crate) fn check_open(beginning: &[u8]) -> Result<(), String> {
    match beginning.len() < LINE_BYTES_MAX {
        true => Ok(()),
        false => Err("it has a line that is longer than 1 MiB".to_owned()),
    }
}

/// The number that a line holds and nothing else.
pub(crate) fn number(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// How many fields of a line are numbers.
pub(crate) fn numbers(line: &[u8]) -> usize {
    fields(line).filter(|field| is_number(field)).count()
}

/// How many fields a line has, if all of them are numbers.
pub(crate) fn numbers_alone(line: &[u8]) -> Option<usize> {
    fields(line).all(is_number).then(|| fields(line).count())
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

/// Whether a field is a number as C or Fortran writes it; NaN and infinities are.
fn is_number(field: &[u8]) -> bool {
    let digits = field.strip_prefix(b"-").or_else(|| field.strip_prefix(b"+")).unwrap_or(field);
    let is_named = [&b"nan"[..], b"inf", b"infinity"].iter().any(|name| digits.eq_ignore_ascii_case(name));
    let is_digits = digits.iter().any(u8::is_ascii_digit)
        && digits.iter().all(|byte| byte.is_ascii_digit() || b"+-.eEdD".contains(byte));
    is_named || is_digits
}

/// A line for people: its beginning, without what terminals could misread.
pub(crate) fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(60)]);
    format!("{text:?}")
}
