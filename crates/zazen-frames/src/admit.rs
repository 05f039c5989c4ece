//! What becomes of a frame whose number is here already. Pure.

use zazen_core::{FrameMeta, Origin};

/// What to do with an arriving frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Keep the copy that is here; it is the same frame.
    Keep {
        /// The copy is an alien and the frame arrived as a native: the copy becomes a native.
        promote: bool,
        /// Its record must take over the arriving validator, owner and mode.
        refresh: bool,
    },
    /// The source changed: the arriving frame takes the place of the copy.
    Replace,
    /// Two frames with one number; the copy stays.
    Conflict,
}

/// Compares an arriving frame with the copy that is here; `same_source`: both have the same source.
///
/// A copy is stale if it has another source, or if both validators are known and differ. If the
/// validator changed and the bytes are equal (a source that was rewritten alike), the copy is kept,
/// but must not look stale for ever after.
pub fn admit(here: (&FrameMeta, Origin), arriving: (&FrameMeta, Origin), same_source: bool) -> Admission {
    let ((old, had), (new, comes)) = (here, arriving);
    if !same_source {
        return Admission::Replace;
    }
    if (old.checksum, old.length) == (new.checksum, new.length) {
        let access = |meta: &FrameMeta| (meta.uid, meta.gid, meta.mode);
        let promote = had == Origin::Alien && comes == Origin::Native;
        // A push without a validator does not remove the one that is known.
        let is_news = match (old.validator, new.validator) {
            // A look at a young source tells less than what is known: a miss that was fetched while
            // the writer pushed the same frame must not make the pushed copy look stale.
            (Some(then), Some(now)) => {
                then != now && (then.unsettled || !now.unsettled || !then.looks_like(&now))
            }
            (_, now) => now.is_some(),
        };
        let refresh = is_news || new.validator.is_some() && access(old) != access(new);
        return Admission::Keep { promote, refresh };
    }
    match (old.validator, new.validator) {
        (Some(then), Some(now)) if !then.agrees_with(&now) => Admission::Replace,
        _ => Admission::Conflict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::{FrameNo, Validator};

    #[test]
    fn every_case_of_two_frames_with_one_number() {
        let frame = |checksum, mtime: Option<i64>| FrameMeta {
            number: FrameNo::new(1).unwrap(),
            length: 10,
            checksum,
            validator: mtime.map(|mtime_ns| Validator { size: 10, mtime_ns, ..Validator::default() }),
            uid: 0,
            gid: 0,
            mode: 0o644,
        };
        use Origin::{Alien, Native};
        let check = |old, had, new, comes, expected| {
            let (old, new): (FrameMeta, FrameMeta) = (old, new);
            assert_eq!(admit((&old, had), (&new, comes), true), expected, "{old:?} {new:?}");
        };
        let keep = |promote, refresh| Admission::Keep { promote, refresh };
        check(frame(1, Some(5)), Native, frame(1, Some(5)), Native, keep(false, false));
        check(frame(1, Some(5)), Native, frame(1, Some(5)), Alien, keep(false, false));
        check(frame(1, Some(5)), Alien, frame(1, Some(5)), Native, keep(true, false));
        check(frame(1, Some(5)), Native, frame(1, Some(6)), Native, keep(false, true));
        check(frame(1, Some(5)), Native, frame(1, None), Native, keep(false, false));
        check(frame(1, None), Native, frame(1, Some(5)), Native, keep(false, true));
        check(frame(1, Some(5)), Native, frame(2, Some(6)), Alien, Admission::Replace);
        check(frame(1, Some(5)), Native, frame(2, Some(5)), Native, Admission::Conflict);
        check(frame(1, None), Native, frame(2, None), Native, Admission::Conflict);
        check(frame(1, None), Native, frame(2, Some(5)), Native, Admission::Conflict);
        check(frame(1, Some(5)), Native, frame(2, None), Native, Admission::Conflict);
        let longer = FrameMeta { length: 11, ..frame(1, Some(5)) };
        check(frame(1, Some(5)), Native, longer, Native, Admission::Conflict);
        let young = |checksum| FrameMeta {
            validator: Some(Validator { unsettled: true, size: 10, mtime_ns: 5, ..Validator::default() }),
            ..frame(checksum, None)
        };
        check(young(1), Alien, frame(2, Some(5)), Alien, Admission::Replace);
        check(young(1), Alien, frame(1, Some(5)), Alien, keep(false, true));
        check(frame(1, Some(5)), Native, young(1), Alien, keep(false, false));
        check(frame(1, Some(6)), Native, young(1), Alien, keep(false, true));
        let elsewhere = admit((&frame(1, Some(5)), Native), (&frame(1, Some(5)), Alien), false);
        assert_eq!(elsewhere, Admission::Replace);
        let private = FrameMeta { mode: 0o600, ..frame(1, Some(5)) };
        check(frame(1, Some(5)), Native, private, Native, keep(false, true));
    }
}
