//! Whether a cached copy still is what its source is.
//!
//! A copy stands for its source if the source looks as it did when it was copied: owner, size,
//! times, inode. A pushed copy that came without a validator takes over what its source looks like
//! when the two are first compared.

use zazen_core::{FrameMeta, Origin, Source, SourceStat};

/// What the cache says of a frame that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What is known of it.
    pub meta: FrameMeta,
    /// How it came here.
    pub origin: Origin,
    /// Its source beneath the dataset.
    pub source: Source,
}

/// When a daemon compares copies with their sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validate {
    /// Before each copy is handed out.
    #[default]
    Always,
    /// Never: sources are taken not to change.
    Never,
}

/// Whether a copy was made from the very file that `stat` is of, as far as owner and inode tell.
/// `validate = "never"` takes sources not to change, but whose bytes somebody gets must not rest on
/// that.
pub fn is_same_file(meta: &FrameMeta, stat: &SourceStat) -> bool {
    let alike = |one: u64, other: u64| one == other || one == 0 || other == 0;
    let same_inode = meta.validator.is_none_or(|validator| alike(validator.inode, stat.validator.inode));
    meta.uid == stat.uid && same_inode && !stat.is_dir
}

/// Whether a copy of `source` with this `meta` is one of the file that looks like `stat`.
pub fn stands_for(meta: &FrameMeta, source: &Source, stat: &SourceStat) -> bool {
    let size = stat.validator.size;
    let fits = match source.offset.checked_add(meta.length) {
        Some(end) if source.length.is_none() => end == size,
        Some(end) => end <= size,
        None => false,
    };
    // Who may not write the source may not have pushed the copy either.
    let same_owner = meta.uid == stat.uid;
    let same_look = meta.validator.is_none_or(|validator| validator.agrees_with(&stat.validator));
    // The recorded mode decides while the store is away: it must not allow more than the source
    // does.
    let narrowed = meta.mode & !stat.mode & 0o444 != 0;
    fits && same_owner && same_look && !narrowed && !stat.is_dir
}

/// Whether a copy of `of` may pass for one of `source`, which looks like `stat` now. `own`: the
/// daemon's own user asks; it can read the cache's files anyway.
pub fn is_current(
    validate: Validate,
    own: bool,
    (meta, of): (&FrameMeta, &Source),
    source: &Source,
    stat: &SourceStat,
) -> bool {
    let stands = match validate {
        Validate::Always => stands_for(meta, of, stat),
        Validate::Never => own || is_same_file(meta, stat),
    };
    of == source && stands
}
