//! Run sets as bytes: each part in its cheapest encoding, which is the smallest save that gaps must
//! be less than a quarter of a large bitmap (a density of 1/32): walking them costs more than a
//! link of a Gbit/s takes to carry the difference, while a bitmap passes at the speed of memory.
//!
//! ```text
//! set     version (1 byte, 1), part*, end
//! end     0, varint count          count: numbers in the whole set, a check
//! range   1, skip, varint count-1              first, first+1, …
//! stride  2, skip, varint count-1, varint step first, first+step, …
//! gaps    3, skip, varint count-1, (count-1) × varint gap-1
//! bitmap  4, skip, varint bytes-1, bytes       bit b of byte i: number (first & !7) + 8·i + b
//! skip    varint: first - (last of the part before + 1); in the first part: first
//! varint  7 bits a byte, least significant first, top bit: more follows; at most 10 bytes
//! ```
//!
//! A bitmap lies within one window of 65 536 numbers and its bit for `first` is its lowest set bit.
//! Parts ascend by construction, so that a decoder builds the set as it reads. Invariants: decoding
//! never panics and holds memory in proportion to the input (a run of any length takes a few bytes
//! in both forms). Equal sets that were built in different ways may differ in their bytes.

use zazen_core::runset::{NUMBER_MAX, Segment};
use zazen_core::varint::put_varint;
use zazen_core::{Error, ErrorKind, Result, Run, RunSet};

/// The version that this build writes and the only one that it reads.
pub const VERSION: u8 = 1;

const END: u8 = 0;
const RANGE: u8 = 1;
const STRIDE: u8 = 2;
const GAPS: u8 = 3;
const BITMAP: u8 = 4;

/// Numbers in the window that a bitmap must stay in.
const WINDOW: u64 = 1 << 16;
/// A part of gaps is ended beyond this many bytes, so that the encoder's buffer stays small.
const GAPS_BYTES_MAX: usize = 64 << 10;
/// A bitmap has at least so many bytes per number where gaps are taken instead.
const GAPS_WORTH: usize = 4;
/// Bitmaps shorter than this are taken bit by bit: clearing a whole window would cost more.
const SHORT_BITMAP_BYTES: usize = 128;

/// Appends `set` to `out`.
pub fn encode(set: &RunSet, out: &mut Vec<u8>) {
    out.push(VERSION);
    let mut encoder = Encoder { out, next: 0, gaps: Vec::new(), gaps_first: 0, gaps_count: 0 };
    for segment in set.segments() {
        match segment {
            Segment::Run(run) => encoder.run(run),
            Segment::Sparse { base, offsets } => encoder.sparse(base, offsets),
            Segment::Bits { base, words, count } => encoder.bits(base, words, count as usize),
        }
    }
    encoder.flush_gaps();
    out.push(END);
    put_varint(out, set.len());
}

/// The set that is all of `bytes`; fails with [`ErrorKind::Protocol`] for anything else.
pub fn decode(bytes: &[u8]) -> Result<RunSet> {
    let (set, used) = decode_prefix(bytes)?;
    if used != bytes.len() {
        return Err(broken(format!("{} bytes follow its end at byte {used}", bytes.len() - used)));
    }
    Ok(set)
}

/// The set that `bytes` begins with, and how many bytes it takes; fails with
/// [`ErrorKind::Protocol`].
pub fn decode_prefix(bytes: &[u8]) -> Result<(RunSet, usize)> {
    let mut input = Input { bytes, at: 0 };
    let mut set = RunSet::new();
    decode_parts(&mut input, &mut set)?;
    Ok((set, input.at))
}

/// A set that was checked but not built: bitmaps stay in the bytes that they came in. For those who
/// read a set once, from front to back.
#[derive(Clone, Debug, Default)]
pub struct View<'a> {
    parts: Vec<Part<'a>>,
    len: u64,
    first: Option<u64>,
    last: Option<u64>,
}

/// A part of a [`View`]; parts ascend and do not overlap.
#[derive(Clone, Debug)]
pub enum Part<'a> {
    /// A strided run of any span.
    Run(Run),
    /// Numbers `base + offsets[i]`, ascending; `base` is a multiple of 65 536.
    Sparse {
        /// The window's first number.
        base: u64,
        /// Offsets from it, ascending.
        offsets: Vec<u16>,
    },
    /// Bit b of `bytes[i]` is number `base + 8·(skipped + i) + b`; all within one window.
    Bitmap {
        /// The window's first number, a multiple of 65 536.
        base: u64,
        /// Bytes of the window before the first.
        skipped: usize,
        /// Bits, least significant first.
        bytes: &'a [u8],
    },
}

impl<'a> View<'a> {
    /// The set that `bytes` begins with, and how many bytes it takes; accepts what
    /// [`decode_prefix`] accepts.
    pub fn prefix(bytes: &'a [u8]) -> Result<(View<'a>, usize)> {
        let mut input = Input { bytes, at: 0 };
        let mut view = View::default();
        decode_parts(&mut input, &mut view)?;
        Ok((view, input.at))
    }

    /// The parts, ascending.
    pub fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// How many numbers.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no number in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The smallest and the largest number.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        self.first.zip(self.last)
    }

    fn take(&mut self, count: u64, first: u64, last: u64) {
        // Beyond 64 bits no count at the end can match.
        self.len = self.len.saturating_add(count);
        self.first.get_or_insert(first);
        self.last = Some(last);
    }
}

/// What parts are decoded into. All of them lie behind `last`, below or at the largest number, and
/// are of valid form.
trait Sink<'a> {
    fn len(&self) -> u64;
    fn last(&self) -> Option<u64>;
    fn run(&mut self, run: Run);
    fn sparse(&mut self, base: u64, offsets: &[u16]);
    /// `first` and `last` are the numbers of the lowest and highest bit.
    fn bitmap(&mut self, base: u64, skipped: usize, bytes: &'a [u8], ends: (u64, u64));
}

impl<'a> Sink<'a> for RunSet {
    fn len(&self) -> u64 {
        RunSet::len(self)
    }

    fn last(&self) -> Option<u64> {
        RunSet::last(self)
    }

    fn run(&mut self, run: Run) {
        self.insert_run(run);
    }

    fn sparse(&mut self, base: u64, offsets: &[u16]) {
        self.extend_sparse(base, offsets);
    }

    fn bitmap(&mut self, base: u64, skipped: usize, bytes: &'a [u8], _ends: (u64, u64)) {
        if bytes.len() >= SHORT_BITMAP_BYTES {
            self.extend_bits(base, words_of(skipped, bytes));
            return;
        }
        for (at, byte) in bytes.iter().enumerate() {
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                self.insert(base + (skipped + at) as u64 * 8 + bit);
            }
        }
    }
}

impl<'a> Sink<'a> for View<'a> {
    fn len(&self) -> u64 {
        self.len
    }

    fn last(&self) -> Option<u64> {
        self.last
    }

    fn run(&mut self, run: Run) {
        self.take(run.count, run.first, run.last());
        self.parts.push(Part::Run(run));
    }

    fn sparse(&mut self, base: u64, offsets: &[u16]) {
        if let (Some(first), Some(last)) = (offsets.first(), offsets.last()) {
            self.take(offsets.len() as u64, base + u64::from(*first), base + u64::from(*last));
            self.parts.push(Part::Sparse { base, offsets: offsets.to_vec() });
        }
    }

    fn bitmap(&mut self, base: u64, skipped: usize, bytes: &'a [u8], (first, last): (u64, u64)) {
        let (words, rest) = bytes.as_chunks::<8>();
        let count: u64 = words.iter().map(|word| u64::from(u64::from_le_bytes(*word).count_ones())).sum();
        let count = count + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        self.take(count, first, last);
        self.parts.push(Part::Bitmap { base, skipped, bytes });
    }
}

fn decode_parts<'a>(input: &mut Input<'a>, sink: &mut impl Sink<'a>) -> Result<()> {
    let version = input.byte()?;
    if version != VERSION {
        return Err(broken(format!("version {version}, where this build reads {VERSION}")));
    }
    loop {
        match input.byte()? {
            END => break,
            kind @ (RANGE | STRIDE) => decode_run(input, sink, kind)?,
            GAPS => decode_gaps(input, sink)?,
            BITMAP => decode_bitmap(input, sink)?,
            kind => return Err(broken(format!("unknown kind of part {kind} before byte {}", input.at))),
        }
    }
    let count = input.varint()?;
    if count != sink.len() {
        return Err(broken(format!("{} numbers, where its end says {count}", sink.len())));
    }
    Ok(())
}

fn broken(why: String) -> Error {
    Error::new(ErrorKind::Protocol, format!("run set: {why}; the sender is damaged or of another version"))
}

struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    /// One beyond the last number that was written or waits in `gaps`.
    next: u64,
    /// Gaps that wait for their count.
    gaps: Vec<u8>,
    gaps_first: u64,
    gaps_count: u64,
}

impl Encoder<'_> {
    fn run(&mut self, run: Run) {
        let skip = run.first - self.next;
        let as_run = 1
            + varint_len(skip)
            + varint_len(run.count - 1)
            + if run.step > 1 { varint_len(run.step) } else { 0 };
        // Ending a part of gaps costs the head of the next one.
        let as_run = as_run + if self.gaps_count > 0 { 4 } else { 0 };
        let as_gaps = (run.count - 1).saturating_mul(varint_len(run.step - 1) as u64);
        let as_gaps =
            as_gaps.saturating_add(varint_len(skip) as u64 + if self.gaps_count > 0 { 0 } else { 2 });
        if as_gaps <= as_run as u64 {
            for at in 0..run.count {
                self.gap(run.first + at * run.step);
            }
            return;
        }
        self.flush_gaps();
        self.out.push(if run.step == 1 { RANGE } else { STRIDE });
        put_varint(self.out, skip);
        put_varint(self.out, run.count - 1);
        if run.step > 1 {
            put_varint(self.out, run.step);
        }
        self.next = run.last() + 1;
    }

    fn sparse(&mut self, base: u64, offsets: &[u16]) {
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
            return;
        };
        let bitmap_bytes = usize::from(last / 8 - first / 8) + 1;
        let gap_bytes =
            || offsets.windows(2).map(|pair| varint_len(u64::from(pair[1] - pair[0] - 1))).sum::<usize>();
        if bitmap_bytes >= 3 * offsets.len() || bitmap_bytes >= gap_bytes() {
            for offset in offsets {
                self.gap(base + u64::from(*offset));
            }
            return;
        }
        let mut bytes = vec![0u8; bitmap_bytes];
        for offset in offsets {
            bytes[usize::from(offset / 8 - first / 8)] |= 1 << (offset % 8);
        }
        self.bitmap(base + u64::from(*first), &bytes);
    }

    fn bits(&mut self, base: u64, words: &[u64], count: usize) {
        let (Some(low), Some(high)) =
            (words.iter().position(|word| *word != 0), words.iter().rposition(|word| *word != 0))
        else {
            return;
        };
        let first = low * 64 + words[low].trailing_zeros() as usize;
        let last = high * 64 + 63 - words[high].leading_zeros() as usize;
        if GAPS_WORTH * count <= last / 8 - first / 8 + 1 {
            each_bit(words, |offset| self.gap(base + offset));
            return;
        }
        let head = self.bitmap_head(base + first as u64, last / 8 - first / 8 + 1);
        let (start, end) = (first / 8 - low * 8, last / 8 - high * 8 + 1);
        if low == high {
            self.out.extend_from_slice(&words[low].to_le_bytes()[start..end]);
        } else {
            self.out.extend_from_slice(&words[low].to_le_bytes()[start..]);
            // Eight at a time: room of many words would have to be cleared before it is written.
            let (eights, rest) = words[low + 1..high].as_chunks::<8>();
            for eight in eights {
                self.out.extend_from_slice(eight.map(u64::to_le_bytes).as_flattened());
            }
            rest.iter().for_each(|word| self.out.extend_from_slice(&word.to_le_bytes()));
            self.out.extend_from_slice(&words[high].to_le_bytes()[..end]);
        }
        debug_assert_eq!(self.out.len() - head, last / 8 - first / 8 + 1);
        self.next = base + last as u64 + 1;
    }

    /// Begins a bitmap of `bytes` bytes; returns where they go.
    fn bitmap_head(&mut self, first: u64, bytes: usize) -> usize {
        self.flush_gaps();
        self.out.push(BITMAP);
        put_varint(self.out, first - self.next);
        put_varint(self.out, bytes as u64 - 1);
        self.out.len()
    }

    fn bitmap(&mut self, first: u64, bytes: &[u8]) {
        self.bitmap_head(first, bytes.len());
        self.out.extend_from_slice(bytes);
        let top = bytes.last().map_or(0, |byte| 7 - u64::from(byte.leading_zeros()));
        self.next = (first & !7) + (bytes.len() as u64 - 1) * 8 + top + 1;
    }

    fn gap(&mut self, number: u64) {
        if self.gaps_count == 0 {
            self.gaps_first = number - self.next;
        } else {
            put_varint(&mut self.gaps, number - self.next);
        }
        self.gaps_count += 1;
        self.next = number + 1;
        if self.gaps.len() >= GAPS_BYTES_MAX {
            self.flush_gaps();
        }
    }

    fn flush_gaps(&mut self) {
        if self.gaps_count > 0 {
            self.out.push(GAPS);
            put_varint(self.out, self.gaps_first);
            put_varint(self.out, self.gaps_count - 1);
            self.out.append(&mut self.gaps);
            self.gaps_count = 0;
        }
    }
}

fn each_bit(words: &[u64], mut take: impl FnMut(u64)) {
    for (at, word) in words.iter().enumerate() {
        let mut word = *word;
        while word != 0 {
            take(at as u64 * 64 + u64::from(word.trailing_zeros()));
            word &= word - 1;
        }
    }
}

fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn truncated(&self) -> Error {
        broken(format!("cut short at byte {}", self.bytes.len()))
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = self.bytes.get(self.at).copied().ok_or_else(|| self.truncated())?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64> {
        match self.bytes.get(self.at) {
            Some(byte) if *byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(broken(format!("a number beyond 64 bits before byte {}", self.at)))
    }

    /// The first number of a part behind `last`.
    fn first(&mut self, last: Option<u64>) -> Result<u64> {
        let skip = self.varint()?;
        let first = skip.checked_add(last.map_or(0, |last| last + 1));
        first.filter(|first| *first <= NUMBER_MAX).ok_or_else(|| self.too_large())
    }

    fn too_large(&self) -> Error {
        broken(format!("a number beyond {NUMBER_MAX} before byte {}", self.at))
    }
}

fn decode_run<'a>(input: &mut Input<'a>, sink: &mut impl Sink<'a>, kind: u8) -> Result<()> {
    let first = input.first(sink.last())?;
    let count = input.varint()?.checked_add(1).ok_or_else(|| input.too_large())?;
    let step = if kind == STRIDE { input.varint()? } else { 1 };
    let run = Run::new(first, count, step).map_err(|error| broken(error.context().to_owned()))?;
    sink.run(run);
    Ok(())
}

fn decode_gaps<'a>(input: &mut Input<'a>, sink: &mut impl Sink<'a>) -> Result<()> {
    let mut number = input.first(sink.last())?;
    let more = input.varint()?;
    if more > (input.bytes.len() - input.at) as u64 {
        return Err(input.truncated());
    }
    // Numbers are gathered by window: a block at a time costs a fraction of one by one.
    let mut base = number & !(WINDOW - 1);
    let mut offsets = vec![(number - base) as u16];
    for _ in 0..more {
        let gap = input.varint()?;
        let next = (number + 1).checked_add(gap).filter(|next| *next <= NUMBER_MAX);
        number = next.ok_or_else(|| input.too_large())?;
        if number - base >= WINDOW {
            sink.sparse(base, &offsets);
            base = number & !(WINDOW - 1);
            offsets.clear();
        }
        offsets.push((number - base) as u16);
    }
    sink.sparse(base, &offsets);
    Ok(())
}

fn decode_bitmap<'a>(input: &mut Input<'a>, sink: &mut impl Sink<'a>) -> Result<()> {
    let first = input.first(sink.last())?;
    let (base, skipped) = (first & !(WINDOW - 1), (first % WINDOW / 8) as usize);
    let room = (WINDOW / 8) as usize - skipped;
    let length = input.varint()?;
    let length = usize::try_from(length).ok().and_then(|length| length.checked_add(1)).unwrap_or(usize::MAX);
    if length > room {
        return Err(broken(format!(
            "a bitmap from {first} of {length} bytes, of which {room} fit its window"
        )));
    }
    let bytes =
        input.bytes.get(input.at..).and_then(|rest| rest.get(..length)).ok_or_else(|| input.truncated())?;
    input.at += length;
    let below = bytes[0] & ((1u8 << (first % 8)) - 1);
    if below != 0 || bytes[0] >> (first % 8) & 1 == 0 || bytes[length - 1] == 0 {
        return Err(broken(format!("a bitmap from {first} that does not begin and end there")));
    }
    let top = base + (skipped + length - 1) as u64 * 8 + 7 - u64::from(bytes[length - 1].leading_zeros());
    if top > NUMBER_MAX {
        return Err(input.too_large());
    }
    sink.bitmap(base, skipped, bytes, (first, top));
    Ok(())
}

/// `skipped` zero bytes and then `bytes`, as words.
fn words_of(skipped: usize, bytes: &[u8]) -> Vec<u64> {
    let mut words = Vec::with_capacity((skipped + bytes.len()).div_ceil(8));
    words.resize(skipped / 8, 0);
    let (head, rest) = bytes.split_at((8 - skipped % 8).min(bytes.len()) % 8);
    let (whole, tail) = rest.as_chunks::<8>();
    let part = |bytes: &[u8], shift: usize| {
        bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)) << (8 * shift)
    };
    words.extend((!head.is_empty()).then(|| part(head, skipped % 8)));
    words.extend(whole.iter().map(|word| u64::from_le_bytes(*word)));
    words.extend((!tail.is_empty()).then(|| part(tail, 0)));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(set: &RunSet) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(set, &mut bytes);
        bytes
    }

    fn round_trip(set: &RunSet) -> Vec<u8> {
        let bytes = bytes_of(set);
        let back = decode(&bytes).unwrap();
        assert!(back.iter().take(1 << 20).eq(set.iter().take(1 << 20)), "{set:?} came back as {back:?}");
        assert_eq!(&back, set);
        let mut longer = bytes.clone();
        longer.extend([7, 7, 7]);
        check_view(&longer, &back, bytes.len());
        assert_eq!(decode_prefix(&longer).unwrap(), (back, bytes.len()));
        assert_eq!(decode(&longer).unwrap_err().kind(), ErrorKind::Protocol);
        bytes
    }

    /// A view of what `bytes` begin with has the numbers of `set`.
    fn check_view(bytes: &[u8], set: &RunSet, used: usize) {
        let (view, taken) = View::prefix(bytes).unwrap();
        let bounds = set.first().zip(set.last());
        assert_eq!(
            (taken, view.len(), view.bounds(), view.is_empty()),
            (used, set.len(), bounds, set.is_empty())
        );
        let sets = view.parts().iter().map(|part| match part {
            Part::Run(run) => RunSet::from_run(*run),
            Part::Sparse { base, offsets } => {
                offsets.iter().map(|offset| base + u64::from(*offset)).collect()
            }
            Part::Bitmap { base, skipped, bytes } => {
                let number = |bit: usize| base + 8 * *skipped as u64 + bit as u64;
                (0..8 * bytes.len()).filter(|bit| bytes[bit / 8] >> (bit % 8) & 1 == 1).map(number).collect()
            }
        });
        assert!(RunSet::union_all(sets) == *set, "a view of {set:?}");
    }

    fn run(first: u64, count: u64, step: u64) -> Run {
        Run::new(first, count, step).unwrap()
    }

    fn noise(seed: u64, from: u64, span: u64, keep_in_1000: u64) -> Vec<u64> {
        let mut state = seed | 1;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (from..from + span).filter(|_| draw() % 1000 < keep_in_1000).collect()
    }

    #[test]
    fn golden_bytes() {
        fn check(set: RunSet, expected: &[u8]) {
            assert_eq!(round_trip(&set), expected, "{set:?}");
        }
        check(RunSet::new(), &[1, 0, 0]);
        check(RunSet::range(0, 999_999_999), &[1, 1, 0, 255, 147, 235, 220, 3, 0, 128, 148, 235, 220, 3]);
        check(RunSet::range(300, 309), &[1, 1, 172, 2, 9, 0, 10]);
        check(
            RunSet::from_run(run(3, 1 << 40, 8)),
            &[1, 2, 3, 255, 255, 255, 255, 255, 31, 8, 0, 128, 128, 128, 128, 128, 32],
        );
        check([5u64, 7, 300].into_iter().collect(), &[1, 3, 5, 2, 1, 164, 2, 0, 3]);
        let mixed = RunSet::range(0, 99).union(&[200, 1000, 1_000_000].into_iter().collect());
        check(mixed, &[1, 1, 0, 99, 3, 100, 2, 159, 6, 215, 252, 60, 0, 103]);
        // Half density from number 8 on, so that neither runs nor gaps are smaller than a bitmap.
        let bits: Vec<u64> =
            (0u64..40).filter(|bit| 0x53_1ac9_75b3u64 >> bit & 1 == 1).map(|bit| 8 + bit).collect();
        let bytes = round_trip(&RunSet::from_ascending(bits.iter().copied()));
        assert_eq!(bytes, [1, 4, 8, 4, 0xb3, 0x75, 0xc9, 0x1a, 0x53, 0, bits.len() as u8]);
    }

    #[test]
    fn sparse_noise_takes_little_more_than_a_byte_a_number() {
        let numbers = noise(42, 1 << 30, 3_000_000, 10);
        let bytes = round_trip(&RunSet::from_ascending(numbers.iter().copied()));
        let per_number = bytes.len() as f64 / numbers.len() as f64;
        assert!((1.2..1.32).contains(&per_number), "{per_number} bytes a number (seed 42)");
    }

    #[test]
    fn dense_noise_takes_a_bit_a_place() {
        let bytes = round_trip(&RunSet::from_ascending(noise(7, 12_345, 1 << 20, 500)));
        assert!(bytes.len() < (1 << 17) + 200, "{} bytes (seed 7)", bytes.len());
    }

    #[test]
    fn malformed_sets_are_refused() {
        fn check(bytes: &[u8], why: &str) {
            let error = decode(bytes).expect_err(why);
            assert_eq!(error.kind(), ErrorKind::Protocol);
            assert!(error.context().contains(why), "{error} does not say {why:?}");
        }
        let most = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        check(&[], "cut short");
        check(&[2, 0, 0], "version 2");
        check(&[1], "cut short");
        check(&[1, 0], "cut short");
        check(&[1, 0, 1], "its end says 1");
        check(&[1, 9, 0, 0], "unknown kind");
        check(&[1, 0, 0, 0], "follow its end");
        check(&[1, 2, 0, 5, 0, 0, 6], "at least 1");
        check(&[&[1, 1][..], &most, &[0, 0, 1]].concat(), "beyond");
        check(&[&[1, 1, 1][..], &most, &[0, 1]].concat(), "beyond");
        check(&[&[1, 2, 1, 5][..], &most, &[0, 6]].concat(), "beyond");
        check(&[&[1, 1, 1, 5, 1][..], &most, &[0, 0, 1]].concat(), "beyond");
        check(&[&[1, 3, 1, 1][..], &most, &[0, 2]].concat(), "beyond");
        check(&[&[1, 3, 1][..], &most, &[1, 1, 1]].concat(), "cut short");
        check(&[1, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2, 0, 0, 1], "beyond 64 bits");
        check(&[1, 4, 0, 255, 63, 1], "cut short");
        check(&[1, 4, 0, 128, 64, 1], "fit its window");
        check(&[1, 4, 1, 0, 1, 0, 1], "does not begin");
        check(&[1, 4, 1, 0, 3, 0, 2], "does not begin");
        check(&[1, 4, 0, 1, 1, 0, 0, 1], "does not begin");
        let near_end = [254, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        check(&[&[1, 4][..], &near_end, &[0, 0xc0, 0, 2]].concat(), "beyond");
        round_trip(&RunSet::from_run(run(0, u64::MAX, 1)));
        round_trip(&RunSet::from_run(run(1, 2, NUMBER_MAX - 1)));
    }

    fn set() -> impl Strategy<Value = RunSet> {
        let base = prop_oneof![Just(0u64), Just(1 << 40), Just(NUMBER_MAX - 2_000_000)];
        let runs = prop::collection::vec(
            (0u64..200_000, prop_oneof![1u64..5, 1u64..2000], prop_oneof![Just(1u64), 1u64..300]),
            0..6,
        );
        let noises = prop::collection::vec(
            (
                any::<u64>(),
                0u64..200_000,
                1u64..100_000,
                prop_oneof![Just(3u64), Just(100), Just(500), Just(900)],
            ),
            0..3,
        );
        (base, runs, noises).prop_map(|(base, runs, noises)| {
            let runs = RunSet::from_runs(
                runs.into_iter().map(|(first, count, step)| run(base + first, count, step)),
            );
            let noises = noises
                .into_iter()
                .map(|(seed, from, span, keep)| RunSet::from_ascending(noise(seed, base + from, span, keep)));
            RunSet::union_all(noises).union(&runs)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn sets_come_back(set in set()) {
            round_trip(&set);
        }

        #[test]
        fn damage_never_panics(
            set in set(),
            flips in prop::collection::vec((any::<u32>(), 0u8..8), 1..40),
            cut in any::<u32>()
        ) {
            let bytes = bytes_of(&set);
            prop_assert!(decode(&bytes[..cut as usize % bytes.len()]).is_err(), "a proper prefix was taken");
            for (at, bit) in flips {
                let mut damaged = bytes.clone();
                let at = at as usize % damaged.len().min(1 + at as usize % 64);
                damaged[at] ^= 1 << bit;
                if let Ok(set) = decode(&damaged) {
                    prop_assert_eq!(decode(&bytes_of(&set)).unwrap().len(), set.len());
                    prop_assert!(
                        set.heap_bytes() <= 64 * damaged.len() + 64,
                        "{} bytes held", set.heap_bytes());
                }
            }
        }

        #[test]
        fn noise_never_panics(
            kinds in prop::collection::vec((0u8..6, prop::collection::vec(any::<u8>(), 0..24)), 0..12)
        ) {
            let mut bytes = vec![VERSION];
            for (kind, rest) in kinds {
                bytes.push(kind);
                bytes.extend(rest.iter().map(|byte| if kind % 2 == 0 { *byte & 0x9f } else { *byte }));
            }
            if let Ok((set, used)) = decode_prefix(&bytes) {
                prop_assert!(used <= bytes.len() && set.heap_bytes() <= 64 * used + 64);
            }
        }
    }
}
