//! Names in the order in which a program got them: what it asks for next, if it goes through them
//! one by one, or through the names of a folder in their alphabetical order. And how many of the
//! names that follow are worth being asked for along with one.
//!
//! Invariants: a wrong guess of what comes next costs time and nothing else. All of it is in memory
//! of a fixed size, and zeros where nothing is known yet.

use crate::paths::Text;

/// Names of one call, at most.
pub const NAMES_MAX: usize = 32;
const NAME_BYTES: usize = 4096;
/// Looks that a listing's first call asks for.
const LOOKS_FIRST: usize = 16;
/// The fewest that a call asks for.
const LOOKS_MIN: usize = 4;
/// Listings that are remembered, and bytes of each: names beyond them are asked for one by one.
pub const LISTINGS: usize = 8;
const LISTING_BYTES: usize = 256 << 10;
/// How many names a program may pass over.
const PASSED_OVER: usize = 4;
/// Steps in a row in a listing's order, before names that follow are asked for; and how many count.
const STEPS_MIN: u32 = 2;
const STEPS_MAX: u32 = 16;
/// Names in alphabetical order, before a folder is listed for them.
const ORDERED_MIN: u32 = 3;
/// The number of a listing whose description is closed.
const CLOSED: u32 = u32::MAX;
/// Where an entry has its type, of which one is a directory, and its name.
const KIND_AT: usize = 18;
const DIRECTORY: u8 = 4;
const NAME_AT: usize = 19;
/// Files that are opened along with one, the first time.
const OPENS_FIRST: usize = 2;
/// Files that are opened alone after many guesses in vain, at most.
const PAUSE_MAX: u32 = 1023;

/// What a program goes through a listing for. The two go on side by side: many programs look at a
/// name, and then open it.
#[derive(Clone, Copy, Debug)]
pub enum Walk {
    /// To look at each (lstat).
    Looks = 0,
    /// To open each.
    Opens = 1,
}

const WALKS: usize = 2;

/// Names in the order in which a program got them.
#[derive(Clone, Copy)]
struct Listing {
    /// The description that was listed; 0 for none.
    id: u32,
    bytes: usize,
    /// Behind the name that each walk was at last.
    at: [usize; WALKS],
    /// When it was last of use, as Listings::turn counts.
    turn: u64,
    /// Looks that the next call asks for; 0: as the first.
    looks: usize,
}

const NO_LISTING: Listing = Listing { id: 0, bytes: 0, at: [0; WALKS], turn: 0, looks: 0 };

/// Names of one folder that were asked for in their alphabetical order.
struct Ordered {
    dir: i32,
    folder: Text,
    name: Text,
    count: u32,
}

/// The listings that a program got.
pub struct Listings {
    all: [Listing; LISTINGS],
    /// Their entries.
    listed: [[u8; LISTING_BYTES]; LISTINGS],
    turn: u64,
    /// How many steps in a row were in a listing's order.
    steps: [u32; WALKS],
    ordered: [Ordered; WALKS],
}

/// The folder of a path, up to its last slash, and the name behind it.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let name_at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (folder, name) = path.split_at(name_at);
    (!matches!(name, b"" | b"." | b"..")).then_some((folder, name))
}

/// An entry of a listing: its name, and where the next one begins.
fn entry(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let length = u16::from_ne_bytes([*bytes.get(at + 16)?, *bytes.get(at + 17)?]) as usize;
    let text = bytes.get(at + NAME_AT..at + length)?;
    let end = text.iter().position(|byte| *byte == 0)?;
    Some((&text[..end], at + length))
}

impl Walk {
    /// Whether a program comes by that entry, of which this is the type. Folders are opened in
    /// other ways than files, and a walk through files has none between them.
    fn comes_by(self, kind: u8) -> bool {
        !(matches!(self, Walk::Opens) && kind == DIRECTORY)
    }
}

/// The entries of a directory, one by one, of those that are whole.
pub fn each_entry(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (_, next) = entry(bytes, at)?;
        Some(&bytes[std::mem::replace(&mut at, next)..next])
    })
}

/// The next name behind `at` that a walk comes by, which is none of the directory's own.
fn next_name(walk: Walk, bytes: &[u8], mut at: usize) -> Option<(&[u8], usize)> {
    loop {
        let (name, next) = entry(bytes, at)?;
        if !matches!(name, b"." | b"..") && walk.comes_by(bytes[at + KIND_AT]) {
            return Some((name, next));
        }
        at = next;
    }
}

impl Listings {
    /// None yet: all zeros.
    pub const NONE: Listings = Listings {
        all: [NO_LISTING; LISTINGS],
        listed: [[0; LISTING_BYTES]; LISTINGS],
        turn: 0,
        steps: [0; WALKS],
        ordered: [const { Ordered { dir: 0, folder: Text::new(), name: Text::new(), count: 0 } }; WALKS],
    };

    /// Nothing is known of any listing.
    pub fn forget(&mut self) {
        self.all = [NO_LISTING; LISTINGS];
        self.ordered.iter_mut().for_each(|ordered| ordered.count = 0);
    }

    /// A description is closed: its number may come to mean another directory.
    pub fn closed(&mut self, id: u32) {
        for listing in self.all.iter_mut().filter(|listing| listing.id == id) {
            // The names stay: programs list a directory, close it, and then look.
            listing.id = CLOSED;
        }
        for ordered in self.ordered.iter_mut().filter(|ordered| u32::try_from(ordered.dir) == Ok(id)) {
            ordered.count = 0;
        }
    }

    /// The program has got these entries of a directory, as getdents64(2) gives them.
    pub fn listed(&mut self, id: u32, entries: &[u8]) {
        let known = self.all.iter().position(|listing| listing.id == id);
        let which = known.unwrap_or_else(|| self.new_listing(id));
        self.append(which, entries);
    }

    /// A directory's entries, which the program did not ask for: it goes through their names in
    /// alphabetical order, and comes to `name`. `entries` is sorted here.
    pub fn sorted(&mut self, walk: Walk, entries: &mut [&[u8]], name: &[u8]) {
        let name_of = |one: &[u8]| entry(one, 0).map_or(0, |(name, _)| name.len());
        entries.sort_unstable_by(|one, other| {
            one[NAME_AT..NAME_AT + name_of(one)].cmp(&other[NAME_AT..NAME_AT + name_of(other)])
        });
        let which = self.new_listing(CLOSED);
        for one in entries.iter().filter(|one| one[NAME_AT..NAME_AT + name_of(one)] >= *name) {
            self.append(which, one);
        }
        self.steps[walk as usize] = STEPS_MAX;
    }

    /// Makes room for a listing: in place of one that a walk has come to the end of, or else of the
    /// one that was of no use for longest. So a walk through a tree comes back to the folders above
    /// that it has not been through.
    fn new_listing(&mut self, id: u32) -> usize {
        let oldest = (0..LISTINGS).min_by_key(|which| (!self.is_over(*which), self.all[*which].turn));
        let which = oldest.unwrap_or(0);
        self.all[which] = Listing { id, ..NO_LISTING };
        which
    }

    /// Whether nothing comes any more of a listing that a walk has gone through.
    fn is_over(&self, which: usize) -> bool {
        let listing = &self.all[which];
        let is_over = |walk: Walk| {
            let at = listing.at[walk as usize];
            at > 0 && next_name(walk, &self.listed[which][..listing.bytes], at).is_none()
        };
        is_over(Walk::Looks) || is_over(Walk::Opens)
    }

    /// Adds entries to a listing, if there is room.
    fn append(&mut self, which: usize, more: &[u8]) {
        self.turn += 1;
        let listing = &mut self.all[which];
        listing.turn = self.turn;
        if let Some(to) = self.listed[which].get_mut(listing.bytes..listing.bytes + more.len()) {
            to.copy_from_slice(more);
            listing.bytes += more.len();
        }
    }

    /// Takes a step in the listing where `name` comes next, or was the last: which one.
    pub fn step(&mut self, walk: Walk, name: &[u8]) -> Option<usize> {
        self.turn += 1;
        for (which, listing) in self.all.iter_mut().enumerate() {
            let bytes = &self.listed[which][..listing.bytes];
            let mut at = listing.at[walk as usize];
            for _ in 0..=PASSED_OVER {
                let Some((next, end)) = next_name(walk, bytes, at) else { break };
                at = end;
                if next == name {
                    (listing.at[walk as usize], listing.turn) = (end, self.turn);
                    self.steps[walk as usize] = (self.steps[walk as usize] + 1).min(STEPS_MAX);
                    return Some(which);
                }
            }
        }
        None
    }

    /// A name was asked for that is in no listing's order.
    pub fn strays(&mut self, walk: Walk) {
        self.steps[walk as usize] /= 2;
    }

    /// The program goes another way from now on.
    pub fn begins_anew(&mut self, walk: Walk) {
        self.steps[walk as usize] = 0;
    }

    /// Whether so many steps were in order that names which follow are worth being asked for.
    pub fn goes_in_order(&self, walk: Walk) -> bool {
        self.steps[walk as usize] > STEPS_MIN
    }

    /// How many looks the next call in a listing asks for. `last`: how many the call before asked
    /// for, and how many of them were of use.
    pub fn looks(&mut self, which: usize, last: Option<(usize, usize)>) -> usize {
        let looks = &mut self.all[which].looks;
        *looks = match (last, *looks) {
            (_, 0) => LOOKS_FIRST,
            (None, size) => size,
            (Some((asked, used)), size) if used >= asked => (size * 2).clamp(LOOKS_MIN, NAMES_MAX),
            (Some((_, used)), _) => (used * 2).clamp(LOOKS_MIN, NAMES_MAX),
        };
        *looks
    }

    /// The names behind the one that a walk is at.
    fn following(&self, walk: Walk, which: usize) -> impl Iterator<Item = &[u8]> {
        let bytes = &self.listed[which][..self.all[which].bytes];
        let mut at = self.all[which].at[walk as usize];
        std::iter::from_fn(move || {
            let (name, behind) = next_name(walk, bytes, at)?;
            at = behind;
            Some(name)
        })
    }

    /// Counts a name that is in no listing; whether its folder is to be listed.
    pub fn is_ordered(&mut self, walk: Walk, dir: i32, folder: &[u8], name: &[u8]) -> bool {
        let ordered = &mut self.ordered[walk as usize];
        let goes_on = ordered.dir == dir && ordered.folder.as_bytes() == folder;
        if !goes_on || name <= ordered.name.as_bytes() {
            ordered.count = 0;
        }
        ordered.count = ordered.count.saturating_add(1);
        ordered.dir = dir;
        let fits = (goes_on || ordered.folder.set(folder)) && ordered.name.set(name);
        // Once: what could not be listed is not tried again at the next name.
        fits && ordered.count == ORDERED_MIN
    }
}

/// The names that one call asks for, each with a NUL behind it.
pub struct Names {
    bytes: [u8; NAME_BYTES],
    /// Where each name begins and ends.
    spans: [(u16, u16); NAMES_MAX],
    /// How many count.
    pub count: usize,
}

impl Names {
    /// None.
    pub const NONE: Names = Names { bytes: [0; NAME_BYTES], spans: [(0, 0); NAMES_MAX], count: 0 };

    /// All of them, one behind the other.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn name(&self, at: usize) -> &[u8] {
        let (from, to) = self.spans[at];
        &self.bytes[from as usize..to as usize]
    }

    /// Where a name is; those from `first` on are looked at first.
    pub fn position(&self, name: &[u8], first: usize) -> Option<usize> {
        (first..self.count).chain(0..first.min(self.count)).find(|at| self.name(*at) == name)
    }

    /// That one counts no more.
    pub fn forget(&mut self, at: usize) {
        // No name is empty.
        self.spans[at] = (0, 0);
    }

    /// Has `first`, and names that come behind it in a walk; how many bytes they take.
    pub fn fill(
        &mut self,
        first: &[u8],
        (listings, walk, which): (&Listings, Walk, usize),
        most: usize,
    ) -> usize {
        let mut end = 0;
        self.count = 0;
        for name in std::iter::once(first).chain(listings.following(walk, which)).take(most) {
            if end + name.len() >= NAME_BYTES {
                break;
            }
            self.bytes[end..end + name.len()].copy_from_slice(name);
            self.spans[self.count] = (end as u16, (end + name.len()) as u16);
            end += name.len();
            self.bytes[end] = 0;
            end += 1;
            self.count += 1;
        }
        end
    }
}

/// How many files are opened along with one.
pub struct Guesses {
    /// 0: as the first time.
    size: usize,
    /// Opens that go alone: how many did, after the last guess in vain, and how many still do.
    pause: u32,
    rest: u32,
}

impl Guesses {
    /// None was made yet.
    pub const NONE: Guesses = Guesses { size: 0, pause: 0, rest: 0 };

    /// How many files came along with one, and how many of them the program opened.
    pub fn judge(&mut self, came: usize, used: usize) {
        if came == 0 {
            return;
        }
        let size = if used >= came { self.size.max(OPENS_FIRST) * 2 } else { used * 2 };
        self.size = size.clamp(OPENS_FIRST, NAMES_MAX - 1);
        self.pause = if used == 0 { (self.pause * 2 + 1).min(PAUSE_MAX) } else { 0 };
        self.rest = self.pause;
    }

    /// How many files to open along with the next one, at most.
    pub fn size(&mut self) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        self.size.max(OPENS_FIRST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of a directory, as the kernel gives them.
    fn entries(names: &[&str]) -> Vec<u8> {
        let mut all = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let length = (NAME_AT + name.len() + 1).next_multiple_of(8);
            let mut entry = vec![0; length];
            entry[..8].copy_from_slice(&(at as u64 + 1).to_ne_bytes());
            entry[16..18].copy_from_slice(&(length as u16).to_ne_bytes());
            entry[NAME_AT..NAME_AT + name.len()].copy_from_slice(name.as_bytes());
            all.extend(entry);
        }
        all
    }

    fn new() -> Box<Listings> {
        // Too large for a stack. SAFETY: all zeros are Listings::NONE, which is not empty.
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<Listings>()).cast()) }
    }

    #[test]
    fn walks_go_on_side_by_side() {
        let mut listings = new();
        listings.listed(7, &entries(&[".", "a", "..", "b", "c", "d"]));
        listings.listed(7, &entries(&["e", "f", "g", "h"]));
        let which = listings.step(Walk::Looks, b"a");
        assert!(which.is_some());
        assert_eq!(listings.step(Walk::Looks, b"b"), which);
        // Four may be passed over, and no step leads back.
        assert_eq!(listings.step(Walk::Opens, b"f"), None);
        assert_eq!(listings.step(Walk::Opens, b"e"), which);
        assert_eq!(listings.step(Walk::Opens, b"a"), None);
        assert!(!listings.goes_in_order(Walk::Looks));
        assert_eq!(listings.step(Walk::Looks, b"c"), which);
        assert!(listings.goes_in_order(Walk::Looks) && !listings.goes_in_order(Walk::Opens));

        let which = which.unwrap();
        let mut names = Names::NONE;
        let bytes = names.fill(b"e", (&listings, Walk::Opens, which), 3);
        assert_eq!((bytes, names.count), (6, 3));
        assert_eq!(&names.bytes[..6], b"e\0f\0g\0");
        assert_eq!(names.fill(b"c", (&listings, Walk::Looks, which), NAMES_MAX), 12);
        assert_eq!((names.position(b"h", 0), names.position(b"c", 4)), (Some(5), Some(0)));
        names.forget(5);
        assert_eq!(names.position(b"h", 0), None);
    }

    #[test]
    fn a_walk_through_a_tree_comes_back_to_the_folder_above() {
        let mut listings = new();
        let mut above = entries(&["d0", "d1", "d2", "d3", "d4", "d5", "f0", "f1"]);
        let each = above.len() / 8;
        above[..6 * each].chunks_mut(each).for_each(|entry| entry[KIND_AT] = DIRECTORY);
        listings.listed(1, &above);
        for below in 2..40 {
            listings.listed(below, &entries(&["x", "y"]));
            assert!(listings.step(Walk::Opens, b"x").is_some() && listings.step(Walk::Opens, b"y").is_some());
        }
        // Files are opened, and folders between them are not.
        let which = listings.step(Walk::Opens, b"f0").unwrap();
        assert_eq!(listings.following(Walk::Opens, which).collect::<Vec<_>>(), [b"f1"]);
        assert_eq!(listings.step(Walk::Looks, b"d0"), Some(which));
        assert_eq!(listings.following(Walk::Looks, which).count(), 7);
    }

    #[test]
    fn names_in_alphabetical_order_count_for_each_walk() {
        let mut listings = new();
        let mut orders = |walk, name: &[u8]| listings.is_ordered(walk, 3, b"in/", name);
        assert!(!orders(Walk::Opens, b"1") && !orders(Walk::Opens, b"2") && !orders(Walk::Looks, b"3"));
        assert!(orders(Walk::Opens, b"3"));
        assert!(!orders(Walk::Opens, b"4"), "once");
        let all = entries(&["b", "a", "d", "c"]);
        let mut each: Vec<&[u8]> = all.chunks(all.len() / 4).collect();
        listings.sorted(Walk::Opens, &mut each, b"b");
        assert!(listings.goes_in_order(Walk::Opens) && !listings.goes_in_order(Walk::Looks));
        let which = listings.step(Walk::Opens, b"b").unwrap();
        let following: Vec<&[u8]> = listings.following(Walk::Opens, which).collect();
        assert_eq!(following, [b"c", b"d"]);
    }

    #[test]
    fn what_comes_from_outside_is_not_trusted() {
        let mut listings = new();
        let mut broken = entries(&["a", "b"]);
        broken[16] = 3;
        listings.listed(1, &broken);
        assert_eq!(listings.step(Walk::Looks, b"a"), None);
        listings.listed(2, &broken[..20]);
        assert_eq!(listings.step(Walk::Looks, b"b"), None);
    }

    #[test]
    fn guesses_grow_with_success_and_pause_without() {
        let mut guesses = Guesses::NONE;
        let mut sizes = vec![];
        for _ in 0..6 {
            let size = guesses.size();
            guesses.judge(size, size);
            sizes.push(size);
        }
        assert_eq!(sizes, [2, 4, 8, 16, 31, 31]);
        // As many as the millisecond is long enough for.
        guesses.judge(31, 5);
        assert_eq!(guesses.size(), 10);
        guesses.judge(10, 0);
        assert_eq!([guesses.size(), guesses.size()], [0, 2]);
        guesses.judge(2, 0);
        assert_eq!([guesses.size(), guesses.size(), guesses.size(), guesses.size()], [0, 0, 0, 2]);
        // Nothing came: nothing is known.
        guesses.judge(0, 0);
        assert_eq!(guesses.size(), 2);
        guesses.judge(2, 2);
        assert_eq!(guesses.size(), 4);
    }
}
