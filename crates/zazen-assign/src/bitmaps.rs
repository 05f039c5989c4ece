//! The paper's protocol (§4, steps 1–7): the local work between its two all-reduces over bitmaps.
//!
//! Every rank uses one bit and two bits of memory per requested frame, whatever the nodes hold.
//! This protocol is the baseline.

use crate::Rules;
use crate::plane::{Builder, Plane, Reader, WINDOW, WORDS, fill_range, new_plane, population};
use zazen_core::RunSet;

/// Steps 1: the set as a bitmap over `count` indices.
pub(crate) fn bitmap(set: &RunSet, count: u64) -> Vec<u64> {
    let mut words = vec![0; count.div_ceil(64) as usize];
    let mut reader = Reader::new(set);
    let mut plane = new_plane();
    for (window, words) in words.chunks_mut(WORDS).enumerate() {
        let base = window as u64 * WINDOW;
        reader.advance(base);
        if reader.touches(base) {
            plane.fill(0);
            reader.fill(base, &mut plane);
            words.copy_from_slice(&plane[..words.len()]);
        }
    }
    words
}

/// Step 4: the set without `natives` as two-bit entries. The low bit of an entry is set if the set
/// holds the index.
pub(crate) fn entries(set: &RunSet, natives: Option<&[u64]>, count: u64) -> Vec<u64> {
    let held = bitmap(set, count);
    let mut entries = vec![0; count.div_ceil(32) as usize];
    for (at, pair) in entries.chunks_mut(2).enumerate() {
        let word = held[at] & !natives.map_or(0, |natives| natives[at]);
        pair[0] = spread(word as u32);
        if let Some(high) = pair.get_mut(1) {
            *high = spread((word >> 32) as u32);
        }
    }
    entries
}

/// Bit i of the half word at bit 2i.
fn spread(half: u32) -> u64 {
    let mut x = u64::from(half);
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    x = (x | x << 2) & 0x3333_3333_3333_3333;
    (x | x << 1) & 0x5555_5555_5555_5555
}

/// The even bits of the word, side by side: inverse of [`spread`].
fn gather(word: u64) -> u64 {
    let mut x = word & 0x5555_5555_5555_5555;
    x = (x | x >> 1) & 0x3333_3333_3333_3333;
    x = (x | x >> 2) & 0x0f0f_0f0f_0f0f_0f0f;
    x = (x | x >> 4) & 0x00ff_00ff_00ff_00ff;
    x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    (x | x >> 16) & 0x0000_0000_ffff_ffff
}

/// What all ranks know after the all-reduces.
pub(crate) struct Global {
    /// Frames that are native somewhere, one bit each.
    pub(crate) native: Vec<u64>,
    /// Two-bit entries of natives; `None` if no frame is native twice.
    pub(crate) native_entries: Option<Vec<u64>>,
    /// Two-bit entries of aliens that are native nowhere; `None` if every frame is native
    /// somewhere.
    pub(crate) alien_entries: Option<Vec<u64>>,
}

/// Steps 6 and 7 on one rank.
pub(crate) struct Survey {
    /// This node's natives that other nodes hold too; under the full rules, also this node's aliens
    /// that other nodes hold too.
    pub(crate) claims: RunSet,
    /// The aliens that this node may read: those that no other node holds, and under the full rules
    /// those that it claims.
    pub(crate) alien: RunSet,
    /// Frames that no node reads from its cache, over the whole request.
    pub(crate) residue: RunSet,
    /// Within this rank's slice: the numbers of frames read as natives, of frames read as aliens,
    /// and of contested frames among both.
    pub(crate) counts: [u64; 3],
    /// Whether any frame of the request is contested.
    pub(crate) contested: bool,
}

/// The planes of one window.
struct Planes {
    native: Box<Plane>,
    native_several: Box<Plane>,
    alien_one: Box<Plane>,
    alien_several: Box<Plane>,
}

impl Planes {
    fn new() -> Planes {
        Planes {
            native: new_plane(),
            native_several: new_plane(),
            alien_one: new_plane(),
            alien_several: new_plane(),
        }
    }

    fn load(&mut self, global: &Global, window: usize) {
        let first = window * WORDS;
        let end = (first + WORDS).min(global.native.len());
        self.native.fill(0);
        self.native[..end - first].copy_from_slice(&global.native[first..end]);
        let load = |plane: &mut Plane, entries: &Option<Vec<u64>>, shift: u32| {
            plane.fill(0);
            let Some(entries) = entries else { return };
            let from = entries[2 * first..(2 * end).min(entries.len())].chunks(2);
            for (into, pair) in plane.iter_mut().zip(from) {
                let high = pair.get(1).copied().unwrap_or(0);
                *into = gather(pair[0] >> shift) | gather(high >> shift) << 32;
            }
        };
        load(&mut self.native_several, &global.native_entries, 1);
        load(&mut self.alien_one, &global.alien_entries, 0);
        load(&mut self.alien_several, &global.alien_entries, 1);
    }
}

/// Surveys the request of `count` indices for a rank whose slice is `slice` and whose node holds
/// `native` and `alien` (empty unless it leads its node).
pub(crate) fn survey(
    rules: Rules,
    global: &Global,
    (count, target): (u64, Option<&RunSet>),
    slice: (u64, u64),
    (native, alien): (&RunSet, &RunSet),
) -> Survey {
    let full = rules == Rules::Full;
    let mut target = target.map(Reader::new);
    let mut readers = (Reader::new(native), Reader::new(alien));
    let (mut window, mut plane, mut output, mut inside) =
        (Planes::new(), new_plane(), new_plane(), new_plane());
    let mut native_claims = Builder::default();
    let (mut alien_claims, mut mine, mut residue) =
        (Builder::default(), Builder::default(), Builder::default());
    let mut counts = [0; 3];
    let mut contested = false;
    for at in 0..count.div_ceil(WINDOW) {
        let base = at * WINDOW;
        window.load(global, at as usize);
        let w = &window;
        plane.fill(0);
        readers.0.fill(base, &mut plane);
        output.iter_mut().enumerate().for_each(|(k, word)| *word = plane[k] & w.native_several[k]);
        native_claims.push_plane(base, &output);
        plane.fill(0);
        readers.1.fill(base, &mut plane);
        output.iter_mut().enumerate().for_each(|(k, word)| *word = plane[k] & w.alien_several[k]);
        if full {
            alien_claims.push_plane(base, &output);
            output.iter_mut().enumerate().for_each(|(k, word)| *word |= plane[k] & w.alien_one[k]);
        } else {
            output.iter_mut().enumerate().for_each(|(k, word)| *word = plane[k] & w.alien_one[k]);
        }
        mine.push_plane(base, &output);
        output.fill(0);
        match &mut target {
            Some(target) => target.fill(base, &mut output),
            None => fill_range(&mut output, 0, ((count - base).min(WINDOW) - 1) as usize),
        }
        for (k, word) in output.iter_mut().enumerate() {
            *word &= !(w.native[k] | w.alien_one[k] | if full { w.alien_several[k] } else { 0 });
        }
        residue.push_plane(base, &output);
        contested |= (0..WORDS).any(|k| w.native_several[k] != 0 || (full && w.alien_several[k] != 0));
        // The counts are of the slice only.
        let (first, end) = (slice.0.max(base), slice.1.min(base + WINDOW));
        if first < end {
            inside.fill(0);
            fill_range(&mut inside, (first - base) as usize, (end - 1 - base) as usize);
            let mut count = |value: &dyn Fn(usize) -> u64| {
                output.iter_mut().enumerate().for_each(|(k, word)| *word = inside[k] & value(k));
                population(&output)
            };
            let several = if full { count(&|k| w.alien_several[k]) } else { 0 };
            counts[0] += count(&|k| w.native[k]);
            counts[1] += count(&|k| w.alien_one[k]) + several;
            counts[2] += count(&|k| w.native_several[k]) + several;
        }
    }
    let claims = native_claims.finish().union(&alien_claims.finish());
    Survey { claims, alien: mine.finish(), residue: residue.finish(), counts, contested }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreading_and_gathering_invert() {
        for half in [0, 1, 0x8000_0001, u32::MAX, 0x1234_5678] {
            assert_eq!(gather(spread(half)), u64::from(half));
            assert_eq!(spread(half) & 0xaaaa_aaaa_aaaa_aaaa, 0);
        }
    }
}
