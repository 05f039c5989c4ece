//! Places that are given ahead: where cached frames lie, so that a reader that takes frames one by
//! one reads them without a call of the daemon for each.
//!
//! Such a reader looks at the source of each frame itself, each time, as the daemon would: one look
//! by name in place of one call. So a source that was replaced, closed or deleted is noticed at the
//! next read. Whatever is not as it was goes to the daemon, which decides as ever.
//!
//! Invariants: a reader takes a copy from its place only where [`crate::look::Looking`] would hand
//! it out to the daemon's own user. Places are for callers that may open the cache's files anyway.
//! A reader gives up its places after [`HOLD_NS`], and with them the files that it holds open: an
//! evicted file keeps its room on the disk for no longer.

use crate::stale::{Validate, stands_for};
use zazen_core::{FrameMeta, Layout, Source, SourceStat};

/// How long a reader uses places.
pub const HOLD_NS: u64 = 10_000_000_000;
/// Places that a reader of one dataset holds at most, about 300 bytes each.
pub const HELD_MAX: u64 = 131_072;
/// Places that a reader asks for at once.
pub const ASKED: u32 = 2048;
/// Single reads that cost as much as asking once for [`ASKED`] places.
const PRICE: u64 = 32;
/// The same, for a reader that used most of what it was given before.
const PRICE_OF_THE_KNOWN: u64 = 2;
/// After so many single reads one asks once more, however little came of it.
const PRICE_MAX: u64 = 8192;

/// Whether the place of a cached frame may be given ahead to a caller that has the daemon's own
/// rights. `layout`: what the user or the backing store told.
pub fn may_go_ahead(validate: Validate, layout: Option<&Layout>, meta: &FrameMeta, source: &Source) -> bool {
    // A block counts for one version of its file, which the daemon compares.
    let is_named =
        layout.is_some_and(|layout| layout.blocks().is_none() && layout.gives(meta.number, source));
    let can_be_compared = || {
        let seen = meta.validator.filter(|seen| !seen.unsettled);
        seen.is_some_and(|seen| seen.inode != 0 && seen.ctime_ns != 0)
    };
    is_named && (validate == Validate::Never || can_be_compared())
}

/// Whether a copy of `source` still stands for the file that looks like `stat`. Stricter than
/// [`stands_for`]: both looks must tell inode and change time.
pub fn still_stands(meta: &FrameMeta, source: &Source, stat: &SourceStat) -> bool {
    let now = &stat.validator;
    meta.validator.is_some() && now.inode != 0 && now.ctime_ns != 0 && stands_for(meta, source, stat)
}

/// When a reader asks for places. Asking costs the daemon and the reader as much as some single
/// reads, so the reader first makes as many; whoever jumps about in more frames than it reads in
/// [`HOLD_NS`] asks ever more seldom. Sequential.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    price: u64,
    /// Single reads since it asked last.
    singles: u64,
    held: Option<Held>,
    /// The daemon knows no places.
    never: bool,
}

/// What is held.
#[derive(Clone, Copy, Debug)]
struct Held {
    until_ns: u64,
    given: u64,
    used: u64,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking { price: PRICE, singles: 0, held: None, never: false }
    }
}

impl Asking {
    /// The daemon gave one small cached frame by a call of its own. Whether to ask for places
    /// around it now.
    pub fn read_alone(&mut self, now_ns: u64) -> bool {
        self.is_held(now_ns);
        let held = self.held.map_or(0, |held| held.given);
        if self.never || held + u64::from(ASKED) > HELD_MAX {
            return false;
        }
        self.singles += 1;
        self.singles >= self.price
    }

    /// The daemon gave so many places; `has_asked`: the frame that was asked for is among them.
    /// Until when they may be used, with those held before.
    pub fn given(&mut self, frames: u64, has_asked: bool, now_ns: u64) -> u64 {
        self.singles = 0;
        if !has_asked {
            self.dearer();
        }
        if frames == 0 {
            return now_ns;
        }
        let fresh = Held { until_ns: now_ns.saturating_add(HOLD_NS), given: 0, used: 0 };
        let held = self.held.get_or_insert(fresh);
        held.given += frames;
        held.until_ns
    }

    /// The daemon knows no places.
    pub fn refused(&mut self) {
        self.never = true;
    }

    /// Whether places are held now. Once they have been held for [`HOLD_NS`], all are given up.
    pub fn is_held(&mut self, now_ns: u64) -> bool {
        let Some(held) = self.held else { return false };
        if now_ns < held.until_ns {
            return true;
        }
        self.held = None;
        let cost = held.given.div_ceil(u64::from(ASKED)) * PRICE;
        if held.used >= cost {
            self.price = PRICE_OF_THE_KNOWN;
        } else {
            self.dearer();
        }
        false
    }

    /// A frame was read from its place.
    pub fn used(&mut self) {
        if let Some(held) = &mut self.held {
            held.used += 1;
        }
    }

    fn dearer(&mut self) {
        self.price = self.price.max(PRICE / 4).saturating_mul(4).min(PRICE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::{Action, Event, Looking, Rules, Verdict};
    use crate::stale::Held as HeldCopy;
    use proptest::prelude::*;
    use zazen_core::{Credentials, FrameNo, NameTemplate, Origin, RelPath, Validator};

    fn looks() -> impl Strategy<Value = (Validator, u32, u32, bool)> {
        let few = 0u64..3;
        (few.clone(), 0i64..2, 0i64..3, few, prop::bool::weighted(0.2), 0u32..2, prop::bool::weighted(0.2))
            .prop_map(|(size, mtime_ns, ctime_ns, inode, unsettled, uid, is_dir)| {
                let mode = if size == 0 { 0o600 } else { 0o644 };
                let size = size + 9;
                (Validator { size, mtime_ns, ctime_ns, inode, unsettled }, uid, mode, is_dir)
            })
    }

    /// What the daemon's machine says of a copy whose source looks like `stat`, to its own user.
    fn verdict(copy: &HeldCopy, layout: Option<&Layout>, stat: SourceStat) -> (Verdict, usize) {
        let who = Credentials { uid: 7, gid: 7, groups: vec![] };
        let rules = Rules { validate: Validate::Always, own: true, who: &who, layout };
        let frames = [copy.clone()];
        let (mut looking, mut actions) = (Looking::new(rules, &frames), Vec::new());
        looking.step(Event::Begin, &mut actions);
        looking.step(Event::Stats(Ok(vec![Ok(stat)])), &mut actions);
        match actions.pop() {
            Some(Action::Done(mut verdicts, adopted)) => (verdicts.remove(0), adopted.len()),
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn a_reader_takes_nothing_that_the_daemon_would_not_hand_out(
            then in looks(), now in looks(), same: bool, seen: bool,
            part in prop::option::of(0u64..12), named in 0u64..3, has_layout: bool,
        ) {
            let (validator, uid, mode, _) = then;
            let number = FrameNo::new(1).unwrap();
            let validator = seen.then_some(validator);
            let meta = FrameMeta { number, length: 10, checksum: 1, validator, uid, gid: 9, mode };
            let path = RelPath::new(&format!("f{named}")).unwrap();
            let source = Source { path, offset: part.unwrap_or(0), length: part.map(|_| 10) };
            let copy = HeldCopy { meta: meta.clone(), origin: Origin::Native, source: source.clone() };
            let layout = Layout::Files(NameTemplate::parse("f{n}").unwrap());
            let layout = has_layout.then_some(&layout);
            let (validator, uid, mode, is_dir) = if same { then } else { now };
            let stat = SourceStat { validator, uid, gid: 9, mode, is_dir };
            if may_go_ahead(Validate::Always, layout, &meta, &source) && still_stands(&meta, &source, &stat) {
                let (verdict, adopted) = verdict(&copy, layout, stat);
                prop_assert!(matches!(verdict, Verdict::Fresh), "{:?}", verdict);
                prop_assert_eq!(adopted, 0, "the daemon would have noted how the source looks");
                prop_assert_eq!(named, 1);
            }
        }

        #[test]
        fn asking_costs_at_most_as_much_as_what_was_read_and_what_is_held_is_bounded(
            steps in prop::collection::vec((0u64..3, 0u64..4096, 0u64..2_000_000_000), 1..400),
        ) {
            let (mut asking, mut now) = (Asking::default(), 0u64);
            let (mut singles, mut asked, mut used, mut held) = (0u64, 0u64, 0u64, 0u64);
            for (what, frames, later) in steps {
                now += later;
                if !asking.is_held(now) {
                    held = 0;
                }
                match what {
                    0 if asking.is_held(now) => {
                        used += 1;
                        asking.used();
                    }
                    _ => for _ in 0..64 {
                        singles += 1;
                        if asking.read_alone(now) {
                            asked += 1;
                            let given = frames.min(u64::from(ASKED));
                            let until = asking.given(given, frames % 2 == 0, now);
                            held += given;
                            prop_assert!(given == 0 || until > now && until <= now + HOLD_NS);
                        }
                    },
                }
                prop_assert!(held <= HELD_MAX);
                // Each time that was paid for by single reads, now or by reads from places.
                prop_assert!(asked * PRICE_OF_THE_KNOWN <= singles + used, "{asked} {singles} {used}");
            }
        }
    }

    #[test]
    fn a_place_is_given_only_where_the_source_can_be_compared_again() {
        let good = Validator { size: 10, mtime_ns: 5, ctime_ns: 5, inode: 1, unsettled: false };
        let layout = Layout::Files(NameTemplate::parse("f{n}").unwrap());
        let source = Source { path: RelPath::new("f1").unwrap(), offset: 0, length: None };
        let check = |validator: Option<Validator>, layout: Option<&Layout>, expected: (bool, bool)| {
            let number = FrameNo::new(1).unwrap();
            let meta = FrameMeta { number, length: 10, checksum: 1, validator, uid: 7, gid: 7, mode: 0o644 };
            let may = |validate| may_go_ahead(validate, layout, &meta, &source);
            assert_eq!((may(Validate::Always), may(Validate::Never)), expected, "{validator:?}");
        };
        check(Some(good), Some(&layout), (true, true));
        check(Some(good), None, (false, false));
        check(None, Some(&layout), (false, true));
        check(Some(Validator { unsettled: true, ..good }), Some(&layout), (false, true));
        check(Some(Validator { inode: 0, ..good }), Some(&layout), (false, true));
        check(Some(Validator { ctime_ns: 0, ..good }), Some(&layout), (false, true));
        let others = Layout::Files(NameTemplate::parse("g{n}").unwrap());
        check(Some(good), Some(&others), (false, false));
    }

    #[test]
    fn a_reader_asks_when_it_has_read_as_much_alone_and_ever_more_seldom_in_vain() {
        let reads_until = |asking: &mut Asking, now: u64| {
            let count = (1..=PRICE_MAX).find(|_| asking.read_alone(now));
            count.unwrap_or_else(|| panic!("it never asks"))
        };
        let mut asking = Asking::default();
        assert_eq!(reads_until(&mut asking, 0), PRICE);
        let until = asking.given(2048, true, 0);
        assert_eq!(until, HOLD_NS);
        assert!(asking.is_held(until - 1));
        (0..PRICE).for_each(|_| asking.used());
        assert!(!asking.is_held(until), "all are given up together");
        assert_eq!(reads_until(&mut asking, until), PRICE_OF_THE_KNOWN);

        // None of these is used.
        let mut now = until;
        let mut prices = Vec::new();
        for _ in 0..6 {
            now = asking.given(2048, true, now);
            prices.push(reads_until(&mut asking, now));
        }
        assert_eq!(prices, [PRICE, 4 * PRICE, 16 * PRICE, 64 * PRICE, PRICE_MAX, PRICE_MAX]);

        // A daemon that gives none is asked as seldom; one that knows no places, never.
        let mut asking = Asking::default();
        reads_until(&mut asking, 0);
        assert_eq!(asking.given(0, false, 3), 3);
        assert!(!asking.is_held(3));
        assert_eq!(reads_until(&mut asking, 3), 4 * PRICE);
        // Nor is one that gives the places of other frames only.
        asking.given(2048, false, 4);
        assert_eq!(reads_until(&mut asking, 4), 16 * PRICE);
        asking.refused();
        assert!((0..2 * PRICE_MAX).all(|_| !asking.read_alone(2)));
    }
}
