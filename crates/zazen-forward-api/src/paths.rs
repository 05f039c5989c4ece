//! Path rules: which paths are forwarded, and what they are called at the far side. Pure.
//!
//! A prefix is a local path, which need not exist, and the path that it stands for at the far side.
//! The far side's kernel resolves what lies below the prefix. Only `..` is resolved here, without
//! following links, to see whether a path leaves its prefix or enters one.

use std::mem::MaybeUninit;

/// The longest path, in bytes with its NUL.
pub const PATH_MAX: usize = 4096;
/// The most prefixes that one program can forward.
pub const PREFIXES_MAX: usize = 16;

/// A path under construction: fewer than [`PATH_MAX`] bytes, followed by a NUL. On the stack, no
/// heap.
///
/// Invariant: the first `length` bytes and the NUL behind them are initialized, the rest is not.
/// Clearing the whole buffer would cost each hook of a path more than all of its other work.
pub struct Text {
    bytes: [MaybeUninit<u8>; PATH_MAX],
    length: usize,
}

impl Default for Text {
    fn default() -> Text {
        Text::new()
    }
}

impl Text {
    /// Empty.
    #[inline]
    pub const fn new() -> Text {
        let mut bytes = [MaybeUninit::uninit(); PATH_MAX];
        bytes[0] = MaybeUninit::new(0);
        Text { bytes, length: 0 }
    }

    /// The path without its NUL.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the first `length` bytes are initialized.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.length) }
    }

    /// The path as a C string; good until the next change.
    #[inline]
    pub fn as_ptr(&self) -> *const std::ffi::c_char {
        self.bytes.as_ptr().cast()
    }

    /// Appends `more`. Returns false, and changes nothing, if there is no room.
    #[inline]
    pub fn push(&mut self, more: &[u8]) -> bool {
        let end = self.length + more.len();
        if end >= PATH_MAX {
            return false;
        }
        for (to, from) in self.bytes[self.length..end].iter_mut().zip(more) {
            to.write(*from);
        }
        self.bytes[end].write(0);
        self.length = end;
        true
    }

    /// Drops what lies beyond `length` bytes.
    #[inline]
    pub fn cut(&mut self, length: usize) {
        self.length = self.length.min(length);
        self.bytes[self.length].write(0);
    }

    /// Replaces the path. Returns false, and leaves an empty path, if there is no room.
    #[inline]
    pub fn set(&mut self, text: &[u8]) -> bool {
        self.cut(0);
        self.push(text)
    }
}

/// One forwarded prefix.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// The path on this machine: absolute, without `.`, `..`, doubled or trailing slashes.
    pub local: &'a [u8],
    /// The path at the far side, of the same form.
    pub far: &'a [u8],
}

/// Splits `LOCAL[=FAR]:LOCAL[=FAR]…`.
#[inline]
pub fn prefixes(text: &[u8]) -> impl Iterator<Item = Prefix<'_>> {
    text.split(|byte| *byte == b':').filter(|part| !part.is_empty()).map(|part| {
        let mut halves = part.splitn(2, |byte| *byte == b'=');
        let local = halves.next().unwrap_or(part);
        Prefix { local, far: halves.next().unwrap_or(local) }
    })
}

/// What follows `prefix` in `path`, if `path` is that directory or lies below it. The rest is empty
/// or begins with a slash.
#[inline]
pub fn below<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest[0] == b'/' || prefix == b"/").then_some(rest)
}

/// Whether a path has neither `.`, `..` nor empty components in its middle.
#[inline]
pub fn is_plain(path: &[u8]) -> bool {
    // Without an early return, so that the compiler vectorizes; `.` and `/` differ in the lowest
    // bit.
    let next = path.get(1..).unwrap_or_default();
    let found =
        path.iter().zip(next).fold(false, |found, (a, b)| found | ((a ^ b'/') | ((b | 1) ^ b'/') == 0));
    !found && path.first() != Some(&b'.')
}

/// Whether a component is `..`.
#[inline]
pub fn climbs(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|part| part == b"..")
}

/// Writes to `out` the path without `.`, `..` and doubled slashes; a trailing slash stays. A
/// relative path begins at the absolute path `base`. Returns false if the result is too long.
#[inline]
pub fn normalize(base: &[u8], path: &[u8], out: &mut Text) -> bool {
    out.cut(0);
    let base = if path.first() == Some(&b'/') { &[][..] } else { base };
    for part in base.split(|byte| *byte == b'/').chain(path.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => {
                let parent = out.as_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                out.cut(parent);
            }
            _ => {
                if !out.push(b"/") || !out.push(part) {
                    return false;
                }
            }
        }
    }
    let wants_directory = matches!(path.rsplit(|byte| *byte == b'/').next(), Some(b"" | b"." | b".."));
    if out.as_bytes().is_empty() || (wants_directory && !path.is_empty()) {
        return out.push(b"/");
    }
    true
}

/// Where a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Not forwarded: use the path as it is.
    Local,
    /// Not forwarded, but the local file is the one that the text in `out` names: the path begins
    /// below a prefix.
    LocalAs,
    /// Forwarded: the text in `out` is the absolute path at the far side.
    Far,
    /// Forwarded, but the path at the far side is too long.
    TooLong,
}

/// Where an absolute path leads. `out` gets the text that [`Route`] mentions.
#[inline]
pub fn route(path: &[u8], prefixes: &[Prefix<'_>], out: &mut Text) -> Route {
    let direct = prefixes.iter().find_map(|prefix| below(path, prefix.local).map(|rest| (prefix, rest)));
    if is_plain(path) {
        let Some((prefix, rest)) = direct else { return Route::Local };
        return far(prefix, rest, out);
    }
    if !normalize(b"", path, out) {
        return if direct.is_some() { Route::TooLong } else { Route::Local };
    }
    let stays = |prefix: &Prefix<'_>| below(out.as_bytes(), prefix.local).is_some();
    match direct {
        Some((prefix, rest)) if stays(prefix) => far(prefix, rest, out),
        Some(_) | None => {
            let mut copy = Text::new();
            copy.set(out.as_bytes());
            match prefixes.iter().find_map(|p| below(copy.as_bytes(), p.local).map(|rest| (p, rest))) {
                Some((prefix, rest)) => far(prefix, rest, out),
                None if direct.is_some() => Route::LocalAs,
                None => Route::Local,
            }
        }
    }
}

#[inline]
fn far(prefix: &Prefix<'_>, rest: &[u8], out: &mut Text) -> Route {
    let root: &[u8] = if prefix.far == b"/" && rest.first() == Some(&b'/') { b"" } else { prefix.far };
    if out.set(root) && out.push(rest) { Route::Far } else { Route::TooLong }
}

/// Writes to `out` the local path of a far one. Returns false if the path is below no prefix; then
/// `out` gets the path unchanged.
#[inline]
pub fn local_of(path: &[u8], prefixes: &[Prefix<'_>], out: &mut Text) -> bool {
    for prefix in prefixes {
        if let Some(rest) = below(path, prefix.far) {
            let rest_is_root = prefix.far == b"/" && !rest.starts_with(b"/");
            out.set(prefix.local);
            return (!rest_is_root || rest.is_empty() || out.push(b"/")) && out.push(rest);
        }
    }
    out.set(path);
    false
}
