//! Where the frames of one trajectory file begin and end, in a few bytes a frame.
//!
//! In most formats the frames lie one after the other. The table stores how much longer each frame
//! is than the one before (the second difference of the offsets) as a varint. 64 frames make a
//! block. Frames of equal length make one block, however many they are. A look-up finds the block
//! and adds up at most 63 varints. Where frames lie apart (HDF5), [`Gaps`] knows the rest.
//!
//! Invariant: all frames have at least one byte, and each ends before 2⁶³.

mod gaps;

use crate::error::{Error, ErrorKind, Result};
use crate::varint::{put_varint, take_varint, unzigzag, zigzag};
use gaps::{BLOCK, Gaps};

/// Frames `frame ..` to the next block: the first begins at `offset` and has `length` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    frame: u64,
    offset: u64,
    length: u64,
    /// Where the varints of the other frames begin; `None`: all frames have the same length.
    deltas: Option<usize>,
}

/// The offsets of the frames of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameTable {
    /// Where the first frame begins, in bytes.
    begin: u64,
    /// Every length is a multiple of this; at least 1.
    unit: u64,
    blocks: Vec<Block>,
    deltas: Vec<u8>,
    /// Frames in `blocks`, and where the last of them ends.
    sealed: u64,
    sealed_end: u64,
    /// Lengths of the frames behind the blocks; fewer than [`BLOCK`].
    tail: Vec<u64>,
    /// Where the last frame would end if all lay one after the other.
    end: u64,
    /// What lies between the frames; `None`: nothing.
    gaps: Option<Gaps>,
}

impl FrameTable {
    /// A table without frames. The first frame begins at `begin`. All lengths are multiples of
    /// `unit` bytes (1 where nothing is known).
    pub fn new(begin: u64, unit: u64) -> FrameTable {
        FrameTable {
            begin,
            unit: unit.max(1),
            blocks: Vec::new(),
            deltas: Vec::new(),
            sealed: 0,
            sealed_end: begin,
            tail: Vec::new(),
            end: begin,
            gaps: None,
        }
    }

    /// A table of frames that may lie apart, and in any order. They come by
    /// [`FrameTable::push_at`].
    pub fn apart() -> FrameTable {
        FrameTable { gaps: Some(Gaps::default()), ..FrameTable::new(0, 1) }
    }

    /// Number of frames.
    pub fn count(&self) -> u64 {
        self.sealed + self.tail.len() as u64
    }

    /// Where the first frame begins, in bytes; 0 for frames that lie apart.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// Behind all frames, in bytes.
    pub fn end(&self) -> u64 {
        self.gaps.as_ref().map_or(self.end, Gaps::end)
    }

    /// Bytes of memory that the table uses.
    pub fn memory_bytes(&self) -> usize {
        let gaps = self.gaps.as_ref().map_or(0, Gaps::memory_bytes);
        self.blocks.capacity() * size_of::<Block>() + self.deltas.capacity() + self.tail.capacity() * 8 + gaps
    }

    /// Adds a frame of `length` bytes at `offset` to a table of frames that lie apart.
    /// `InvalidArgument` as for [`FrameTable::push`], and for a table of frames that follow each
    /// other.
    pub fn push_at(&mut self, offset: u64, length: u64) -> Result<()> {
        let unfit = || {
            let context = format!("a frame of {length} bytes at byte {offset} does not fit a frame table");
            Error::new(ErrorKind::InvalidArgument, context)
        };
        let packed = self.end;
        let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(unfit)?;
        let mut gaps = self.gaps.take().ok_or_else(unfit)?;
        let pushed = self.push(length);
        if pushed.is_ok() {
            gaps.push(offset as i64 - packed as i64, end);
        }
        self.gaps = Some(gaps);
        pushed
    }

    /// Adds a frame of `length` bytes behind the last one. `InvalidArgument` for a length of 0, one
    /// that is no multiple of the unit, an end beyond 2⁶³, or a table of frames that lie apart.
    pub fn push(&mut self, length: u64) -> Result<()> {
        let end = self.end.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
        let (Some(end), true, None) = (end, length > 0 && length.is_multiple_of(self.unit), &self.gaps)
        else {
            let context =
                format!("a frame of {length} bytes at byte {} does not fit a frame table", self.end);
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        };
        self.end = end;
        if self.tail.is_empty()
            && let Some(last) = self.blocks.last()
            && last.deltas.is_none()
            && last.length == length
        {
            self.sealed += 1;
            self.sealed_end = end;
            return Ok(());
        }
        self.tail.push(length);
        if self.tail.len() == BLOCK {
            self.seal();
        }
        Ok(())
    }

    /// Adds `frames` frames of `length` bytes each, in a time that does not depend on their number.
    /// `InvalidArgument` as for [`FrameTable::push`].
    pub fn push_many(&mut self, length: u64, frames: u64) -> Result<()> {
        let mut left = frames;
        while left > 0 {
            let last = self.blocks.last().filter(|_| self.tail.is_empty());
            if last.is_some_and(|last| last.deltas.is_none() && last.length == length) {
                break;
            }
            self.push(length)?;
            left -= 1;
        }
        let end = left.checked_mul(length).and_then(|bytes| self.end.checked_add(bytes));
        let Some(end) = end.filter(|end| i64::try_from(*end).is_ok()) else {
            let context = format!("{frames} frames of {length} bytes do not fit a frame table");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        };
        if left > 0 {
            self.sealed += left;
            (self.end, self.sealed_end) = (end, end);
        }
        Ok(())
    }

    /// Turns the tail into a block.
    fn seal(&mut self) {
        let Some(first) = self.tail.first().copied() else { return };
        let even = self.tail.iter().all(|length| *length == first);
        let deltas = (!even).then_some(self.deltas.len());
        if !even {
            for pair in self.tail.windows(2) {
                let change = (pair[1] / self.unit) as i64 - (pair[0] / self.unit) as i64;
                put_varint(&mut self.deltas, zigzag(change));
            }
        }
        self.blocks.push(Block { frame: self.sealed, offset: self.sealed_end, length: first, deltas });
        self.sealed += self.tail.len() as u64;
        self.sealed_end = self.end;
        self.tail.clear();
    }

    /// Where frame `index` of the file lies: (offset, length) in bytes.
    pub fn get(&self, index: u64) -> Option<(u64, u64)> {
        let (offset, length) = self.packed(index)?;
        match &self.gaps {
            None => Some((offset, length)),
            Some(gaps) => Some((offset.checked_add_signed(gaps.get(index)?)?, length)),
        }
    }

    /// Where the frame would lie if there were nothing between frames.
    fn packed(&self, index: u64) -> Option<(u64, u64)> {
        if let Some(behind) = index.checked_sub(self.sealed) {
            let behind = usize::try_from(behind).ok()?;
            let length = *self.tail.get(behind)?;
            return Some((self.sealed_end + self.tail[..behind].iter().sum::<u64>(), length));
        }
        let block = self.blocks[self.blocks.partition_point(|block| block.frame <= index) - 1];
        let behind = index - block.frame;
        let Some(mut at) = block.deltas else {
            return Some((block.offset + behind * block.length, block.length));
        };
        let (mut offset, mut length) = (block.offset, block.length);
        for _ in 0..behind {
            offset += length;
            length = self.next_length(&mut at, length)?;
        }
        Some((offset, length))
    }

    fn next_length(&self, at: &mut usize, length: u64) -> Option<u64> {
        let change = unzigzag(take_varint(&self.deltas, at)?);
        (length / self.unit).checked_add_signed(change)?.checked_mul(self.unit)
    }

    /// The table as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut sealed = self.clone();
        sealed.seal();
        let mut bytes = Vec::with_capacity(sealed.deltas.len() + sealed.blocks.len() * 4 + 32);
        if let Some(gaps) = &sealed.gaps {
            // A table of frames that follow each other has a unit of at least 1.
            put_varint(&mut bytes, 0);
            put_varint(&mut bytes, 0);
            gaps.encode(&mut bytes);
        }
        put_varint(&mut bytes, sealed.begin);
        put_varint(&mut bytes, sealed.unit);
        put_varint(&mut bytes, sealed.sealed);
        for (at, block) in sealed.blocks.iter().enumerate() {
            let next = sealed.blocks.get(at + 1);
            let count = next.map_or(sealed.sealed, |next| next.frame) - block.frame;
            put_varint(&mut bytes, count << 1 | u64::from(block.deltas.is_some()));
            put_varint(&mut bytes, block.length / sealed.unit);
            if let Some(from) = block.deltas {
                let rest = sealed.blocks[at + 1..].iter().find_map(|next| next.deltas);
                bytes.extend_from_slice(&sealed.deltas[from..rest.unwrap_or(sealed.deltas.len())]);
            }
        }
        bytes
    }

    /// Reads what [`FrameTable::encode`] wrote. `Corrupt` for anything else. Allocates no more than
    /// a few times the input.
    pub fn decode(bytes: &[u8]) -> Result<FrameTable> {
        FrameTable::parse(bytes)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "frame table: the bytes describe no table"))
    }

    fn parse(bytes: &[u8]) -> Option<FrameTable> {
        let mut at = 0;
        if let [0, 0, rest @ ..] = bytes {
            let (places, taken) = Gaps::decode(rest)?;
            let packed = FrameTable::parse(rest.get(taken..)?)?;
            return FrameTable::with_gaps(packed, &places);
        }
        let mut number = || take_varint(bytes, &mut at);
        let (begin, unit, count) = (number()?, number()?, number()?);
        if unit == 0 || i64::try_from(begin).is_err() {
            return None;
        }
        let mut table = FrameTable::new(begin, unit);
        while table.count() < count {
            let head = take_varint(bytes, &mut at)?;
            let frames = head >> 1;
            let length = take_varint(bytes, &mut at)?.checked_mul(unit)?;
            if frames == 0 || frames > count - table.count() || !table.tail.is_empty() {
                return None;
            }
            match head & 1 {
                0 => table.push_even(length, frames)?,
                _ if frames > BLOCK as u64 => return None,
                _ => {
                    table.push_one(length)?;
                    let mut last = length;
                    for _ in 1..frames {
                        let change = unzigzag(take_varint(bytes, &mut at)?);
                        last = (last / unit).checked_add_signed(change)?.checked_mul(unit)?;
                        table.push_one(last)?;
                    }
                }
            }
        }
        (at == bytes.len()).then_some(table)
    }

    /// A table of frames that lie apart: `packed` has their lengths.
    fn with_gaps(mut packed: FrameTable, shifts: &[i64]) -> Option<FrameTable> {
        if packed.begin != 0 || packed.gaps.is_some() || packed.count() != shifts.len() as u64 {
            return None;
        }
        let mut gaps = Gaps::default();
        for (index, shift) in shifts.iter().enumerate() {
            let (offset, length) = packed.packed(index as u64)?;
            let end = offset.checked_add_signed(*shift)?.checked_add(length)?;
            gaps.push(*shift, end);
            if i64::try_from(end).is_err() {
                return None;
            }
        }
        packed.gaps = Some(gaps);
        Some(packed)
    }

    /// Frames of equal length; fewer than a block of them may still become part of one.
    fn push_even(&mut self, length: u64, frames: u64) -> Option<()> {
        if frames < BLOCK as u64 {
            return (0..frames).try_for_each(|_| self.push_one(length));
        }
        let end = frames.checked_mul(length).and_then(|bytes| self.end.checked_add(bytes))?;
        if length == 0 || i64::try_from(end).is_err() {
            return None;
        }
        self.blocks.push(Block { frame: self.sealed, offset: self.sealed_end, length, deltas: None });
        self.sealed += frames;
        (self.end, self.sealed_end) = (end, end);
        Some(())
    }

    fn push_one(&mut self, length: u64) -> Option<()> {
        self.push(length).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(begin: u64, unit: u64, lengths: &[u64]) -> FrameTable {
        let mut table = FrameTable::new(begin, unit);
        lengths.iter().for_each(|length| table.push(*length).unwrap());
        table
    }

    fn check(begin: u64, unit: u64, lengths: &[u64]) {
        let table = table(begin, unit, lengths);
        let mut offset = begin;
        for (index, length) in lengths.iter().enumerate() {
            assert_eq!(table.get(index as u64), Some((offset, *length)), "frame {index}");
            offset += length;
        }
        assert_eq!((table.count(), table.end()), (lengths.len() as u64, offset));
        assert_eq!(table.get(lengths.len() as u64), None);
        let again = FrameTable::decode(&table.encode()).unwrap();
        assert_eq!(again.encode(), table.encode());
        (0..=lengths.len() as u64).for_each(|index| assert_eq!(again.get(index), table.get(index)));
    }

    #[test]
    fn lengths_come_back() {
        check(0, 1, &[]);
        check(276, 1, &[7]);
        check(0, 4, &[400; 1000]);
        check(0, 4, &(0..1000).map(|n| 4 * (n % 17 + 1)).collect::<Vec<_>>());
        let mixed: Vec<u64> = (0..500).map(|n| if (100..300).contains(&n) { 9 } else { n + 1 }).collect();
        check(12, 1, &mixed);
        check(0, 1, &[(1 << 62), 1, (1 << 40), 5]);
    }

    #[test]
    fn many_frames_are_like_one_after_the_other() {
        for (before, length, frames) in
            [(0, 9, 5), (0, 9, 64), (3, 9, 300), (70, 7, 1), (70, 8, 500), (130, 7, 70)]
        {
            let (mut one, mut many) = (table(5, 1, &vec![7; before]), table(5, 1, &vec![7; before]));
            (0..frames).for_each(|_| one.push(length).unwrap());
            many.push_many(length, frames).unwrap();
            assert_eq!(many, one, "{before} {length} {frames}");
        }
        let mut vast = table(0, 1, &[]);
        vast.push_many(1, 1 << 60).unwrap();
        assert_eq!((vast.count(), vast.get(1 << 59)), (1 << 60, Some((1 << 59, 1))));
        assert!(vast.push_many(8, 1 << 60).is_err());
    }

    #[test]
    fn bad_lengths_are_refused() {
        let mut table = table(0, 4, &[4]);
        for bad in [0, 6, u64::MAX - 3, i64::MAX as u64 & !3] {
            assert!(table.push(bad).is_err(), "{bad}");
        }
        assert_eq!((table.count(), table.end()), (1, 4));
    }

    #[test]
    fn a_million_frames_are_small() {
        // Sizes as in an XTC of 50,000 atoms: 180 KB, give or take 400 bytes.
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 200
        };
        let lengths: Vec<u64> = (0..1_000_000).map(|_| 180_000 + 4 * noise()).collect();
        let bytes = table(0, 4, &lengths).encode();
        assert!(bytes.len() <= 3_000_000, "{} bytes", bytes.len());
        let again = FrameTable::decode(&bytes).unwrap();
        assert!(again.memory_bytes() < 20_000_000, "{} bytes of memory", again.memory_bytes());
        assert_eq!(again.get(999_999).unwrap().1, lengths[999_999]);
        // Frames of equal size cost nothing.
        assert!(table(0, 1, &vec![1200; 1_000_000]).encode().len() < 32);
    }

    fn apart(places: &[(u64, u64)]) -> FrameTable {
        let mut table = FrameTable::apart();
        places.iter().for_each(|(offset, length)| table.push_at(*offset, *length).unwrap());
        table
    }

    fn check_apart(places: &[(u64, u64)]) {
        let table = apart(places);
        let again = FrameTable::decode(&table.encode()).unwrap();
        assert_eq!(again.encode(), table.encode());
        for table in [&table, &again] {
            assert_eq!(table.count(), places.len() as u64);
            assert_eq!(table.end(), places.iter().map(|(offset, length)| offset + length).max().unwrap_or(0));
            for (index, place) in places.iter().enumerate() {
                assert_eq!(table.get(index as u64), Some(*place), "frame {index}");
            }
            assert_eq!(table.get(places.len() as u64), None);
        }
    }

    #[test]
    fn frames_that_lie_apart_come_back() {
        check_apart(&[]);
        check_apart(&[(2048, 300)]);
        check_apart(&(0..1000).map(|n| (5000 + n * 1300 + n / 64 * 999, 1200)).collect::<Vec<_>>());
        check_apart(&(0..200).map(|n| ((1 << 62) + (199 - n) * 9, n % 7 + 1)).collect::<Vec<_>>());
        assert!(apart(&[(0, 4)]).push(4).is_err() && table(0, 1, &[4]).push_at(9, 4).is_err());
        for (offset, length) in [(0, 0), (i64::MAX as u64, 1), (u64::MAX, 2)] {
            let mut table = apart(&[(7, 4)]);
            assert!(table.push_at(offset, length).is_err());
            assert_eq!((table.count(), table.end(), table.get(0)), (1, 11, Some((7, 4))));
        }
        let many: Vec<(u64, u64)> = (0..1_000_000).map(|n| (2048 + n * 613 + n / 64 * 3136, 600)).collect();
        let bytes = apart(&many).encode();
        assert!(bytes.len() <= 1_200_000, "{} bytes", bytes.len());
        assert!(FrameTable::decode(&bytes).unwrap().memory_bytes() < 20_000_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn any_places_come_back(places in prop::collection::vec((0u64..1 << 62, 1u64..1 << 30), 0..200)) {
            check_apart(&places);
        }

        #[test]
        fn any_lengths_come_back(begin in 0u64..1 << 40, unit in 1u64..5,
            runs in prop::collection::vec((1u64..1 << 30, 1usize..150), 0..12)) {
            let lengths: Vec<u64> =
                runs.iter().flat_map(|(length, count)| vec![length * unit; *count]).collect();
            check(begin, unit, &lengths);
        }

        #[test]
        fn growing_is_the_same_as_building(one in prop::collection::vec(1u64..9, 0..300),
            more in prop::collection::vec(1u64..9, 0..300)) {
            let mut grown = FrameTable::decode(&table(3, 1, &one).encode()).unwrap();
            more.iter().for_each(|length| grown.push(*length).unwrap());
            let whole: Vec<u64> = one.iter().chain(&more).copied().collect();
            let whole = table(3, 1, &whole);
            (0..=whole.count()).for_each(|index| assert_eq!(grown.get(index), whole.get(index)));
        }

        #[test]
        fn hostile_bytes_make_no_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            apart in any::<bool>()) {
            if apart {
                bytes.splice(0..0, [0, 0]);
            }
            if let Ok(table) = FrameTable::decode(&bytes) {
                let count = table.count();
                for index in [0, 1, count / 2, count.wrapping_sub(1), count] {
                    if let Some((offset, length)) = table.get(index) {
                        prop_assert!(length > 0 && offset + length <= table.end());
                    }
                }
            }
        }
    }
}
