//! Which paths are forwarded: pure.
//!
//! A prefix is a local path, which need not exist, and the path that it stands for at the far side. The part
//! below the prefix is for the far side's kernel to resolve; only `..` is looked at here, lexically, for whether a
//! path leaves its prefix or enters one.

use std::mem::MaybeUninit;

/// Bytes of a path with its NUL.
pub(crate) const PATH_MAX: usize = 4096;
/// Forwarded prefixes of one program.
pub(crate) const PREFIXES_MAX: usize = 16;

/// A path under construction; always below [`PATH_MAX`] bytes and followed by a NUL.
///
/// Invariant: the first `length` bytes, and the one behind them, are written. Nothing else is: clearing all would cost
/// every hook of a path more than the rest of it.
pub(crate) struct Text {
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
    pub(crate) const fn new() -> Text {
        let mut bytes = [MaybeUninit::uninit(); PATH_MAX];
        bytes[0] = MaybeUninit::new(0);
        Text { bytes, length: 0 }
    }

    /// Without its NUL.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the first `length` bytes are written.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.length) }
    }

    /// With its NUL.
    pub(crate) fn as_ptr(&self) -> *const std::ffi::c_char {
        self.bytes.as_ptr().cast()
    }

    /// False, and unchanged, if there is no room.
    pub(crate) fn push(&mut self, more: &[u8]) -> bool {
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

    /// Drops all beyond `length`.
    pub(crate) fn cut(&mut self, length: usize) {
        self.length = self.length.min(length);
        self.bytes[self.length].write(0);
    }

    /// Replaces all; false (and empty) if there is no room.
    pub(crate) fn set(&mut self, text: &[u8]) -> bool {
        self.cut(0);
        self.push(text)
    }
}

/// One forwarded prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix<'a> {
    /// Absolute, without `.`, `..`, doubled or trailing slashes.
    pub(crate) local: &'a [u8],
    /// The same for the far side.
    pub(crate) far: &'a [u8],
}

/// Splits `LOCAL[=FAR]:LOCAL[=FAR]…`.
pub(crate) fn prefixes(text: &[u8]) -> impl Iterator<Item = Prefix<'_>> {
    text.split(|byte| *byte == b':').filter(|part| !part.is_empty()).map(|part| {
        let mut halves = part.splitn(2, |byte| *byte == b'=');
        let local = halves.next().unwrap_or(part);
        Prefix { local, far: halves.next().unwrap_or(local) }
    })
}

/// What of `path` comes after `prefix`, if it is that directory or below it: empty, or beginning with a slash.
pub(crate) fn below<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest[0] == b'/' || prefix == b"/").then_some(rest)
}

/// Whether a path has `.`, `..` or empty components in its middle.
pub(crate) fn is_plain(path: &[u8]) -> bool {
    // Without an early end, so that many bytes are looked at together; `.` and `/` differ in the lowest bit.
    let next = path.get(1..).unwrap_or_default();
    let found =
        path.iter().zip(next).fold(false, |found, (a, b)| found | ((a ^ b'/') | ((b | 1) ^ b'/') == 0));
    !found && path.first() != Some(&b'.')
}

/// Whether some component is `..`.
pub(crate) fn climbs(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|part| part == b"..")
}

/// `path` (absolute, or below the absolute `base`) without `.`, `..` and doubled slashes; a trailing slash stays.
/// False if it is too long.
pub(crate) fn normalize(base: &[u8], path: &[u8], out: &mut Text) -> bool {
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
pub(crate) enum Route {
    /// Not forwarded, as it is.
    Local,
    /// Not forwarded, but only the text in `out` says which local file it is.
    LocalAs,
    /// Forwarded: the text in `out`, absolute at the far side.
    Far,
    /// Too long.
    TooLong,
}

/// Where an absolute path leads; `out` gets its text where [`Route`] says so.
pub(crate) fn route(path: &[u8], prefixes: &[Prefix<'_>], out: &mut Text) -> Route {
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

fn far(prefix: &Prefix<'_>, rest: &[u8], out: &mut Text) -> Route {
    let root: &[u8] = if prefix.far == b"/" && rest.first() == Some(&b'/') { b"" } else { prefix.far };
    if out.set(root) && out.push(rest) { Route::Far } else { Route::TooLong }
}

/// The local path of a far one, into `out`; false if it is below no prefix (then `out` has it as it is).
pub(crate) fn local_of(path: &[u8], prefixes: &[Prefix<'_>], out: &mut Text) -> bool {
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
