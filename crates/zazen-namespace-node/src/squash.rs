//! What root of this node is in the namespace: nobody in particular, unless the operator trusts it.

use zazen_core::Credentials;

/// The user and the group without any file of their own.
const NOBODY: u32 = 65_534;

/// The credentials without root's: user 0 becomes nobody, and so do group 0 and the groups of root.
pub(crate) fn squash(of: Credentials) -> Credentials {
    if of.uid == 0 {
        return Credentials { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
    }
    let gid = if of.gid == 0 { NOBODY } else { of.gid };
    Credentials { uid: of.uid, gid, groups: of.groups.into_iter().filter(|group| *group != 0).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(of: (u32, u32, &[u32]), expected: (u32, u32, &[u32])) {
        let credentials =
            |(uid, gid, groups): (u32, u32, &[u32])| Credentials { uid, gid, groups: groups.to_vec() };
        assert_eq!(squash(credentials(of)), credentials(expected));
    }

    #[test]
    fn root_is_nobody_and_others_keep_all_but_its_group() {
        check((0, 0, &[0, 4]), (NOBODY, NOBODY, &[]));
        check((0, 100, &[100]), (NOBODY, NOBODY, &[]));
        check((7, 8, &[9, 10]), (7, 8, &[9, 10]));
        check((7, 0, &[0, 9, 0]), (7, NOBODY, &[9]));
    }
}
