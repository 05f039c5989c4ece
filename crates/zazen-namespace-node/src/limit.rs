//! What a quota is: whom it bounds, and to what. Each is an attribute of the root directory.

use zazen_namespace::InodeId;

/// Attributes of the root directory with a limit each: this and `u` or `d`, a dot and a number.
const PREFIX: &str = "trusted.zazen.quota.";

/// Whom a quota bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Of {
    /// All that this user owns.
    User(u32),
    /// All below this directory.
    Directory(InodeId),
}

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

/// A quota: 0 is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) most: Amount,
    /// The directory's path when the quota was set.
    pub(crate) path: String,
}

impl Amount {
    pub(crate) fn add(&mut self, other: Amount) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files = self.files.saturating_add(other.files);
    }
}

impl Of {
    pub(crate) fn name(self) -> String {
        match self {
            Of::User(uid) => format!("{PREFIX}u.{uid}"),
            Of::Directory(id) => format!("{PREFIX}d.{id}"),
        }
    }

    pub(crate) fn named(name: &[u8]) -> Option<Of> {
        let rest = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
        let (kind, number) = rest.split_once('.')?;
        match kind {
            "u" => number.parse().ok().map(Of::User),
            "d" => number.parse().ok().map(|id| Of::Directory(InodeId(id))),
            _ => None,
        }
    }
}

impl Limit {
    pub(crate) fn value(&self) -> Vec<u8> {
        format!("{} {} {}", self.most.bytes, self.most.files, self.path).into_bytes()
    }

    pub(crate) fn parse(value: &[u8]) -> Option<Limit> {
        let text = String::from_utf8_lossy(value);
        let mut words = text.splitn(3, ' ');
        let most = Amount { bytes: words.next()?.parse().ok()?, files: words.next()?.parse().ok()? };
        Some(Limit { most, path: words.next().unwrap_or_default().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_come_back_as_they_were() {
        for of in
            [Of::User(7), Of::User(u32::MAX), Of::Directory(InodeId(99)), Of::Directory(InodeId(u64::MAX))]
        {
            assert_eq!(Of::named(of.name().as_bytes()), Some(of));
        }
        for other in ["user.zazen.copies", "trusted.zazen.quota.u.x", "trusted.zazen.quota.x.1", PREFIX] {
            assert_eq!(Of::named(other.as_bytes()), None);
        }
        let limit = Limit { most: Amount { bytes: 5, files: 0 }, path: "/run 1/x".into() };
        assert_eq!(Limit::parse(&limit.value()), Some(limit));
        assert_eq!(Limit::parse(b"5"), None);
    }
}
