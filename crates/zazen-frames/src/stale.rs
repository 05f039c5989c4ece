//! Whether a cached copy still has the bytes of its source.
//!
//! A copy stands for its source if the source looks as it did when it was copied: owner, size,
//! times, inode. A pushed copy that came without a validator takes over what its source looks like
//! when the two are first compared.
//!
//! A file that holds many frames may grow, and its size and times change. Then a copy of one of its
//! frames stands for it if samples of its bytes are the source's ([decision
//! 6](../../../docs/decisions/0006-trajectories-grow.md)).

use zazen_core::{FrameMeta, Origin, Source, SourceStat, Validator};

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
/// `validate = "never"` takes sources not to change, but no user may get the bytes of another file
/// because of that.
pub(crate) fn is_same_file(meta: &FrameMeta, stat: &SourceStat) -> bool {
    let alike = |one: u64, other: u64| one == other || one == 0 || other == 0;
    let same_inode = meta.validator.is_none_or(|validator| alike(validator.inode, stat.validator.inode));
    meta.uid == stat.uid && same_inode && !stat.is_dir
}

/// Whether a copy of `source` with this `meta` is one of the file that looks like `stat`.
pub fn stands_for(meta: &FrameMeta, source: &Source, stat: &SourceStat) -> bool {
    let same_look = meta.validator.is_none_or(|validator| validator.agrees_with(&stat.validator));
    same_look && may_be_of(meta, source, stat)
}

/// Whether the file that looks like `stat` may be the source of a copy, grown since the copy was
/// made. Then the copy's bytes tell ([`samples`]).
pub fn may_have_grown(meta: &FrameMeta, source: &Source, stat: &SourceStat) -> bool {
    let grew = |then: Validator| has_grown(&then, &stat.validator);
    source.length.is_some() && meta.validator.is_some_and(grew) && may_be_of(meta, source, stat)
}

/// Whether a file that looked like `then` may only have grown, if it looks like `now`.
pub(crate) fn has_grown(then: &Validator, now: &Validator) -> bool {
    let same_inode = then.inode == now.inode || then.inode == 0 || now.inode == 0;
    // A young file may have grown without another look.
    let longer = now.size > then.size || then.unsettled && then.looks_like(now);
    same_inode && longer && now.mtime_ns >= then.mtime_ns
}

/// How long a directory must have been left alone before its listing may be remembered: a clock
/// may be wrong, or too coarse to show two changes.
pub const LISTING_SETTLES_NS: u64 = 10_000_000_000;

/// Whether a listing that is made at `now_ns`, of a directory that looks like `directory`, may be
/// remembered until the directory looks different. Both times are those of the day.
pub fn may_remember_listing(directory: &Validator, now_ns: u64) -> bool {
    let changed_ns = u64::try_from(directory.mtime_ns).ok();
    changed_ns.is_some_and(|changed_ns| now_ns.saturating_sub(changed_ns) > LISTING_SETTLES_NS)
}

/// Whether the copy lies within the file, and owner and mode do not contradict it.
fn may_be_of(meta: &FrameMeta, source: &Source, stat: &SourceStat) -> bool {
    let size = stat.validator.size;
    let fits = match source.offset.checked_add(meta.length) {
        Some(end) if source.length.is_none() => end == size,
        Some(end) => end <= size,
        None => false,
    };
    // Whoever may not write the source may not have pushed the copy either.
    let same_owner = meta.uid == stat.uid;
    // The recorded mode decides while the store is away: it must not allow more than the source
    // does.
    let narrowed = meta.mode & !stat.mode & 0o444 != 0;
    fits && same_owner && !narrowed && !stat.is_dir
}

/// A frame of at most so many bytes is compared as a whole.
pub const WHOLE_BYTES: u64 = 8 << 10;
/// Bytes of each sample of a larger one.
const SAMPLE_BYTES: u64 = 512;

/// Which parts of a frame are compared with its source: (offset in the frame, bytes). `salt`
/// chooses the places of those in the middle.
pub fn samples(length: u64, salt: u64) -> Vec<(u64, u64)> {
    if length <= WHOLE_BYTES {
        return vec![(0, length)];
    }
    let within = |salt: u64| salt % (length - SAMPLE_BYTES);
    let places = [0, within(salt), within(salt.rotate_left(32)), length - SAMPLE_BYTES];
    places.map(|offset| (offset, SAMPLE_BYTES)).to_vec()
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

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::{FrameNo, RelPath};

    fn meta(validator: Validator) -> FrameMeta {
        let number = FrameNo::new(3).unwrap();
        FrameMeta { number, length: 10, checksum: 1, validator: Some(validator), uid: 7, gid: 7, mode: 0o644 }
    }

    #[test]
    fn a_listing_is_remembered_when_its_directory_was_left_alone() {
        let at = |mtime_ns| Validator { size: 0, mtime_ns, ctime_ns: 0, inode: 9, unsettled: false };
        let settles = LISTING_SETTLES_NS;
        assert!(may_remember_listing(&at(5), 6 + settles));
        assert!(!may_remember_listing(&at(5), 5 + settles), "it may have changed since, unseen");
        assert!(!may_remember_listing(&at(i64::MAX), settles), "a clock that is ahead");
        assert!(!may_remember_listing(&at(-1), 10 * settles), "before 1970");
    }

    #[test]
    fn only_parts_of_the_same_file_grow() {
        let then = Validator { size: 100, mtime_ns: 5, ctime_ns: 5, inode: 9, unsettled: false };
        let source = |length| Source { path: RelPath::new("md.xtc").unwrap(), offset: 90, length };
        let stat = |validator| SourceStat { validator, uid: 7, gid: 7, mode: 0o644, is_dir: false };
        let later = Validator { size: 200, mtime_ns: 8, ctime_ns: 8, ..then };
        let check = |source: Source, stat: SourceStat, expected: bool| {
            assert_eq!(may_have_grown(&meta(then), &source, &stat), expected, "{source:?} {stat:?}");
        };
        check(source(Some(10)), stat(later), true);
        check(source(None), stat(later), false);
        check(source(Some(10)), stat(Validator { inode: 8, ..later }), false);
        check(source(Some(10)), stat(Validator { size: 100, ..later }), false);
        check(source(Some(10)), stat(Validator { size: 99, ..later }), false);
        check(source(Some(10)), stat(Validator { mtime_ns: 4, ..later }), false);
        check(source(Some(10)), SourceStat { uid: 8, ..stat(later) }, false);
        check(source(Some(10)), SourceStat { mode: 0o600, ..stat(later) }, false);
        assert!(!may_have_grown(
            &FrameMeta { validator: None, ..meta(then) },
            &source(Some(10)),
            &stat(later)
        ));
        let young = Validator { unsettled: true, ..then };
        assert!(may_have_grown(&meta(young), &source(Some(10)), &stat(then)));
        assert!(!stands_for(&meta(then), &source(Some(10)), &stat(later)));
    }

    #[test]
    fn samples_lie_in_the_frame() {
        for length in [0, 1, 8192, 8193, 1 << 40] {
            for salt in [0, u64::MAX, 0x1234_5678_9abc_def0] {
                let samples = samples(length, salt);
                assert!(samples.iter().all(|(offset, bytes)| offset + bytes <= length));
                assert!(samples.iter().any(|(offset, _)| *offset == 0));
                assert!(samples.iter().any(|(offset, bytes)| offset + bytes == length));
            }
        }
    }
}
