//! Files numbered by their names: a pattern with `*`, `?` or `**` means all files whose paths match
//! it, in the order of their paths.
//!
//! Invariant: a folder that cannot be listed is an error. Without its files all later files would
//! have other numbers.

use crate::names::check_utf8;
use crate::trajectory::{Stops, check};
use crate::{Backing, DirectoryNames};
use glob::{MatchOptions, Pattern};
use zazen_core::limits::MANIFEST_NAME;
use zazen_core::{Error, ErrorKind, RelPath, Result};

/// The most bytes of all paths that one pattern may name.
pub const PATHS_BYTES_MAX: usize = 64 << 20;
/// The most folders that are listed for one pattern.
pub const FOLDERS_MAX: usize = 1 << 18;
/// Any number of folders.
const ANY_DEPTH: &str = "**";
const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Whether a user's pattern numbers files by their names.
pub fn is_by_name(pattern: &str) -> bool {
    pattern.contains(['*', '?']) && !pattern.contains(['{', '}'])
}

/// Whether programs use names like `name` for unfinished or hidden files: `.x`, `x.tmp`, `x.part`,
/// `x~`.
pub fn is_temporary_name(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.starts_with('.') || last.ends_with('~') || last.ends_with(".tmp") || last.ends_with(".part")
}

/// A checked pattern.
struct ByName {
    whole: Pattern,
    /// The patterns of the folders' names, up to the first `**`.
    folders: Vec<Pattern>,
    /// Folders may be at any depth behind these.
    deep: bool,
}

impl ByName {
    fn parse(text: &str) -> Result<ByName> {
        let refuse = |why: &str| {
            let what = format!("pattern {text:?}: {why}; write it like *.jpg or **/*.jpg");
            Error::new(ErrorKind::InvalidArgument, what)
        };
        RelPath::new(text).map_err(|error| refuse(&error.to_string()))?;
        let parse = |part: &str| Pattern::new(part).map_err(|error| refuse(error.msg));
        let (above, _) = text.rsplit_once('/').unwrap_or(("", text));
        let mut parts = above.split('/').filter(|part| !part.is_empty());
        let folders = parts.by_ref().take_while(|part| *part != ANY_DEPTH).map(parse);
        let folders = folders.collect::<Result<Vec<Pattern>>>()?;
        Ok(ByName { whole: parse(text)?, folders, deep: text.split('/').any(|part| part == ANY_DEPTH) })
    }

    /// Whether files in folders at this depth may match.
    fn may_match_at(&self, depth: usize) -> bool {
        if self.deep { depth >= self.folders.len() } else { depth == self.folders.len() }
    }

    /// Whether the folder `name`, at this depth, may lead to files that match.
    fn may_enter(&self, depth: usize, name: &str) -> bool {
        match self.folders.get(depth) {
            Some(folder) => folder.matches_with(name, OPTIONS),
            None => self.deep && !is_temporary_name(name),
        }
    }
}

/// The files beneath `directory` whose paths match `pattern`, sorted by the bytes of their paths.
/// Hidden files, temporary files and the manifest match no pattern. Links to folders are not
/// followed.
///
/// `NotFound` if there is no such directory, `TooLarge` beyond [`PATHS_BYTES_MAX`] or
/// [`FOLDERS_MAX`].
pub fn files(
    stops: Stops<'_>,
    backing: &dyn Backing,
    directory: &RelPath,
    pattern: &str,
) -> Result<Vec<RelPath>> {
    let wanted = ByName::parse(pattern)?;
    let too_large = |what: String| {
        let text = format!("pattern {pattern:?}: {what}; open a part of the folders");
        Err(Error::new(ErrorKind::TooLarge, text))
    };
    let (mut found, mut bytes, mut listed) = (Vec::new(), 0, 0);
    let mut open = vec![(String::new(), 0)];
    while let Some((folder, depth)) = open.pop() {
        check(stops)?;
        listed += 1;
        if listed > FOLDERS_MAX {
            return too_large(format!("it leads to more than {FOLDERS_MAX} folders, the limit"));
        }
        let at = if folder.is_empty() { directory.clone() } else { directory.join(&folder)? };
        let beneath =
            |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        let folders = match wanted.deep || depth < wanted.folders.len() {
            true => backing.list_folders(&at),
            false => Ok(Vec::new()),
        };
        let files = match wanted.may_match_at(depth) {
            true => backing.list_files(&at),
            false => Ok(DirectoryNames::default()),
        };
        let (folders, files) = match (folders, files) {
            // It was removed after its parent was listed.
            (Err(error), _) | (_, Err(error)) if error.kind() == ErrorKind::NotFound && depth > 0 => continue,
            (folders, files) => (folders?, files?),
        };
        let is_folder = |name: &String| folders.binary_search(name).is_ok();
        for name in files.iter().filter(|name| !is_temporary_name(name) && !is_folder(name)) {
            let path = beneath(name);
            if wanted.whole.matches_with(&path, OPTIONS) && path != MANIFEST_NAME {
                check_utf8(&path)?;
                bytes += path.len();
                if bytes > PATHS_BYTES_MAX {
                    return too_large(format!("its paths have more than {PATHS_BYTES_MAX} bytes, the limit"));
                }
                found.push(RelPath::new(&path)?);
            }
        }
        let entered = folders.iter().filter(|name| wanted.may_enter(depth, name));
        entered.clone().try_for_each(|name| check_utf8(&beneath(name)))?;
        open.extend(entered.map(|name| (beneath(name), depth + 1)));
    }
    found.sort_unstable();
    Ok(found)
}
