//! Where an object store is, and whose its objects are: `s3://BUCKET/PREFIX?endpoint=…&owner=…`.
//!
//! Users spell a dataset as `s3://BUCKET/PREFIX/…`, without the settings. Administrators append the
//! settings when they name the store to a daemon.

use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result};

/// What stands before the bucket's name.
pub const SCHEME: &str = "s3://";
/// The longest name of a bucket.
const BUCKET_BYTES_MAX: usize = 255;
/// The longest prefix; keys have at most 1,024 bytes.
const PREFIX_BYTES_MAX: usize = 512;

/// A bucket, the part of it that is served, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLocation {
    /// The bucket.
    pub bucket: String,
    /// Keys begin with this and a slash; the root for the whole bucket.
    pub prefix: RelPath,
    /// `http://HOST:PORT` or `https://HOST`; `None`: the region's of AWS.
    pub endpoint: Option<String>,
    /// The region; `None`: `$AWS_REGION`, or us-east-1.
    pub region: Option<String>,
    /// Requests are not signed: the bucket is open to everybody.
    pub anonymous: bool,
    /// Whose the objects are.
    pub owner: Owner,
}

/// Who may read the objects of a store. All objects have one owner, one group and one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Read bits (0o444) of the objects. Folders have the same, and may be searched by whom they
    /// may be read by.
    pub mode: u32,
}

impl Owner {
    /// The mode of folders.
    pub fn folder_mode(&self) -> u32 {
        self.mode | self.mode >> 2
    }

    /// Whether `who` may read the objects.
    pub fn lets_read(&self, who: &Credentials) -> bool {
        who.may_read(self.uid, self.gid, self.mode)
    }
}

/// The same path of an object store in one spelling, without a trailing slash; `None` if `text` is
/// no path of an object store. `InvalidArgument` without a bucket, or with `.` or `..`.
pub fn plain_path(text: &str) -> Option<Result<String>> {
    let rest = text.strip_prefix(SCHEME)?;
    let plain = || {
        let (bucket, beneath) = rest.split_once('/').unwrap_or((rest, ""));
        check_bucket(bucket)?;
        let beneath = RelPath::new(beneath.trim_start_matches('/'))?;
        Ok(spelled(bucket, &beneath))
    };
    Some(plain().map_err(|error: Error| error.within(format!("{text:?}"))))
}

fn spelled(bucket: &str, beneath: &RelPath) -> String {
    match beneath.is_root() {
        true => format!("{SCHEME}{bucket}"),
        false => format!("{SCHEME}{bucket}/{beneath}"),
    }
}

fn refuse(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

fn check_bucket(bucket: &str) -> Result<()> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_dots = bucket.bytes().all(|byte| byte == b'.');
    if bucket.len() > BUCKET_BYTES_MAX || is_dots || !bucket.bytes().all(is_good) {
        return Err(refuse("names no bucket; write s3://BUCKET/PREFIX"));
    }
    Ok(())
}

impl ObjectLocation {
    /// The store that `text` names: `s3://BUCKET/PREFIX`, then `?` and settings with `&` between
    /// them. Objects are `owner`'s unless the settings say otherwise.
    ///
    /// `InvalidArgument` names the setting that is wrong.
    pub fn parse(text: &str, owner: Owner) -> Result<ObjectLocation> {
        let (path, settings) = text.split_once('?').unwrap_or((text, ""));
        let rest = path.strip_prefix(SCHEME).ok_or_else(|| refuse("write s3://BUCKET/PREFIX"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        check_bucket(bucket)?;
        let prefix = RelPath::new(prefix.trim_start_matches('/'))?;
        if prefix.as_str().len() > PREFIX_BYTES_MAX {
            return Err(refuse(format!("the prefix is longer than {PREFIX_BYTES_MAX} bytes, the limit")));
        }
        let mut location = ObjectLocation {
            bucket: bucket.to_owned(),
            prefix,
            endpoint: None,
            region: None,
            anonymous: false,
            owner,
        };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) =
                setting.split_once('=').ok_or_else(|| refuse(format!("{setting:?}: write NAME=VALUE")))?;
            location.set(name, value)?;
        }
        Ok(location)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let number = || {
            let told = value.parse::<u32>().ok().filter(|number| *number != u32::MAX);
            told.ok_or_else(|| refuse(format!("{name}={value}: give the number that `id` prints")))
        };
        match name {
            "endpoint" => {
                let rest = value.strip_prefix("https://").or_else(|| value.strip_prefix("http://"));
                let host = rest.map(|rest| rest.trim_end_matches('/'));
                let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]/".contains(&byte);
                if host.is_none_or(|host| host.is_empty() || !host.bytes().all(is_good)) {
                    return Err(refuse(format!("endpoint={value}: give https://HOST or http://HOST:PORT")));
                }
                self.endpoint = Some(value.trim_end_matches('/').to_owned());
            }
            "region" if value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') => {
                self.region = Some(value.to_owned());
            }
            "anonymous" if ["yes", "no"].contains(&value) => self.anonymous = value == "yes",
            "owner" => self.owner.uid = number()?,
            "group" => self.owner.gid = number()?,
            "mode" => match u32::from_str_radix(value, 8) {
                Ok(mode) if mode & !0o666 == 0 && !value.starts_with('+') => self.owner.mode = mode & 0o444,
                _ => return Err(refuse(format!("mode={value}: give bits such as 0440 or 0444"))),
            },
            _ => {
                return Err(refuse(format!(
                    "{name}={value}: the settings are endpoint=URL, region=NAME, anonymous=yes, owner=UID, \
                     group=GID and mode=0440"
                )));
            }
        }
        Ok(())
    }

    /// The store's root as users spell it.
    pub fn root(&self) -> String {
        spelled(&self.bucket, &self.prefix)
    }

    /// What [`ObjectLocation::parse`] makes the same location of.
    pub fn told(&self) -> String {
        let Owner { uid, gid, mode } = self.owner;
        let mut told = format!("{}?owner={uid}&group={gid}&mode={mode:04o}", self.root());
        for (name, value) in [("endpoint", &self.endpoint), ("region", &self.region)] {
            if let Some(value) = value {
                told += &format!("&{name}={value}");
            }
        }
        if self.anonymous {
            told += "&anonymous=yes";
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Owner = Owner { uid: 7, gid: 8, mode: 0o400 };

    #[test]
    fn a_location_is_what_it_says_or_an_error_that_names_the_setting() {
        let check = |text: &str, root: &str, owner: Owner| {
            let location = ObjectLocation::parse(text, NOBODY).unwrap();
            assert_eq!((location.root().as_str(), location.owner), (root, owner), "{text}");
            assert_eq!(ObjectLocation::parse(&location.told(), NOBODY).unwrap(), location, "{text}");
        };
        check("s3://b", "s3://b", NOBODY);
        check("s3://b/", "s3://b", NOBODY);
        check("s3://b//a//c/", "s3://b/a/c", NOBODY);
        check(
            "s3://my.b-1/a?owner=5&group=6&mode=0644&endpoint=http://[::1]:9000/&region=eu-1",
            "s3://my.b-1/a",
            Owner { uid: 5, gid: 6, mode: 0o444 },
        );
        let refused = |text: &str, why: &str| {
            let error = ObjectLocation::parse(text, NOBODY).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(error.to_string().contains(why), "{text}: {error}");
        };
        refused("s3://", "BUCKET");
        refused("s3:///a", "BUCKET");
        refused("s3://b c/a", "BUCKET");
        refused("s3://../a", "BUCKET");
        refused("s3://b/a/../c", "`..`");
        refused("/b/a", "BUCKET");
        refused("s3://b?owner=root", "owner=root");
        refused("s3://b?owner=4294967295", "owner=");
        refused("s3://b?mode=0777", "mode=0777");
        refused("s3://b?mode=+444", "mode=");
        refused("s3://b?mode=", "mode=");
        refused("s3://b?endpoint=ftp://x", "endpoint=");
        refused("s3://b?endpoint=http://", "endpoint=");
        refused("s3://b?endpoint=http://u@h", "endpoint=");
        refused("s3://b?region=a%20b", "region=");
        refused("s3://b?secret=x", "the settings are");
        refused("s3://b?owner", "NAME=VALUE");
    }

    #[test]
    fn paths_have_one_spelling() {
        let check = |text: &str, expected: &str| assert_eq!(plain_path(text).unwrap().unwrap(), expected);
        check("s3://b", "s3://b");
        check("s3://b//run1/", "s3://b/run1");
        check("s3://b/a b/%20?", "s3://b/a b/%20?");
        for other in ["/s3://b", "s3:/b", "S3://b", "b", ""] {
            assert!(plain_path(other).is_none(), "{other}");
        }
        for bad in ["s3://", "s3:///b", "s3://b/../c", "s3://b/./c"] {
            assert!(plain_path(bad).unwrap().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_mode_says_who_may_read() {
        let who = |uid, gid, groups: &[u32]| Credentials { uid, gid, groups: groups.to_vec() };
        let check = |mode, expected: [bool; 5]| {
            let owner = Owner { uid: 7, gid: 8, mode };
            let callers =
                [who(0, 0, &[]), who(7, 1, &[]), who(1, 8, &[]), who(1, 1, &[2, 8]), who(1, 1, &[])];
            assert_eq!(callers.map(|who| owner.lets_read(&who)), expected, "{mode:o}");
            assert_eq!(owner.folder_mode() & 0o444, mode);
            assert_eq!(owner.folder_mode() & 0o111, mode >> 2);
        };
        check(0o400, [true, true, false, false, false]);
        check(0o440, [true, true, true, true, false]);
        check(0o444, [true; 5]);
        check(0o004, [true, false, false, false, true]);
    }
}
