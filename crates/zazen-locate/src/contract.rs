//! What every locator keeps to.

use crate::Locator;
use std::collections::BTreeSet;

/// Checks `locator` against what is known: `held` are files with the nodes that hold them whole;
/// `silent` are nodes that do not answer, which hold files too.
///
/// # Panics
///
/// If the locator breaks a promise.
#[allow(clippy::panic)]
pub fn holds(locator: &mut dyn Locator, held: &[(&str, u64, &[&str])], silent: &[&str]) {
    let mut files: Vec<String> = held.iter().map(|(file, _, _)| (*file).to_owned()).collect();
    files.insert(files.len() / 2, "no/such/file.vtu".to_owned());
    for backwards in [false, true] {
        if backwards {
            files.reverse();
        }
        let found = match locator.locate(&files) {
            Ok(found) => found,
            Err(error) => panic!("{}: {error}", locator.describe()),
        };
        assert_eq!(found.files.len(), files.len(), "one answer for each file");
        for (file, located) in files.iter().zip(&found.files) {
            let known = held.iter().find(|(name, _, _)| name == file);
            let nodes: BTreeSet<&str> =
                located.replicas.iter().map(|replica| replica.node.as_str()).collect();
            assert_eq!(nodes.len(), located.replicas.len(), "{file}: each node once");
            let expected: BTreeSet<&str> =
                known.map_or(&[][..], |(_, _, nodes)| nodes).iter().copied().collect();
            assert_eq!(nodes, expected, "{file}: its holders");
            if let Some((_, bytes, _)) = known {
                assert_eq!(located.bytes, *bytes, "{file}: its length");
                assert!(located.replicas.iter().all(|replica| replica.bytes == *bytes), "{file}: whole");
            }
        }
        let said: BTreeSet<&str> = found.silent.iter().map(|(node, _)| node.as_str()).collect();
        assert_eq!(said, silent.iter().copied().collect(), "the nodes that do not answer");
    }
    assert!(locator.locate(&[]).is_ok_and(|found| found.files.is_empty()), "no files, no answers");
    assert!(!locator.describe().is_empty());
}
