//! Counts lines of text that comes in pieces.

/// The longest line that is looked at as a whole.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
/// The longest line that is skipped.
pub(crate) const SKIPPED_BYTES_MAX: usize = 1 << 20;

/// Skips up to `lines` lines of `bytes`: (bytes taken, lines taken). All bytes are taken if the
/// lines do not end in them.
pub(crate) fn skip(bytes: &[u8], lines: u64) -> (usize, u64) {
    if lines == 0 {
        return (0, 0);
    }
    let mut skipped = 0;
    for at in memchr::memchr_iter(b'\n', bytes) {
        skipped += 1;
        if skipped == lines {
            return (at + 1, skipped);
        }
    }
    (bytes.len(), skipped)
}

/// The first line of `bytes`, without its end, and its length with the end. `None`: it does not end
/// here.
pub(crate) fn first(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    Some((bytes[..end].trim_ascii(), end + 1))
}

/// The number that a line holds and nothing else.
pub(crate) fn number(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// A line for people: its beginning, without what terminals could misread.
pub(crate) fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(60)]);
    format!("{text:?}")
}
