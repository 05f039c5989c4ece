//! Who calls: as the kernel states it for local callers, as the key holder states it for remote
//! ones.

/// The identity a permission check is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Whether a file with this owner and mode may be read: the kernel's own rule (owner, else
    /// group, else others; uid 0 always).
    pub fn may_read(&self, uid: u32, gid: u32, mode: u32) -> bool {
        self.allowed(uid, gid, mode, 0o4)
    }

    /// Whether a directory with this owner and mode may be searched (its `x` bit).
    pub fn may_search(&self, uid: u32, gid: u32, mode: u32) -> bool {
        self.allowed(uid, gid, mode, 0o1)
    }

    fn allowed(&self, uid: u32, gid: u32, mode: u32, bit: u32) -> bool {
        if self.uid == 0 {
            return true;
        }
        let shift = if self.uid == uid {
            6
        } else if self.gid == gid || self.groups.contains(&gid) {
            3
        } else {
            0
        };
        (mode >> shift) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_class_that_matches_decides() {
        let caller = Credentials { uid: 1000, gid: 100, groups: vec![200] };
        assert!(caller.may_read(1000, 1, 0o400));
        assert!(!caller.may_read(1000, 1, 0o044), "an owner without r is refused though others may read");
        assert!(caller.may_read(1, 100, 0o040));
        assert!(caller.may_read(1, 200, 0o040));
        assert!(!caller.may_read(1, 200, 0o404));
        assert!(caller.may_read(1, 1, 0o004));
        assert!(!caller.may_search(1, 1, 0o644));
        assert!(Credentials { uid: 0, gid: 0, groups: vec![] }.may_read(1, 1, 0));
    }
}
