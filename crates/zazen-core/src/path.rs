//! Relative paths whose spelling cannot leave their root. Whoever opens a path must handle symbolic
//! links (`openat2` with `RESOLVE_BENEATH`).

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{NAME_BYTES_MAX, OWN_DIR, PATH_BYTES_MAX, SERIES_MARK};
use std::fmt;

/// A relative path in normal form: components joined by single slashes, no `.`, `..`, NUL or empty
/// component, none called `.zazen`; none that begins with `.zazen@` but the last one of a series'
/// path ([`RelPath::series`]). The empty path is the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(String);

impl RelPath {
    /// Checks `text`; repeated and trailing slashes are dropped, a leading one is refused.
    ///
    /// Fails with [`ErrorKind::InvalidArgument`] for a path that could leave its root or that uses
    /// [`OWN_DIR`], and with [`ErrorKind::TooLarge`] beyond the length limits.
    pub fn new(text: &str) -> Result<RelPath> {
        let refuse = |kind, why: &str| {
            let shown: String = text.chars().take(120).collect();
            Err(Error::new(kind, format!("path {shown:?}: {why}")))
        };
        if text.len() > PATH_BYTES_MAX {
            return refuse(ErrorKind::TooLarge, "longer than 4096 bytes");
        }
        if text.starts_with('/') {
            return refuse(ErrorKind::InvalidArgument, "is absolute where a relative path is wanted");
        }
        if text.contains('\0') {
            return refuse(ErrorKind::InvalidArgument, "contains a NUL byte");
        }
        let mut normal = String::with_capacity(text.len());
        for part in text.split('/') {
            match part {
                "" => continue,
                "." | ".." => {
                    return refuse(ErrorKind::InvalidArgument, "`.` and `..` are not allowed in it");
                }
                OWN_DIR => {
                    return refuse(ErrorKind::InvalidArgument, "`.zazen` is reserved for Zazen's own files");
                }
                _ if part.starts_with(SERIES_MARK) => {
                    return refuse(
                        ErrorKind::InvalidArgument,
                        "`.zazen@…` is reserved for Zazen's own files",
                    );
                }
                _ if part.len() > NAME_BYTES_MAX => {
                    return refuse(ErrorKind::TooLarge, "has a component longer than 255 bytes");
                }
                _ => {}
            }
            if !normal.is_empty() {
                normal.push('/');
            }
            normal.push_str(part);
        }
        Ok(RelPath(normal))
    }

    /// The path as text, without a leading or trailing slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the root itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// A path from `text`; the caller knows that `text` is in normal form.
    pub(crate) fn normal(text: String) -> RelPath {
        RelPath(text)
    }

    /// `self/child`; fails like [`RelPath::new`].
    pub fn join(&self, child: &str) -> Result<RelPath> {
        let child = RelPath::new(child.trim_start_matches('/'))?;
        if self.is_root() || child.is_root() {
            return Ok(if self.is_root() { child } else { self.clone() });
        }
        let joined = format!("{}/{child}", self.0);
        if joined.len() > PATH_BYTES_MAX {
            let shown: String = joined.chars().take(120).collect();
            return Err(Error::new(ErrorKind::TooLarge, format!("path {shown:?}: longer than 4096 bytes")));
        }
        Ok(RelPath(joined))
    }

    /// The folder that holds this path, and the last component; `None` for the root.
    pub fn split(&self) -> Option<(RelPath, &str)> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.rsplit_once('/') {
            Some((folder, name)) => (RelPath(folder.to_owned()), name),
            None => (RelPath::default(), &self.0),
        })
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { "." } else { &self.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expected: Option<&str>) {
        let found = RelPath::new(input).ok();
        assert_eq!(found.as_ref().map(RelPath::as_str), expected, "{input:?}");
    }

    #[test]
    fn spelling_cannot_leave_the_root() {
        check("sim1", Some("sim1"));
        check("a//b/c/", Some("a/b/c"));
        check("", Some(""));
        check("..", None);
        check("a/../b", None);
        check("./a", None);
        check("/a", None);
        check("a\0b", None);
        check("a/.zazen/b", None);
        check("a/.zazen@f{n}/b", None);
        check(".zazen@f{n}", None);
        check(".zazenx", Some(".zazenx"));
        check(&"x".repeat(256), None);
        check(&"x/".repeat(3000), None);
    }

    #[test]
    fn split_and_join_are_inverse() {
        let path = RelPath::new("a/b/c").unwrap();
        let (folder, name) = path.split().unwrap();
        assert_eq!((folder.as_str(), name), ("a/b", "c"));
        assert_eq!(folder.join(name).unwrap(), path);
        assert_eq!(RelPath::default().join("x").unwrap().as_str(), "x");
        assert_eq!(path.join("").unwrap(), path);
        assert!(path.join("../x").is_err() && path.join(&"x/".repeat(2046)).is_err());
        assert!(RelPath::default().split().is_none());
    }
}
