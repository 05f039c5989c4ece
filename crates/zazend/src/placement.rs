//! Where a cache may lie: never within a backing store, and no backing store may lie within it.
//!
//! A cache within a backing store would be listed, cached and forwarded as users' data. A backing
//! store within a cache could be taken for cached frames, and evicted.

use crate::config::{BackingSpec, Config};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// Refuses (`Config`) a cache that overlaps a backing store of this machine, also through links.
pub fn check_placement(config: &Config) -> Result<()> {
    for (at, one) in config.caches.iter().enumerate() {
        let cache = resolved(&one.root);
        let here = config.backing.iter().filter(|spec| spec.server.is_none());
        here.clone().try_for_each(|spec| apart(&one.root, &cache, spec))?;
        config.caches[..at].iter().try_for_each(|other| two_caches(&one.root, &cache, &other.root))?;
    }
    Ok(())
}

/// Refuses a cache within another one: each would take the other's files for strangers' and count
/// them.
fn two_caches(root: &Path, cache: &Path, other_root: &Path) -> Result<()> {
    let other = resolved(other_root);
    let overlap =
        *cache == other || is_same(cache, &other) || is_within(cache, &other) || is_within(&other, cache);
    if !overlap {
        return Ok(());
    }
    let text = format!(
        "caches {} and {} are one folder, or one lies within the other; give each disk a folder of its own",
        other_root.display(),
        root.display()
    );
    Err(Error::new(ErrorKind::Config, text))
}

fn apart(root: &Path, cache: &Path, spec: &BackingSpec) -> Result<()> {
    let backing = resolved(Path::new(&spec.directory));
    let why = if *cache == backing || is_same(cache, &backing) {
        "is the backing store itself"
    } else if is_within(cache, &backing) {
        "lies within the backing store, whose users would find it there as data of their own"
    } else if is_within(&backing, cache) {
        "holds the backing store, whose files would be taken for cached ones"
    } else {
        return Ok(());
    };
    let (named, given) = (root.display(), &spec.directory);
    let really = match (root == cache, Path::new(given) == backing) {
        (true, true) => String::new(),
        _ => format!(" (really {} and {})", cache.display(), backing.display()),
    };
    Err(Error::new(
        ErrorKind::Config,
        format!(
            "cache {named} {why}, {given}{really}; give a --cache on a local disk and a --backing that do \
             not contain each other"
        ),
    ))
}

/// Whether one of the folders above `path` is `folder`, under this or another name (a bind mount).
fn is_within(path: &Path, folder: &Path) -> bool {
    path.ancestors().skip(1).any(|above| above == folder || is_same(above, folder))
}

fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    id(one).is_some_and(|found| id(other) == Some(found))
}

/// `path` with all links followed, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(found), Ok(rest)) = (above.canonicalize(), path.strip_prefix(above)) {
            return if rest.as_os_str().is_empty() { found } else { found.join(rest) };
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Args;

    #[test]
    fn a_cache_and_a_backing_store_lie_apart_whatever_links_say() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["backing/data", "cache", "backing2"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("backing/data"), dir.path().join("link")).unwrap();
        let check = |cache: &str, backing: &str, expected: Option<&str>| {
            let at = |name: &str| dir.path().join(name).into_os_string().into_string().unwrap();
            let backing = match backing.strip_suffix('!') {
                Some(served) => format!("{}=tcp://host:1", at(served)),
                None if backing == "/" => "/".to_owned(),
                None => at(backing),
            };
            let args = Args { cache: vec![at(cache).into()], backing: vec![backing], ..Args::default() };
            let found = check_placement(&Config::assemble(&args).unwrap());
            match expected {
                None => found.unwrap(),
                Some(why) => {
                    let error = found.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Config);
                    assert!(error.to_string().contains(why), "{error}");
                }
            }
        };
        check("cache", "backing", None);
        check("backing2", "backing", None);
        check("backing/new/cache", "backing", Some("lies within"));
        check("link/cache", "backing", Some("really"));
        check("cache", "/", Some("lies within"));
        check("backing", "backing/data", Some("holds the backing store"));
        check("backing", "link", Some("holds the backing store"));
        check("backing", "backing", Some("is the backing store itself"));
        check("backing/cache", "backing!", None);
    }
}
