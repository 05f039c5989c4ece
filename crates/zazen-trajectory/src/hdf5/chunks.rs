//! The indexes of chunks: which chunk lies where. Only arrays that are divided along their first
//! dimension are read, so that a chunk has one number.

use super::{ChunkIndex, Fields, File, NOWHERE, Parsed, Stop, unsupported};

/// A chunk that was written: its number, where it is, and how many bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) number: u64,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Which filters were left out; 0: none.
    pub(crate) left_out: u32,
}

/// What is known of an array's chunks.
pub(crate) struct Chunks {
    /// Frames in each.
    pub(crate) rows: u64,
    /// How many the array has.
    pub(crate) count: u64,
    /// Bytes of one without filters.
    pub(crate) bytes: u64,
    /// Dimensions of the array.
    pub(crate) rank: usize,
    pub(crate) is_filtered: bool,
}

/// Calls `found` with each chunk that was written, in ascending order of their numbers.
pub(crate) fn each_chunk(
    file: &mut File<'_>,
    index: ChunkIndex,
    chunks: &Chunks,
    found: &mut dyn FnMut(Chunk) -> Parsed<()>,
) -> Parsed<()> {
    match index {
        ChunkIndex::Tree { at: NOWHERE }
        | ChunkIndex::Single { at: NOWHERE, .. }
        | ChunkIndex::Implicit { at: NOWHERE }
        | ChunkIndex::FixedArray { at: NOWHERE }
        | ChunkIndex::ExtensibleArray { at: NOWHERE } => Ok(()),
        ChunkIndex::SeveralDimensions => unsupported("its chunks have an index that is not read"),
        ChunkIndex::Tree { at } => tree(file, at, chunks, found),
        ChunkIndex::Single { at, bytes } => {
            let (bytes, left_out) = bytes.unwrap_or((chunks.bytes, 0));
            found(Chunk { number: 0, at, bytes, left_out })
        }
        ChunkIndex::Implicit { at } => {
            for number in 0..chunks.count {
                let behind = number.checked_mul(chunks.bytes).and_then(|bytes| at.checked_add(bytes));
                let Some(at) = behind else { return Err(Stop::Bad(at, "its chunks end beyond 2^64".into())) };
                found(Chunk { number, at, bytes: chunks.bytes, left_out: 0 })?;
            }
            Ok(())
        }
        ChunkIndex::FixedArray { at } => fixed(file, at, chunks, found),
        ChunkIndex::ExtensibleArray { at } => extensible(file, at, chunks, found),
    }
}

/// A B-tree of version 1. Its nodes are visited from left to right.
fn tree(
    file: &mut File<'_>,
    at: u64,
    chunks: &Chunks,
    found: &mut dyn FnMut(Chunk) -> Parsed<()>,
) -> Parsed<()> {
    // The size, the filters that were left out, the place in each dimension, and in a value.
    let key_bytes = 8 + 8 * (chunks.rank as u64 + 1);
    let mut nodes = vec![(at, None)];
    while let Some((at, above)) = nodes.pop() {
        let (level, children) = file.tree_node(at, 1, key_bytes, above)?;
        if level > 0 {
            nodes.extend(children.into_iter().rev().map(|(_, child)| (child, Some(level))));
            continue;
        }
        for (key, child) in children {
            let mut fields = Fields::new(&key, at);
            let (bytes, left_out, row) = (u64::from(fields.u32()?), fields.u32()?, fields.u64()?);
            let rest = (1..=chunks.rank).map(|_| fields.u64()).collect::<Parsed<Vec<u64>>>()?;
            if !row.is_multiple_of(chunks.rows) || rest.iter().any(|place| *place != 0) {
                return Err(Stop::Bad(at, "a chunk lies where none can be".into()));
            }
            found(Chunk { number: row / chunks.rows, at: child, bytes, left_out })?;
        }
    }
    Ok(())
}

/// How an array of chunks says where one is.
#[derive(Clone, Copy)]
struct Element {
    bytes: u64,
    is_filtered: bool,
}

impl Element {
    fn new(client: u8, bytes: u8, chunks: &Chunks, at: u64) -> Parsed<Element> {
        let (is_filtered, bytes) = (client == 1, u64::from(bytes));
        let fits = if is_filtered { (13..=20).contains(&bytes) } else { bytes == 8 };
        match client <= 1 && fits && is_filtered == chunks.is_filtered {
            true => Ok(Element { bytes, is_filtered }),
            false => Err(Stop::Bad(at, "its elements are no chunks of this array".into())),
        }
    }

    /// Tells the chunks of these elements, the first of which is number `first`.
    fn tell(
        self,
        body: &[u8],
        at: u64,
        first: u64,
        chunks: &Chunks,
        found: &mut dyn FnMut(Chunk) -> Parsed<()>,
    ) -> Parsed<()> {
        let mut fields = Fields::new(body, at);
        for number in (first..chunks.count).take((body.len() as u64 / self.bytes) as usize) {
            let place = fields.u64()?;
            let (mut bytes, mut left_out) = (chunks.bytes, 0);
            if self.is_filtered {
                (bytes, left_out) = (fields.number(self.bytes as usize - 12)?, fields.u32()?);
            }
            if place != NOWHERE {
                found(Chunk { number, at: place, bytes, left_out })?;
            }
        }
        Ok(())
    }

    /// The elements of a data block, `count` of them, behind `prefix` bytes. More than `page`
    /// elements come in pages, each with a checksum.
    #[expect(clippy::too_many_arguments, reason = "the two kinds of arrays share it")]
    fn tell_block(
        self,
        file: &mut File<'_>,
        letters: &[u8; 4],
        at: u64,
        prefix: u64,
        (first, count, page): (u64, u64, u64),
        written: impl Fn(&[u8], u64) -> bool,
        chunks: &Chunks,
        found: &mut dyn FnMut(Chunk) -> Parsed<()>,
    ) -> Parsed<()> {
        let too_large = || Stop::Bad(at, "it has more elements than a file can have".into());
        if count <= page {
            let bytes = count.checked_mul(self.bytes).and_then(|all| all.checked_add(prefix + 4));
            let bytes = bytes.ok_or_else(too_large)?;
            let body = file.sealed(at, letters, bytes)?;
            return self.tell(&body[prefix as usize..], at, first, chunks, found);
        }
        let head = file.sealed(at, letters, prefix + 4)?;
        let page_bytes = page * self.bytes + 4;
        for nth in 0..count.div_ceil(page) {
            let begin = first + nth * page;
            if begin >= chunks.count {
                break;
            }
            if !written(&head, nth) {
                continue;
            }
            let there = at.checked_add(prefix + 4).zip(nth.checked_mul(page_bytes));
            let there = there.and_then(|(from, behind)| from.checked_add(behind)).ok_or_else(too_large)?;
            let elements = page.min(count - nth * page);
            let body = file.bytes(there, elements * self.bytes + 4)?;
            let body = file.unsealed(body, there)?;
            self.tell(&body, there, begin, chunks, found)?;
        }
        Ok(())
    }
}

/// Whether bit `nth` is set, the highest bit of a byte first.
fn bit(bytes: &[u8], nth: u64) -> bool {
    let byte = usize::try_from(nth / 8).ok().and_then(|at| bytes.get(at)).copied().unwrap_or(0);
    byte & (0x80 >> (nth % 8)) != 0
}

/// A fixed array: the number of chunks is known beforehand.
fn fixed(
    file: &mut File<'_>,
    at: u64,
    chunks: &Chunks,
    found: &mut dyn FnMut(Chunk) -> Parsed<()>,
) -> Parsed<()> {
    let head = file.sealed(at, b"FAHD", 28)?;
    let mut fields = Fields::new(&head[4..], at);
    let (_version, client, bytes) = (fields.u8()?, fields.u8()?, fields.u8()?);
    let (page_bits, count, block) = (fields.u8()?, fields.u64()?, fields.u64()?);
    let element = Element::new(client, bytes, chunks, at)?;
    if block == NOWHERE {
        return Ok(());
    }
    if page_bits > 30 || count < chunks.count {
        return Err(Stop::Bad(at, "it has fewer elements than the array has chunks".into()));
    }
    let page = 1u64 << page_bits;
    let bitmap = if count > page { count.div_ceil(page).div_ceil(8) } else { 0 };
    let written = |head: &[u8], nth| bit(head.get(14..).unwrap_or_default(), nth);
    element.tell_block(file, b"FADB", block, 14 + bitmap, (0, count, page), written, chunks, found)
}

/// An extensible array: blocks of elements that double in length after every second one.
fn extensible(
    file: &mut File<'_>,
    at: u64,
    chunks: &Chunks,
    found: &mut dyn FnMut(Chunk) -> Parsed<()>,
) -> Parsed<()> {
    let head = file.sealed(at, b"EAHD", 72)?;
    let mut fields = Fields::new(&head[4..], at);
    let (_version, client, bytes, most_bits) = (fields.u8()?, fields.u8()?, fields.u8()?, fields.u8()?);
    let (in_index, least, pointers) = (fields.u8()?, fields.u8()?, fields.u8()?);
    let page_bits = fields.u8()?;
    fields.take(48)?;
    let index = fields.u64()?;
    let element = Element::new(client, bytes, chunks, at)?;
    let sane = least.is_power_of_two() && pointers.is_power_of_two() && pointers >= 2;
    if !sane || !(8..=64).contains(&most_bits) || page_bits > 30 {
        return Err(Stop::Bad(at, "its parameters are none that HDF5 writes".into()));
    }
    if index == NOWHERE {
        return Ok(());
    }
    let page = 1u64 << page_bits;
    let offset_bytes = u64::from(most_bits).div_ceil(8);
    // Super blocks that the index block replaces, and all of them.
    let direct = 2 * u64::from(pointers.ilog2());
    let supers = u64::from(most_bits).saturating_sub(u64::from(least.ilog2())) + 1;
    let blocks_direct = 2 * (u64::from(pointers) - 1);
    let length =
        14 + u64::from(in_index) * element.bytes + 8 * (blocks_direct + supers.saturating_sub(direct)) + 4;
    let body = file.sealed(index, b"EAIB", length)?;
    let elements = 14 + usize::from(in_index) * element.bytes as usize;
    element.tell(&body[14..elements], index, 0, chunks, found)?;
    let mut addresses = Fields::new(&body[elements..], index);
    let mut first = u64::from(in_index);
    for level in 0..supers.min(62) {
        if first >= chunks.count {
            break;
        }
        // A super block has so many data blocks of so many elements.
        let (blocks, count) = (1u64 << (level / 2), (1u64 << level.div_ceil(2)) * u64::from(least));
        let pages = if count > page { count.div_ceil(page) } else { 0 };
        let bitmap = pages.div_ceil(8);
        let mut super_block = Vec::new();
        if level >= direct {
            let place = addresses.u64()?;
            if place == NOWHERE {
                first = blocks.saturating_mul(count).saturating_add(first);
                continue;
            }
            let head = 14 + offset_bytes;
            let Some(bytes) = blocks.checked_mul(bitmap + 8) else {
                return Err(Stop::Bad(place, "it has more blocks than a file can have".into()));
            };
            super_block = file.sealed(place, b"EASB", head + bytes + 4)?.split_off(head as usize);
        } else if pages > 0 {
            return unsupported("the index of its chunks has pages where HDF5 writes none");
        }
        let places = (blocks * bitmap) as usize;
        let mut of_super = Fields::new(super_block.get(places..).unwrap_or_default(), at);
        for block in 0..blocks {
            let place = if level >= direct { of_super.u64()? } else { addresses.u64()? };
            if place != NOWHERE && first < chunks.count {
                // One bitmap for the pages of all its blocks.
                let map = super_block.get(..places).unwrap_or_default();
                let written = |_: &[u8], nth| bit(map, block * pages + nth);
                let shape = (first, count, page);
                let prefix = 14 + offset_bytes;
                element.tell_block(file, b"EADB", place, prefix, shape, written, chunks, found)?;
            }
            first = first.saturating_add(count);
        }
    }
    Ok(())
}
