//! The primitives of every message: a growing [`Writer`], a bounded [`Reader`], and the [`Message`]
//! trait.
//!
//! | value | bytes |
//! |---|---|
//! | integer | little endian, fixed width |
//! | bool | one byte, 0 or 1 |
//! | text | u32 length, UTF-8 |
//! | option | one byte 0, or 1 and the value |
//! | list | u32 count, the elements |
//! | record | u32 length, the fields; a reader skips what it does not know at the end |
//!
//! Invariants: a reader never reads beyond its bytes, never panics, and holds memory only for
//! elements that it has decoded. Structures inside a message are records, so that they too can grow
//! at their end.

use zazen_core::limits::{FRAME_NO_MAX, PATH_BYTES_MAX, check_frame_bytes};
use zazen_core::{
    Blocks, Error, ErrorKind, FrameMeta, FrameNo, Layout, NameTemplate, Origin, Piece, RelPath, Result,
    RunSet, Series, Source, Validator,
};

/// The longest free text in a message (names, error messages), in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// The longest absolute path in a message, in bytes: a root and a relative path.
pub const ABSOLUTE_PATH_BYTES_MAX: usize = 2 * PATH_BYTES_MAX;

/// One message: the payload of a request or reply.
pub trait Message: Sized {
    /// The message's name, for errors.
    const NAME: &'static str;
    /// The fewest bytes that the message takes.
    const BYTES_MIN: usize = 0;

    /// Appends the fields.
    fn write(&self, writer: &mut Writer);

    /// Takes the fields, in the order of [`Message::write`].
    fn read(reader: &mut Reader<'_>) -> Result<Self>;

    /// The message as bytes.
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        self.write(&mut writer);
        writer.into_bytes()
    }

    /// The message in `bytes`. Bytes after the last known field are a newer peer's and are skipped.
    ///
    /// Fails with [`ErrorKind::Protocol`] for missing or malformed fields, [`ErrorKind::TooLarge`]
    /// beyond a limit, [`ErrorKind::InvalidArgument`] for a path that could leave its root.
    fn decode(bytes: &[u8]) -> Result<Self> {
        Self::read(&mut Reader::new(Self::NAME, bytes))
    }
}

/// Appends values to a byte vector.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// An empty writer with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer { bytes: Vec::with_capacity(bytes) }
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All that was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Eight bytes, two's complement.
    pub fn i64(&mut self, value: i64) {
        self.raw(&value.to_le_bytes());
    }

    /// Sixteen bytes.
    pub fn u128(&mut self, value: u128) {
        self.raw(&value.to_le_bytes());
    }

    /// One byte, 0 or 1.
    pub fn bool(&mut self, value: bool) {
        self.u8(value.into());
    }

    /// The bytes themselves, without a length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Length and UTF-8.
    pub fn text(&mut self, text: &str) {
        self.u32(length_u32(text.len()));
        self.raw(text.as_bytes());
    }

    /// Length and bytes.
    pub fn blob(&mut self, bytes: &[u8]) {
        self.u32(length_u32(bytes.len()));
        self.raw(bytes);
    }

    /// Text cut to the longest that a reader takes, at a character's border: for messages to
    /// people.
    pub fn clipped_text(&mut self, text: &str) {
        self.text(clip(text, TEXT_BYTES_MAX));
    }

    /// A presence byte, then the value.
    pub fn option<T>(&mut self, value: &Option<T>, write: impl FnOnce(&mut Writer, &T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// A count, then each element.
    pub fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Writer, &T)) {
        self.u32(length_u32(items.len()));
        for item in items {
            write(self, item);
        }
    }

    /// A length, then what `write` writes: a structure that can grow at its end.
    pub fn record(&mut self, write: impl FnOnce(&mut Writer)) {
        let at = self.bytes.len();
        self.u32(0);
        write(self);
        let length = length_u32(self.bytes.len() - at - 4);
        self.bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// A run set, as a record in [`crate::runset_codec`]'s encoding.
    pub fn runset(&mut self, set: &RunSet) {
        self.record(|writer| crate::runset_codec::encode(set, &mut writer.bytes));
    }

    /// A relative path.
    pub fn rel_path(&mut self, path: &RelPath) {
        self.text(path.as_str());
    }

    /// How a frame came: 0 native, 1 alien.
    pub fn origin(&mut self, origin: Origin) {
        self.u8(match origin {
            Origin::Native => 0,
            Origin::Alien => 1,
        });
    }

    /// A source, as a record.
    pub fn source(&mut self, source: &Source) {
        self.record(|writer| {
            writer.rel_path(&source.path);
            writer.u64(source.offset);
            writer.option(&source.length, |writer, length| writer.u64(*length));
        });
    }

    /// A frame's metadata, as a record.
    pub fn frame_meta(&mut self, meta: &FrameMeta) {
        self.record(|writer| {
            writer.u64(meta.number.get());
            writer.u64(meta.length);
            writer.u64(meta.checksum);
            writer.option(&meta.validator, |writer, validator| {
                writer.u64(validator.size);
                writer.i64(validator.mtime_ns);
            });
            writer.u32(meta.uid);
            writer.u32(meta.gid);
            writer.u32(meta.mode);
            let validator = meta.validator.unwrap_or_default();
            writer.i64(validator.ctime_ns);
            writer.u64(validator.inode);
            writer.bool(validator.unsettled);
        });
    }

    /// What a source looks like, as a record.
    pub fn validator(&mut self, validator: &Validator) {
        self.record(|writer| {
            writer.u64(validator.size);
            writer.i64(validator.mtime_ns);
            writer.i64(validator.ctime_ns);
            writer.u64(validator.inode);
            writer.bool(validator.unsettled);
        });
    }

    /// A series, as a record: 0 and a name template, 1 for pieces, 2 for a list, 3 and the size of
    /// blocks, 4 and a trajectory file, 5 for the trajectory files of a manifest.
    pub fn series(&mut self, series: &Series) {
        self.record(|writer| match series {
            Series::Files(template) => {
                writer.u8(0);
                writer.text(&template.to_string());
            }
            Series::Pieces => writer.u8(1),
            Series::List => writer.u8(2),
            Series::Blocks(block_bytes) => {
                writer.u8(3);
                writer.u64(*block_bytes);
            }
            Series::Trajectory(file) => {
                writer.u8(4);
                writer.rel_path(file);
            }
            Series::Trajectories => writer.u8(5),
        });
    }

    /// A layout, as a record: 0 and a name template, or 1 and a list of pieces, or 2 and a list of
    /// files, or 3, a file's path, the size of its blocks, and what it looked like, or 4 and a
    /// trajectory without the places of its frames.
    pub fn layout(&mut self, layout: &Layout) {
        self.record(|writer| match layout {
            Layout::Files(template) => {
                writer.u8(0);
                writer.text(&template.to_string());
            }
            Layout::Pieces(pieces) => {
                writer.u8(1);
                writer.list(pieces, |writer, piece| {
                    writer.record(|writer| {
                        writer.rel_path(&piece.path);
                        for value in [piece.first, piece.count, piece.step, piece.offset, piece.frame_bytes] {
                            writer.u64(value);
                        }
                    });
                });
            }
            Layout::List(files) => {
                writer.u8(2);
                writer.list(files, |writer, file| writer.rel_path(file));
            }
            Layout::Trajectory(trajectory) => {
                writer.u8(4);
                writer.trajectory(trajectory);
            }
            Layout::Blocks(Blocks { path, block_bytes, version }) => {
                writer.u8(3);
                writer.rel_path(path);
                writer.u64(*block_bytes);
                writer.validator(version);
            }
        });
    }
}

/// Takes values from bytes; knows the message's name for its errors.
pub struct Reader<'a> {
    name: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`, which are a message (or structure) called `name`.
    pub fn new(name: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { name, bytes, at: 0 }
    }

    /// Bytes not yet taken.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// A [`ErrorKind::Protocol`] error about this message.
    pub fn malformed(&self, why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Protocol, format!("message {} at byte {}: {why}", self.name, self.at))
    }

    fn beyond(&self, what: &str, found: u64, max: u64) -> Error {
        Error::new(
            ErrorKind::TooLarge,
            format!("message {}: {what} {found} is beyond the limit of {max}", self.name),
        )
    }

    /// The next `count` bytes.
    pub fn raw(&mut self, count: usize) -> Result<&'a [u8]> {
        if count > self.remaining() {
            let left = self.remaining();
            return Err(
                self.malformed(format_args!("is cut short: {count} bytes are wanted, {left} are left"))
            );
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N)?);
        Ok(array)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Eight bytes, two's complement.
    pub fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Sixteen bytes.
    pub fn u128(&mut self) -> Result<u128> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// One byte, 0 or 1.
    pub fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.malformed(format_args!("a flag is {other}, neither 0 nor 1"))),
        }
    }

    /// Text of at most `bytes_max` bytes.
    pub fn text(&mut self, bytes_max: usize) -> Result<String> {
        let length = self.u32()? as usize;
        if length > bytes_max {
            return Err(self.beyond("a text of bytes", length as u64, bytes_max as u64));
        }
        let bytes = self.raw(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// At most `bytes_max` bytes.
    pub fn blob(&mut self, bytes_max: usize) -> Result<&'a [u8]> {
        let length = self.u32()? as usize;
        if length > bytes_max {
            return Err(self.beyond("a field of bytes", length as u64, bytes_max as u64));
        }
        self.raw(length)
    }

    /// Free text: a name or a message to people.
    pub fn free_text(&mut self) -> Result<String> {
        self.text(TEXT_BYTES_MAX)
    }

    /// A path that the kernel could take: bounded, without NUL.
    pub fn absolute_path(&mut self) -> Result<String> {
        let path = self.text(ABSOLUTE_PATH_BYTES_MAX)?;
        if path.contains('\0') {
            let shown: String = path.chars().take(120).collect();
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("path {shown:?} contains a NUL byte"),
            ));
        }
        Ok(path)
    }

    /// A presence byte, then the value.
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Reader<'a>) -> Result<T>) -> Result<Option<T>> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// A count, then each element. An element takes at least `bytes_min` ≥ 1 bytes, so a count that
    /// the rest of the message can't hold is refused before anything is allocated for it.
    pub fn list<T>(
        &mut self,
        bytes_min: usize,
        mut read: impl FnMut(&mut Reader<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.remaining() / bytes_min.max(1) {
            let left = self.remaining();
            return Err(self.malformed(format_args!("a list of {count} elements can't be in {left} bytes")));
        }
        // Grown as elements prove to be there: an element may be larger in memory than in the
        // message.
        let mut items = Vec::with_capacity(count.min(256));
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    /// A record: `read` sees its bytes only, and what it leaves unread is skipped.
    pub fn record<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T>,
    ) -> Result<T> {
        let length = self.u32()? as usize;
        let bytes = self.raw(length)?;
        read(&mut Reader::new(name, bytes)).map_err(|error| error.within(self.name))
    }

    /// A set of frame numbers; one beyond [`FRAME_NO_MAX`] is `TooLarge`.
    pub fn runset(&mut self) -> Result<RunSet> {
        let length = self.u32()? as usize;
        let bytes = self.raw(length)?;
        let set = crate::runset_codec::decode(bytes).map_err(|error| error.within(self.name))?;
        match set.last() {
            Some(last) if last > FRAME_NO_MAX => Err(self.beyond("frame number", last, FRAME_NO_MAX)),
            _ => Ok(set),
        }
    }

    /// A relative path.
    pub fn rel_path(&mut self) -> Result<RelPath> {
        let text = self.text(PATH_BYTES_MAX)?;
        RelPath::new(&text)
    }

    /// The cache's name for a dataset: a relative path whose last component may name a series.
    pub fn stored_path(&mut self) -> Result<RelPath> {
        let text = self.text(PATH_BYTES_MAX)?;
        RelPath::stored(&text)
    }

    /// How a frame came.
    pub fn origin(&mut self) -> Result<Origin> {
        match self.u8()? {
            0 => Ok(Origin::Native),
            1 => Ok(Origin::Alien),
            other => Err(self.malformed(format_args!("unknown origin {other}"))),
        }
    }

    /// A source.
    pub fn source(&mut self) -> Result<Source> {
        self.record("Source", |reader| {
            let path = reader.rel_path()?;
            let offset = reader.u64()?;
            let length = reader.option(Reader::u64)?;
            if offset.checked_add(length.unwrap_or(0)).is_none() {
                return Err(reader.malformed(format_args!("offset {offset} and length overflow")));
            }
            Ok(Source { path, offset, length })
        })
    }

    /// A frame's metadata; its length is within [`zazen_core::limits::FRAME_BYTES_MAX`].
    pub fn frame_meta(&mut self) -> Result<FrameMeta> {
        self.record("FrameMeta", |reader| {
            let number = FrameNo::new(reader.u64()?)?;
            let length = reader.u64()?;
            check_frame_bytes(length)?;
            let checksum = reader.u64()?;
            let seen = reader.option(|reader| Ok((reader.u64()?, reader.i64()?)))?;
            let (uid, gid, mode) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let (ctime_ns, inode, unsettled) = (reader.i64()?, reader.u64()?, reader.bool()?);
            let whole = |(size, mtime_ns)| Validator { size, mtime_ns, ctime_ns, inode, unsettled };
            let validator = seen.map(whole);
            Ok(FrameMeta { number, length, checksum, validator, uid, gid, mode })
        })
    }

    /// A series.
    pub fn series(&mut self) -> Result<Series> {
        self.record("Series", |reader| {
            Ok(match reader.u8()? {
                0 => Series::Files(NameTemplate::parse(&reader.text(PATH_BYTES_MAX)?)?.unpadded()),
                1 => Series::Pieces,
                2 => Series::List,
                3 => Series::Blocks(reader.u64()?),
                4 => Series::Trajectory(reader.rel_path()?),
                5 => Series::Trajectories,
                other => return Err(reader.malformed(format_args!("unknown series {other}"))),
            })
        })
    }

    /// A layout, validated.
    pub fn layout(&mut self) -> Result<Layout> {
        self.record("Layout", |reader| {
            let layout = match reader.u8()? {
                0 => Layout::Files(NameTemplate::parse(&reader.text(PATH_BYTES_MAX)?)?),
                1 => Layout::Pieces(reader.list(PIECE_BYTES_MIN, Reader::piece)?),
                2 => Layout::List(reader.list(4, Reader::rel_path)?.into()),
                3 => Layout::Blocks(reader.blocks()?),
                4 => Layout::Trajectory(std::sync::Arc::new(reader.trajectory()?)),
                other => return Err(reader.malformed(format_args!("unknown layout {other}"))),
            };
            layout.validate()?;
            Ok(layout)
        })
    }

    fn blocks(&mut self) -> Result<Blocks> {
        let (path, block_bytes) = (self.rel_path()?, self.u64()?);
        Ok(Blocks { path, block_bytes, version: self.validator()? })
    }

    /// What a source looks like.
    pub fn validator(&mut self) -> Result<Validator> {
        self.record("Validator", |reader| {
            let (size, mtime_ns, ctime_ns) = (reader.u64()?, reader.i64()?, reader.i64()?);
            let (inode, unsettled) = (reader.u64()?, reader.bool()?);
            Ok(Validator { size, mtime_ns, ctime_ns, inode, unsettled })
        })
    }

    fn piece(&mut self) -> Result<Piece> {
        self.record("Piece", |reader| {
            Ok(Piece {
                path: reader.rel_path()?,
                first: reader.u64()?,
                count: reader.u64()?,
                step: reader.u64()?,
                offset: reader.u64()?,
                frame_bytes: reader.u64()?,
            })
        })
    }
}

/// A piece on the wire: record length, path length, five integers.
const PIECE_BYTES_MIN: usize = 4 + 4 + 5 * 8;

/// Lengths on the wire are u32: a longer message would be refused by `PAYLOAD_BYTES_MAX` long
/// before.
fn length_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The longest prefix of `text` of at most `bytes_max` bytes that ends at a character's border.
pub fn clip(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
