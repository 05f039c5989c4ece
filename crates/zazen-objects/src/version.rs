//! Which version of an object something is: a validator from what the store says of it.

use object_store::ObjectMeta;
use sha2::{Digest, Sha256};
use std::time::{SystemTime, UNIX_EPOCH};
use zazen_backing::served::Tag;
use zazen_core::Validator;

/// The validator of an object.
///
/// A store's times are whole seconds, so the ETag tells two versions of one second apart: 127 bits
/// of its digest take the places of inode and change time, which objects do not have. Without a
/// strong ETag, an object that was changed in the last two seconds is unsettled: it could change
/// again without a sign.
pub(crate) fn validator_of(meta: &ObjectMeta) -> Validator {
    let mtime_ns = meta.last_modified.timestamp().saturating_mul(1_000_000_000);
    let told = meta.e_tag.as_deref();
    let Tag { inode, ctime_ns } = tag_of(told);
    let is_strong = inode != 0 && !told.is_some_and(|told| told.trim().starts_with("W/"));
    if is_strong {
        return Validator { size: meta.size, mtime_ns, ctime_ns, inode, unsettled: false };
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    let seen = Validator::seen(meta.size, mtime_ns, mtime_ns, inode, now_ns);
    Validator { ctime_ns, ..seen }
}

/// The version that an ETag names; stores quote it or not. Its numbers are not 0, and the second
/// one is not negative, unless there is no ETag.
pub(crate) fn tag_of(told: Option<&str>) -> Tag {
    let tag = told.unwrap_or_default().trim().trim_start_matches("W/").trim_matches('"');
    if tag.is_empty() {
        return Tag::default();
    }
    let digest = Sha256::digest(tag.as_bytes());
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let second = (number(&digest[8..16]) >> 1).max(1);
    Tag { inode: number(&digest[..8]).max(1), ctime_ns: i64::try_from(second).unwrap_or(i64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(e_tag: Option<&str>, seconds: i64, size: u64) -> ObjectMeta {
        let since = UNIX_EPOCH + std::time::Duration::new(seconds.unsigned_abs(), 700_000_000);
        ObjectMeta {
            location: "a".into(),
            last_modified: since.into(),
            size,
            e_tag: e_tag.map(str::to_owned),
            version: None,
        }
    }

    #[test]
    fn versions_of_one_second_differ_by_their_tags_alone() {
        let one = validator_of(&meta(Some("\"aa\""), 1_700_000_000, 5));
        let other = validator_of(&meta(Some("\"ab\""), 1_700_000_000, 5));
        assert!(one.agrees_with(&one) && !one.agrees_with(&other) && !one.unsettled);
        assert_eq!(one.mtime_ns % 1_000_000_000, 0, "listings may tell parts of a second, and heads not");
        // What a listing says and what a head says is quoted or not.
        assert_eq!(one, validator_of(&meta(Some("aa"), 1_700_000_000, 5)));
        assert!(!one.agrees_with(&validator_of(&meta(Some("\"aa\""), 1_700_000_000, 6))));
        assert!(!one.agrees_with(&validator_of(&meta(Some("\"aa\""), 1_700_000_001, 5))));
    }

    #[test]
    fn without_a_strong_tag_a_young_object_is_unsettled() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        for tag in [None, Some(""), Some("W/\"aa\"")] {
            assert!(validator_of(&meta(tag, now, 5)).unsettled, "{tag:?}");
            assert!(!validator_of(&meta(tag, now - 100, 5)).unsettled, "{tag:?}");
        }
        let weak = |tag| validator_of(&meta(Some(tag), now - 100, 5));
        assert!(!weak("W/\"a\"").agrees_with(&weak("W/\"b\"")));
    }

    #[test]
    fn what_was_written_is_known_again_by_its_tag() {
        let seen = validator_of(&meta(Some("\"aa\""), 1_700_000_000, 5));
        assert!(tag_of(Some("aa")).is_of(&seen) && !tag_of(Some("\"ab\"")).is_of(&seen));
        for none in [None, Some(""), Some("\"\"")] {
            assert_eq!(tag_of(none), Tag::default(), "{none:?}");
        }
    }
}
