//! Bounds of users and folders, as the operator writes them.
//!
//! `200G` is the bound of each user or dataset, `NAME=200G` that of one, and `none` lifts it.

use std::collections::BTreeMap;
use std::process::Command;
use zazen_core::{Error, ErrorKind, Result, byte_size};

/// The bounds as told, for each disk of the cache, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaSettings {
    /// Of each user that has none of its own.
    pub user: Option<u64>,
    /// Of these users.
    pub users: BTreeMap<u32, u64>,
    /// Of each dataset.
    pub dataset: Option<u64>,
    /// Of all datasets at and beneath a path that users spell.
    pub folders: BTreeMap<String, u64>,
}

impl QuotaSettings {
    /// What `user_budget` and `dataset_budget` say.
    pub fn parse(user: &[String], dataset: &[String]) -> Result<QuotaSettings> {
        let mut settings = QuotaSettings::default();
        for text in user {
            match split(text) {
                (None, size) => once(&mut settings.user, bytes("user_budget", size)?, "user_budget", text)?,
                (Some(name), size) => {
                    let given = settings.users.insert(uid_of(name)?, bytes("user_budget", size)?);
                    not_twice(given.is_some(), "user_budget", text)?;
                }
            }
        }
        for text in dataset {
            let size = |size| bytes("dataset_budget", size);
            match split(text) {
                (None, told) => once(&mut settings.dataset, size(told)?, "dataset_budget", text)?,
                (Some(path), told) => {
                    let given = settings.folders.insert(trimmed(path), size(told)?);
                    not_twice(given.is_some(), "dataset_budget", text)?;
                }
            }
        }
        Ok(settings)
    }

    /// For a line of the log.
    pub fn shown(&self) -> String {
        let size = |bytes: u64| if bytes == u64::MAX { "none".to_owned() } else { byte_size::show(bytes) };
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.user.map(|bytes| format!("each user {}", size(bytes))));
        parts.extend(self.users.iter().map(|(uid, bytes)| format!("user {uid} {}", size(*bytes))));
        parts.extend(self.dataset.map(|bytes| format!("each dataset {}", size(bytes))));
        parts.extend(self.folders.iter().map(|(path, bytes)| format!("{path} {}", size(*bytes))));
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    }
}

/// `NAME=SIZE`, or `SIZE`. A path may have a `=`, a size has none.
fn split(text: &str) -> (Option<&str>, &str) {
    match text.rsplit_once('=') {
        Some((name, size)) => (Some(name.trim()), size.trim()),
        None => (None, text.trim()),
    }
}

fn bytes(setting: &str, text: &str) -> Result<u64> {
    match text {
        "none" => Ok(u64::MAX),
        _ => byte_size::parse(text).map_err(|error| error.within(setting)),
    }
}

fn once(place: &mut Option<u64>, bytes: u64, setting: &str, text: &str) -> Result<()> {
    not_twice(place.replace(bytes).is_some(), setting, text)
}

fn not_twice(is_twice: bool, setting: &str, text: &str) -> Result<()> {
    match is_twice {
        true => Err(Error::new(ErrorKind::Config, format!("{setting} {text:?}: this was given before"))),
        false => Ok(()),
    }
}

fn trimmed(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" => path.to_owned(),
        trimmed => trimmed.to_owned(),
    }
}

/// The number of a user, who may be in a directory service: `id` knows.
fn uid_of(name: &str) -> Result<u32> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    let asked = Command::new("id").args(["-u", "--", name]).output().ok();
    let told = asked.filter(|asked| asked.status.success());
    told.and_then(|told| String::from_utf8(told.stdout).ok()?.trim().parse().ok()).ok_or_else(|| {
        let text = format!("user_budget: this machine knows no user {name:?}; give the number");
        Error::new(ErrorKind::Config, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(user: &[&str], dataset: &[&str]) -> Result<QuotaSettings> {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        QuotaSettings::parse(&owned(user), &owned(dataset))
    }

    #[test]
    fn each_and_one() {
        let told = parse(&["2K", "root=none", "7=1M"], &["/a=b/=3K", "1G"]).unwrap();
        assert_eq!((told.user, told.dataset), (Some(2048), Some(1 << 30)));
        assert_eq!(told.users, BTreeMap::from([(0, u64::MAX), (7, 1 << 20)]));
        assert_eq!(told.folders, BTreeMap::from([("/a=b".to_owned(), 3072)]));
        assert_eq!(
            told.shown(),
            "each user 2.0 KiB, user 0 none, user 7 1.0 MiB, each dataset 1.0 GiB, /a=b 3.0 KiB"
        );
        assert_eq!(QuotaSettings::default().shown(), "none");
    }

    #[test]
    fn mistakes_are_told() {
        let refused = |user: &[&str], dataset: &[&str]| parse(user, dataset).unwrap_err().to_string();
        assert!(refused(&["1G", "2G"], &[]).contains("given before"));
        assert!(refused(&["7=1G", "7=2G"], &[]).contains("given before"));
        assert!(refused(&["no such user=1G"], &[]).contains("knows no user"));
        assert!(refused(&["many"], &[]).contains("user_budget"));
        assert!(refused(&[], &["/a="]).contains("dataset_budget"));
    }
}
