//! The part of HDF5's file format that tells where the rows of one array lie: superblock, object
//! headers, groups, and what describes an array. `hdf5/chunks.rs` reads the indexes of chunks.
//!
//! Invariants: nothing that the file says is believed. A file may be a hole of 2^60 bytes, so its
//! size bounds nothing that is allocated: each structure has a limit of its own. Every node of a
//! tree brings its reader on, so that addresses in a circle end. Sums of addresses are checked.
//! Whoever reads a file of another version of a structure gets an error that names it.

mod chunks;
mod lookup3;
#[cfg(test)]
mod tests;

use crate::bytes::little;
pub(crate) use chunks::{Chunk, Chunks, each_chunk};
use lookup3::checksum;
use std::collections::VecDeque;
use zazen_core::trajectory::Trouble;

/// Reads so many bytes of the file from an offset on; fewer where the file ends.
pub type ReadAt<'a> = dyn FnMut(u64, usize) -> zazen_core::Result<Vec<u8>> + 'a;

/// The first bytes of a superblock.
const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
/// The shortest user block. Longer ones have twice, four times, … as many bytes.
const USER_BLOCK_BYTES: u64 = 512;
/// Longer user blocks are not looked for.
const USER_BLOCK_BYTES_MAX: u64 = 1 << 40;
/// The address that leads nowhere.
pub(crate) const NOWHERE: u64 = u64::MAX;
const HEADER_BYTES_MAX: u64 = 4 << 20;
const GROUP_BYTES_MAX: u64 = 4 << 20;
/// Groups on the way are read more than once.
const SLACK_BYTES: u64 = 1 << 20;
/// A part of an index of chunks is not longer. HDF5 divides them into pages of 1,024 chunks.
const PART_BYTES_MAX: u64 = 8 << 20;
/// Trees of 2^40 chunks have fewer levels.
const LEVELS_MAX: u8 = 16;
const RANK_MAX: usize = 32;
const FILTERS_MAX: usize = 32;

/// Where a superblock may begin: where the file does, or behind a user block, which is for others
/// than HDF5.
pub(crate) fn superblocks() -> impl Iterator<Item = u64> {
    let behind = |block: &u64| Some(block * 2).filter(|next| *next <= USER_BLOCK_BYTES_MAX);
    std::iter::once(0).chain(std::iter::successors(Some(USER_BLOCK_BYTES), behind))
}

/// Whether a file that begins with `head` is one of HDF5, as far as `head` shows.
pub(crate) fn is_one(head: &[u8]) -> bool {
    let at = |at: u64| usize::try_from(at).ok().and_then(|at| head.get(at..));
    superblocks().map_while(at).any(|from| from.starts_with(SIGNATURE))
}

/// Why something was not read.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Reading failed.
    Io(zazen_core::Error),
    /// It needs bytes up to here, and the file ends before.
    Cut(u64),
    /// The bytes at this offset are not what belongs there.
    Bad(u64, String),
    /// HDF5 can say this, but no frame can be found by it.
    Unsupported(String),
    /// The frames before are good, and this is why there are no more.
    Ends(Trouble),
}

pub(crate) type Parsed<T> = Result<T, Stop>;

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Parsed<T> {
    Err(Stop::Unsupported(what.into()))
}

/// A key of a B-tree, and the address beneath it.
type Child = (Vec<u8>, u64);

/// A file whose metadata are read. Addresses count from the superblock on, as in the file itself.
pub(crate) struct File<'a> {
    read: &'a mut ReadAt<'a>,
    /// Bytes before the superblock.
    base: u64,
    /// Bytes from the superblock on.
    size: u64,
    /// Bytes of metadata that may still be read.
    left: u64,
    /// Where the file says that it ends.
    said_end: u64,
}

/// A message of an object header: its type, its flags, and its bytes.
struct Message {
    kind: u16,
    flags: u8,
    body: Vec<u8>,
    at: u64,
}

/// Bytes that are read one field after the other.
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    next: usize,
    /// Where the bytes are in the file, for errors.
    at: u64,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: u64) -> Fields<'a> {
        Fields { bytes, next: 0, at }
    }

    pub(crate) fn bad<T>(&self, why: &str) -> Parsed<T> {
        Err(Stop::Bad(self.at, why.to_owned()))
    }

    pub(crate) fn take(&mut self, count: usize) -> Parsed<&'a [u8]> {
        let end = self.next.checked_add(count);
        let Some(taken) = end.and_then(|end| self.bytes.get(self.next..end)) else {
            return self.bad("its fields are longer than itself");
        };
        self.next += count;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Parsed<u8> {
        Ok(little(self.take(1)?) as u8)
    }

    pub(crate) fn u16(&mut self) -> Parsed<u16> {
        Ok(little(self.take(2)?) as u16)
    }

    pub(crate) fn u32(&mut self) -> Parsed<u32> {
        Ok(little(self.take(4)?) as u32)
    }

    pub(crate) fn u64(&mut self) -> Parsed<u64> {
        Ok(little(self.take(8)?))
    }

    /// A number of 1 to 8 bytes.
    pub(crate) fn number(&mut self, bytes: usize) -> Parsed<u64> {
        match bytes {
            1..=8 => Ok(little(self.take(bytes)?)),
            _ => self.bad("a number has more than 8 bytes"),
        }
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.next
    }
}

impl<'a> File<'a> {
    /// The HDF5 file in a file of `size` bytes. One without a superblock begins at its first byte.
    pub(crate) fn new(read: &'a mut ReadAt<'a>, size: u64) -> Parsed<File<'a>> {
        let mut base = 0;
        for at in superblocks().take_while(|at| *at < size) {
            if (read)(at, SIGNATURE.len()).map_err(Stop::Io)? == SIGNATURE {
                base = at;
                break;
            }
        }
        let size = size - base;
        Ok(File { read, base, size, left: size.saturating_add(SLACK_BYTES), said_end: 0 })
    }

    /// How many bytes stand before the superblock.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes from the superblock on.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Where the file says that it ends; 0 until an object was looked for. Whoever writes a file
    /// writes this last, when it flushes or closes it: what lies behind may not be written yet.
    pub(crate) fn said_end(&self) -> u64 {
        self.said_end
    }

    /// `count` bytes of metadata at `at`.
    pub(crate) fn bytes(&mut self, at: u64, count: u64) -> Parsed<Vec<u8>> {
        let end = at.checked_add(count).filter(|_| at != NOWHERE);
        let Some(end) = end else { return Err(Stop::Bad(at, "leads nowhere".into())) };
        check_length(at, count, PART_BYTES_MAX)?;
        if end > self.size {
            return Err(Stop::Cut(end));
        }
        let Some(left) = self.left.checked_sub(count) else {
            return Err(Stop::Bad(at, "its structures lead in a circle".into()));
        };
        self.left = left;
        let bytes = (self.read)(self.base + at, count as usize).map_err(Stop::Io)?;
        match bytes.len() as u64 == count {
            true => Ok(bytes),
            false => Err(Stop::Cut(end)),
        }
    }

    /// The same, where the last four bytes are the checksum of the others, and the first four these
    /// letters. Without the checksum.
    pub(crate) fn sealed(&mut self, at: u64, letters: &[u8; 4], count: u64) -> Parsed<Vec<u8>> {
        let bytes = self.bytes(at, count)?;
        check_letters(&bytes, letters, at)?;
        self.unsealed(bytes, at)
    }

    /// Checks the checksum at the end of `bytes`, and takes it away.
    pub(crate) fn unsealed(&self, mut bytes: Vec<u8>, at: u64) -> Parsed<Vec<u8>> {
        let body = bytes.len().saturating_sub(4);
        match bytes.len() >= 4 && little(&bytes[body..]) == u64::from(checksum(&bytes[..body])) {
            true => {
                bytes.truncate(body);
                Ok(bytes)
            }
            false => Err(Stop::Bad(at, "its checksum is wrong".into())),
        }
    }

    /// Where the object header of the root group is.
    fn root(&mut self) -> Parsed<u64> {
        let wrong = |why: &str| Err(Stop::Bad(0, why.to_owned()));
        let head = self.bytes(0, 16.min(self.size))?;
        if !head.starts_with(SIGNATURE) || head.len() < 16 {
            return wrong("it does not begin with an HDF5 superblock");
        }
        let (sizes, base, root) = match head[8] {
            version @ (0 | 1) => {
                let from = if version == 0 { 24 } else { 28 };
                let body = self.bytes(from, 48)?;
                let mut fields = Fields::new(&body, from);
                let base = fields.u64()?;
                fields.take(8)?;
                self.said_end = fields.u64()?;
                fields.take(16)?;
                ((head[13], head[14]), base, fields.u64()?)
            }
            version @ (2 | 3) => {
                let block = self.bytes(0, 48)?;
                let body = self.unsealed(block, 0)?;
                // A program that is writing says so, and its structures are not all in the file.
                if version == 3 && body[11] & 1 != 0 {
                    return Err(Stop::Cut(NOWHERE));
                }
                let mut fields = Fields::new(&body[12..], 12);
                let base = fields.u64()?;
                fields.take(8)?;
                self.said_end = fields.u64()?;
                ((body[9], body[10]), base, fields.u64()?)
            }
            other => return unsupported(format!("its superblock has version {other}")),
        };
        if sizes != (8, 8) {
            return unsupported("its addresses do not have 8 bytes");
        }
        // With a user block, only the end counts from where the file begins; or began, if the block
        // was taken away later.
        self.said_end = self.said_end.saturating_sub(base);
        Ok(root)
    }

    /// The object header at `at`.
    fn messages(&mut self, at: u64) -> Parsed<Vec<Message>> {
        let head = self.bytes(at, 16.min(self.size.saturating_sub(at)))?;
        if head.starts_with(b"OHDR") {
            return self.messages_2(at, &head);
        }
        if head.len() < 16 || head[0] != 1 {
            return Err(Stop::Bad(at, "there is no object header".into()));
        }
        let mut fields = Fields::new(&head, at);
        fields.take(2)?;
        let count = fields.u16()?;
        fields.take(4)?;
        let mut blocks = VecDeque::from([(at + 16, u64::from(fields.u32()?))]);
        let (mut found, mut all) = (Vec::new(), 0u64);
        while let Some((block, bytes)) = blocks.pop_front() {
            all = all.saturating_add(bytes);
            check_length(block, all, HEADER_BYTES_MAX)?;
            let body = self.bytes(block, bytes)?;
            let mut fields = Fields::new(&body, block);
            while fields.left() >= 8 && found.len() < usize::from(count) {
                let (kind, length) = (fields.u16()?, fields.u16()?);
                let flags = fields.u8()?;
                fields.take(3)?;
                self.add(&mut found, &mut blocks, kind, flags, fields.take(usize::from(length))?, block)?;
            }
        }
        Ok(found)
    }

    fn messages_2(&mut self, at: u64, head: &[u8]) -> Parsed<Vec<Message>> {
        let mut fields = Fields::new(head, at);
        fields.take(4)?;
        let (version, flags) = (fields.u8()?, fields.u8()?);
        if version != 2 {
            return unsupported(format!("an object header has version {version}"));
        }
        let width = 1usize << (flags & 3);
        let before = 6 + if flags & 0x20 != 0 { 16 } else { 0 } + if flags & 0x10 != 0 { 4 } else { 0 };
        let head = self.bytes(at, (before + width) as u64)?;
        let length = Fields::new(&head[before..], at).number(width)?;
        check_length(at, length, HEADER_BYTES_MAX)?;
        let prefix = before + width;
        let body = self.sealed(at, b"OHDR", prefix as u64 + length + 4)?;
        let mut blocks = VecDeque::new();
        let (mut found, mut all) = (Vec::new(), 0u64);
        let mut part = body[prefix..].to_vec();
        loop {
            let mut fields = Fields::new(&part, at);
            let head = if flags & 4 != 0 { 6 } else { 4 };
            while fields.left() >= head {
                let (kind, length) = (u16::from(fields.u8()?), fields.u16()?);
                let own = fields.u8()?;
                fields.take(head - 4)?;
                self.add(&mut found, &mut blocks, kind, own, fields.take(usize::from(length))?, at)?;
            }
            let Some((block, bytes)) = blocks.pop_front() else { return Ok(found) };
            all = length.max(all).saturating_add(bytes);
            check_length(block, all, HEADER_BYTES_MAX)?;
            part = self.sealed(block, b"OCHK", bytes)?.split_off(4);
        }
    }

    /// Adds a message; one that says that the header goes on elsewhere adds a block.
    fn add(
        &self,
        found: &mut Vec<Message>,
        blocks: &mut VecDeque<(u64, u64)>,
        kind: u16,
        flags: u8,
        body: &[u8],
        at: u64,
    ) -> Parsed<()> {
        if kind == CONTINUATION {
            let mut fields = Fields::new(body, at);
            blocks.push_back((fields.u64()?, fields.u64()?));
        }
        found.push(Message { kind, flags, body: body.to_vec(), at });
        Ok(())
    }

    /// The names in the group at `at`, and where their objects are: `None` for one that is only a
    /// link to another name.
    fn names(&mut self, at: u64) -> Parsed<Vec<(String, Option<u64>)>> {
        let mut names = Vec::new();
        for message in self.messages(at)? {
            let mut fields = Fields::new(&message.body, message.at);
            match message.kind {
                SYMBOL_TABLE => {
                    let (tree, heap) = (fields.u64()?, fields.u64()?);
                    self.symbols(tree, heap, &mut names)?;
                }
                LINK => names.push(link(&mut fields)?),
                LINK_INFO => {
                    fields.take(1)?;
                    let flags = fields.u8()?;
                    fields.take(if flags & 1 != 0 { 8 } else { 0 })?;
                    if fields.u64()? != NOWHERE {
                        return unsupported(
                            "a group on the way has so many members that HDF5 keeps them in a heap",
                        );
                    }
                }
                _ => {}
            }
        }
        names.sort();
        Ok(names)
    }

    /// The names of a group of the old kind.
    fn symbols(&mut self, tree: u64, heap: u64, names: &mut Vec<(String, Option<u64>)>) -> Parsed<()> {
        let head = self.bytes(heap, 32)?;
        check_letters(&head, b"HEAP", heap)?;
        let mut fields = Fields::new(&head[8..], heap);
        let bytes = fields.u64()?;
        fields.take(8)?;
        let segment = fields.u64()?;
        check_length(heap, bytes, GROUP_BYTES_MAX)?;
        let text = self.bytes(segment, bytes)?;
        let (mut nodes, mut all) = (vec![(tree, None)], 0u64);
        while let Some((at, above)) = nodes.pop() {
            let (level, children) = self.tree_node(at, 0, 8, above)?;
            for (_, child) in children {
                all += 64;
                check_length(child, all, GROUP_BYTES_MAX)?;
                if level > 0 {
                    nodes.push((child, Some(level)));
                    continue;
                }
                let head = self.bytes(child, 8)?;
                check_letters(&head, b"SNOD", child)?;
                let count = Fields::new(&head[6..], child).u16()?;
                let entries = self.bytes(child + 8, u64::from(count) * 40)?;
                let mut fields = Fields::new(&entries, child);
                for _ in 0..count {
                    let (name, object, kind) = (fields.u64()?, fields.u64()?, fields.u32()?);
                    fields.take(20)?;
                    let name =
                        usize::try_from(name).ok().and_then(|from| text.get(from..)).unwrap_or_default();
                    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                    all += name.len() as u64 + 64;
                    check_length(child, all, GROUP_BYTES_MAX)?;
                    // Kind 2 is a soft link.
                    names.push((String::from_utf8_lossy(name).into_owned(), (kind != 2).then_some(object)));
                }
            }
        }
        Ok(())
    }

    /// The node of a B-tree of version 1 at `at`, a child of one of the level `above`: its level,
    /// and its keys of `key_bytes` with the addresses beneath them.
    pub(crate) fn tree_node(
        &mut self,
        at: u64,
        kind: u8,
        key_bytes: u64,
        above: Option<u8>,
    ) -> Parsed<(u8, Vec<Child>)> {
        let head = self.bytes(at, 24)?;
        check_letters(&head, b"TREE", at)?;
        let (level, count) = (head[5], little(&head[6..8]));
        if head[4] != kind || above.is_some_and(|above| level >= above || level + 1 != above) {
            return Err(Stop::Bad(at, "a node of a B-tree is of another tree".into()));
        }
        if level > LEVELS_MAX || (count == 0 && above.is_some()) {
            return Err(Stop::Bad(at, "a node of a B-tree is none that HDF5 writes".into()));
        }
        let body = self.bytes(at + 24, count * (key_bytes + 8))?;
        let mut fields = Fields::new(&body, at);
        let mut children = Vec::new();
        for _ in 0..count {
            children.push((fields.take(key_bytes as usize)?.to_vec(), fields.u64()?));
        }
        Ok((level, children))
    }

    /// The object called `name` in the group at `group`. `None` if it has none of that name.
    fn member(&mut self, group: u64, name: &str) -> Parsed<Option<u64>> {
        match self.names(group)?.into_iter().find(|(known, _)| known == name) {
            None => Ok(None),
            Some((_, Some(at))) => Ok(Some(at)),
            Some((name, None)) => unsupported(format!(
                "its {name} is a link to another name or another file; frames are found in the file itself"
            )),
        }
    }

    /// The object at the end of `path` from the root group. `None` if there is none.
    pub(crate) fn object(&mut self, path: &[&str]) -> Parsed<Option<u64>> {
        let mut at = self.root()?;
        for name in path {
            match self.member(at, name)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The names in the group at `path`, in ascending order.
    pub(crate) fn names_at(&mut self, path: &[&str]) -> Parsed<Vec<String>> {
        match self.object(path)? {
            None => Ok(Vec::new()),
            Some(at) => Ok(self.names(at)?.into_iter().map(|(name, _)| name).collect()),
        }
    }

    /// The array at `at`; `None` if the object there is a group.
    pub(crate) fn array(&mut self, at: u64) -> Parsed<Option<Array>> {
        let messages = self.messages(at)?;
        let of = |kind: u16| messages.iter().find(|message| message.kind == kind);
        if of(EXTERNAL_FILES).is_some() {
            return unsupported("its positions lie in other files");
        }
        let (Some(space), Some(kind), Some(layout)) = (of(DATASPACE), of(DATATYPE), of(LAYOUT)) else {
            return Ok(None);
        };
        if [space, kind, layout].into_iter().chain(of(FILTERS)).any(|message| message.flags & 2 != 0) {
            return unsupported("the type or the filters of its positions are shared with other objects");
        }
        let shape = shape(&mut Fields::new(&space.body, space.at))?;
        let value = Value::parse(&mut Fields::new(&kind.body, kind.at))?;
        let filters = match of(FILTERS) {
            Some(message) => filters(&mut Fields::new(&message.body, message.at))?,
            None => Vec::new(),
        };
        let layout = Layout::parse(&mut Fields::new(&layout.body, layout.at), shape.len())?;
        Ok(Some(Array { shape, value, filters, layout }))
    }
}

const DATASPACE: u16 = 1;
const LINK_INFO: u16 = 2;
const DATATYPE: u16 = 3;
const LINK: u16 = 6;
const EXTERNAL_FILES: u16 = 7;
const LAYOUT: u16 = 8;
const FILTERS: u16 = 11;
const CONTINUATION: u16 = 16;
const SYMBOL_TABLE: u16 = 17;

pub(crate) fn check_letters(bytes: &[u8], letters: &[u8; 4], at: u64) -> Parsed<()> {
    match bytes.starts_with(letters) {
        true => Ok(()),
        false => Err(Stop::Bad(at, format!("there is no {}", String::from_utf8_lossy(letters)))),
    }
}

fn check_length(at: u64, bytes: u64, most: u64) -> Parsed<()> {
    match bytes <= most {
        true => Ok(()),
        false => Err(Stop::Bad(at, format!("a structure has {bytes} bytes, the limit is {most}"))),
    }
}

/// A link of a group of the new kind.
fn link(fields: &mut Fields<'_>) -> Parsed<(String, Option<u64>)> {
    let (version, flags) = (fields.u8()?, fields.u8()?);
    if version != 1 {
        return unsupported(format!("a link has version {version}"));
    }
    let kind = if flags & 8 != 0 { fields.u8()? } else { 0 };
    fields.take(if flags & 4 != 0 { 8 } else { 0 })?;
    fields.take(if flags & 16 != 0 { 1 } else { 0 })?;
    let length = fields.number(1 << (flags & 3))?;
    let name = fields.take(usize::try_from(length).unwrap_or(usize::MAX))?;
    let name = String::from_utf8_lossy(name).into_owned();
    let object = if kind == 0 { Some(fields.u64()?) } else { None };
    Ok((name, object))
}

/// The sizes of an array's dimensions.
fn shape(fields: &mut Fields<'_>) -> Parsed<Vec<u64>> {
    let (version, rank, _flags) = (fields.u8()?, usize::from(fields.u8()?), fields.u8()?);
    match version {
        1 => fields.take(5)?,
        2 => fields.take(1)?,
        other => return unsupported(format!("a dataspace has version {other}")),
    };
    if rank > RANK_MAX {
        return fields.bad("an array has more than 32 dimensions");
    }
    (0..rank).map(|_| fields.u64()).collect()
}

/// What one value of an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) bytes: u64,
    big_endian: bool,
}

impl Value {
    /// IEEE numbers of 2, 4 or 8 bytes.
    fn parse(fields: &mut Fields<'_>) -> Parsed<Value> {
        let kind = fields.u8()?;
        let flags = fields.take(3)?;
        let (order, sign) = (flags[0], u64::from(flags[1]));
        let bytes = fields.u32()?;
        if kind & 15 != 1 {
            return unsupported("its positions are no floating-point numbers");
        }
        let (offset, bits) = (fields.u16()?, fields.u16()?);
        let parts = fields.take(4)?;
        let ieee: (u16, &[u8], u32) = match bytes {
            2 => (16, &[10, 5, 0, 10], 15),
            4 => (32, &[23, 8, 0, 23], 127),
            8 => (64, &[52, 11, 0, 52], 1023),
            _ => return unsupported(format!("its positions are numbers of {bytes} bytes")),
        };
        // Bits 4 and 5 say that the highest bit of the mantissa is left out. Bit 6 beside bit 0 is
        // the order of VAX.
        let is_ieee = order & 0x70 == 0x20 && sign == u64::from(bytes) * 8 - 1;
        if !is_ieee || (bits, parts, fields.u32()?) != ieee || offset != 0 {
            return unsupported("its positions are no IEEE numbers");
        }
        Ok(Value { bytes: u64::from(bytes), big_endian: order & 1 != 0 })
    }

    /// As numpy names it.
    pub(crate) fn name(self) -> String {
        format!("{}f{}", if self.big_endian { '>' } else { '<' }, self.bytes)
    }
}

/// One step of what was done to a chunk before it was written: HDF5's number, and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) id: u16,
    pub(crate) values: Vec<u32>,
}

fn filters(fields: &mut Fields<'_>) -> Parsed<Vec<Filter>> {
    let (version, count) = (fields.u8()?, usize::from(fields.u8()?));
    if count > FILTERS_MAX || !matches!(version, 1 | 2) {
        return fields.bad("its filters are not read");
    }
    if version == 1 {
        fields.take(6)?;
    }
    let mut found = Vec::new();
    for _ in 0..count {
        let id = fields.u16()?;
        let name = if version == 1 || id >= 256 { usize::from(fields.u16()?) } else { 0 };
        let (_flags, values) = (fields.u16()?, usize::from(fields.u16()?));
        fields.take(if version == 1 { name.next_multiple_of(8) } else { name })?;
        let values = (0..values).map(|_| fields.u32()).collect::<Parsed<Vec<u32>>>()?;
        if version == 1 && values.len() % 2 == 1 {
            fields.take(4)?;
        }
        found.push(Filter { id, values });
    }
    Ok(found)
}

/// Where an array's values are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// In the object header.
    Compact,
    /// One after the other from here on; `NOWHERE` if nothing was written yet.
    Contiguous { at: u64, bytes: u64 },
    /// In chunks of this shape, which an index finds.
    Chunked { shape: Vec<u64>, index: ChunkIndex },
}

/// How HDF5 finds an array's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkIndex {
    Tree {
        at: u64,
    },
    Single {
        at: u64,
        bytes: Option<(u64, u32)>,
    },
    Implicit {
        at: u64,
    },
    FixedArray {
        at: u64,
    },
    ExtensibleArray {
        at: u64,
    },
    /// A B-tree of version 2, of arrays that can grow in several dimensions. It is not read.
    SeveralDimensions,
}

impl Layout {
    fn parse(fields: &mut Fields<'_>, rank: usize) -> Parsed<Layout> {
        let version = fields.u8()?;
        match version {
            1 | 2 => Layout::parse_old(fields, rank),
            3..=5 => match fields.u8()? {
                0 => Ok(Layout::Compact),
                1 => Ok(Layout::Contiguous { at: fields.u64()?, bytes: fields.u64()? }),
                2 if version == 3 => {
                    let dimensions = chunk_rank(fields, rank)?;
                    let at = fields.u64()?;
                    let shape = (0..dimensions).map(|_| Ok(u64::from(fields.u32()?)));
                    let shape = shape.collect::<Parsed<Vec<u64>>>()?;
                    Ok(Layout::Chunked { shape: shape[..rank].to_vec(), index: ChunkIndex::Tree { at } })
                }
                2 => Layout::parse_chunked(fields, rank),
                3 => unsupported("its positions lie in other files (a virtual dataset)"),
                other => unsupported(format!("an array has the layout {other}")),
            },
            other => unsupported(format!("the layout of an array has version {other}")),
        }
    }

    fn parse_old(fields: &mut Fields<'_>, rank: usize) -> Parsed<Layout> {
        let dimensions = usize::from(fields.u8()?);
        let class = fields.u8()?;
        fields.take(5)?;
        match class {
            0 => Ok(Layout::Compact),
            1 | 2 if dimensions == rank + usize::from(class == 2) => {
                let at = fields.u64()?;
                let shape = (0..rank).map(|_| Ok(u64::from(fields.u32()?))).collect::<Parsed<Vec<u64>>>()?;
                let size = u64::from(fields.u32()?);
                let bytes = shape.iter().try_fold(size, |all, one| all.checked_mul(*one)).unwrap_or(NOWHERE);
                match class {
                    1 => Ok(Layout::Contiguous { at, bytes }),
                    _ => Ok(Layout::Chunked { shape, index: ChunkIndex::Tree { at } }),
                }
            }
            _ => fields.bad("the layout of an array has another number of dimensions than the array"),
        }
    }

    fn parse_chunked(fields: &mut Fields<'_>, rank: usize) -> Parsed<Layout> {
        let flags = fields.u8()?;
        let dimensions = chunk_rank(fields, rank)?;
        let width = usize::from(fields.u8()?);
        let shape = (0..dimensions).map(|_| fields.number(width)).collect::<Parsed<Vec<u64>>>()?;
        let index = match fields.u8()? {
            1 => {
                let bytes = if flags & 2 != 0 { Some((fields.u64()?, fields.u32()?)) } else { None };
                ChunkIndex::Single { at: fields.u64()?, bytes }
            }
            2 => ChunkIndex::Implicit { at: fields.u64()? },
            3 => {
                fields.take(1)?;
                ChunkIndex::FixedArray { at: fields.u64()? }
            }
            4 => {
                fields.take(5)?;
                ChunkIndex::ExtensibleArray { at: fields.u64()? }
            }
            5 => ChunkIndex::SeveralDimensions,
            other => return unsupported(format!("its chunks have an index of the kind {other}")),
        };
        Ok(Layout::Chunked { shape: shape[..rank].to_vec(), index })
    }
}

/// The number of dimensions of a chunk: those of the array, and the bytes of a value.
fn chunk_rank(fields: &mut Fields<'_>, rank: usize) -> Parsed<usize> {
    let dimensions = usize::from(fields.u8()?);
    match dimensions == rank + 1 {
        true => Ok(dimensions),
        false => fields.bad("a chunk has another number of dimensions than its array"),
    }
}

/// An array of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<u64>,
    pub(crate) value: Value,
    pub(crate) filters: Vec<Filter>,
    pub(crate) layout: Layout,
}
