//! Texts that many spans share. A file names each of them once, so spans take memory in proportion
//! to their file, whatever texts it holds.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

/// A text. A clone has no bytes of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(text.into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(text.into())
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, into: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(into)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
        Ok(std::borrow::Cow::<str>::deserialize(from)?.as_ref().into())
    }
}

/// Texts so far.
#[derive(Default)]
pub(crate) struct Texts(BTreeSet<Text>);

impl Texts {
    /// Puts the text that is there already in place of an equal one.
    pub(crate) fn share(&mut self, text: &mut Text) {
        match self.0.get(text) {
            Some(known) => *text = known.clone(),
            None => _ = self.0.insert(text.clone()),
        }
    }
}
