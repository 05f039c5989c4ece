//! Messages declared once: [`crate::messages!`] takes each field's name, type and encoding, and
//! makes the structure, its writer and its reader.
//!
//! An encoding is a type that implements [`Field`]. Where a type has one encoding only (integers,
//! flags, run sets), it is its own; texts have several, which differ in what a reader accepts.

use crate::codec::{Message, Reader, Writer};
use zazen_core::limits::PATH_BYTES_MAX;
use zazen_core::{
    Credentials, FrameMeta, FrameNo, Layout, Origin, RelPath, Result, RunSet, Series, Source, Validator,
};

/// An encoding of one field.
pub trait Field {
    /// The type of the field.
    type Value;
    /// The fewest bytes that a value takes: a reader refuses a count of values that cannot fit.
    const BYTES_MIN: usize;
    /// Appends the value.
    fn write(value: &Self::Value, writer: &mut Writer);
    /// Takes a value.
    fn read(reader: &mut Reader<'_>) -> Result<Self::Value>;
}

/// Declares messages: `Name { field: Type, field: Type = Encoding, ... }`, with docs and derives. A
/// field without an encoding has its type's own. Fields are written in the order of their
/// declaration, and are only ever added at the end.
#[macro_export]
macro_rules! messages {
    ($(
        $(#[$about:meta])*
        $name:ident { $($(#[$on:meta])* $field:ident: $type:ty $(= $encoding:ty)?),+ $(,)? }
    )+) => {$(
        $(#[$about])*
        pub struct $name {
            $($(#[$on])* pub $field: $type,)+
        }

        impl $crate::Message for $name {
            const NAME: &'static str = stringify!($name);
            const BYTES_MIN: usize =
                0 $(+ <$crate::encoding!($type $(= $encoding)?) as $crate::field::Field>::BYTES_MIN)+;
            fn write(&self, writer: &mut $crate::codec::Writer) {
                $(<$crate::encoding!($type $(= $encoding)?) as $crate::field::Field>::write(
                    &self.$field,
                    writer,
                );)+
            }
            fn read(reader: &mut $crate::codec::Reader<'_>) -> ::zazen_core::Result<$name> {
                Ok($name { $(
                    $field: <$crate::encoding!($type $(= $encoding)?) as $crate::field::Field>::read(reader)?
                ),+ })
            }
        }
    )+};
}

/// The encoding of a field of [`messages!`].
#[doc(hidden)]
#[macro_export]
macro_rules! encoding {
    ($type:ty) => {
        $type
    };
    ($type:ty = $encoding:ty) => {
        $encoding
    };
}

/// Declares encodings: name, type of the value, fewest bytes, how it is written and read.
macro_rules! fields {
    ($($(#[$about:meta])* $name:ty: $value:ty, $bytes:expr, $write:expr, $read:expr;)+) => {$(
        impl Field for $name {
            type Value = $value;
            const BYTES_MIN: usize = $bytes;
            fn write(value: &$value, writer: &mut Writer) {
                let write: fn(&mut Writer, &$value) = $write;
                write(writer, value);
            }
            fn read(reader: &mut Reader<'_>) -> Result<$value> {
                let read: fn(&mut Reader<'_>) -> Result<$value> = $read;
                read(reader)
            }
        }
    )+};
}

/// The encoding of a free text: a name, or a message to people.
pub struct FreeText;
/// The encoding of a message to people that is cut to the longest that a reader takes.
pub struct ClippedText;
/// The encoding of a text of at most `MAX` bytes.
pub struct Text<const MAX: usize>;
/// The encoding of at most `MAX` bytes.
pub struct Blob<const MAX: usize>;
/// The encoding of a pattern or another text that is no longer than a path.
pub type ShortText = Text<PATH_BYTES_MAX>;
/// The encoding of a path that the kernel could take.
pub struct AbsolutePath;
/// The encoding of the cache's name for a dataset.
pub struct StoredPath;
/// The encoding of a frame number as a plain integer.
pub struct FrameNumber;
/// The encoding of a value that may be missing.
pub struct Opt<F>(std::marker::PhantomData<F>);
/// The encoding of a list.
pub struct List<F>(std::marker::PhantomData<F>);
/// The encoding of values as a record, which can grow at its end.
pub struct Record<F>(std::marker::PhantomData<F>);
/// The encoding of a message within another: a record, which can grow at its end.
pub struct Nested<M>(std::marker::PhantomData<M>);

fields! {
    u8: u8, 1, |writer, value| writer.u8(*value), |reader| reader.u8();
    u16: u16, 2, |writer, value| writer.u16(*value), |reader| reader.u16();
    u32: u32, 4, |writer, value| writer.u32(*value), |reader| reader.u32();
    u64: u64, 8, |writer, value| writer.u64(*value), |reader| reader.u64();
    i64: i64, 8, |writer, value| writer.i64(*value), |reader| reader.i64();
    u128: u128, 16, |writer, value| writer.u128(*value), |reader| reader.u128();
    bool: bool, 1, |writer, value| writer.bool(*value), |reader| reader.bool();
    FreeText: String, 4, |writer, text| writer.text(text), |reader| reader.free_text();
    ClippedText: String, 4, |writer, text| writer.clipped_text(text), |reader| reader.free_text();
    AbsolutePath: String, 4, |writer, text| writer.text(text), |reader| reader.absolute_path();
    StoredPath: RelPath, 4, |writer, path| writer.rel_path(path), |reader| reader.stored_path();
    FrameNumber: u64, 8, |writer, number| writer.u64(*number),
        |reader| Ok(FrameNo::new(reader.u64()?)?.get());
    RunSet: RunSet, 4, |writer, set| writer.runset(set), |reader| reader.runset();
    Origin: Origin, 1, |writer, origin| writer.origin(*origin), |reader| reader.origin();
    Source: Source, 4 + 13, |writer, source| writer.source(source), |reader| reader.source();
    FrameMeta: FrameMeta, 4 + 37, |writer, meta| writer.frame_meta(meta), |reader| reader.frame_meta();
    Validator: Validator, 4 + 33, |writer, seen| writer.validator(seen), |reader| reader.validator();
    Series: Series, 4, |writer, series| writer.series(series), |reader| reader.series();
    Layout: Layout, 4, |writer, layout| writer.layout(layout), |reader| reader.layout();
}

impl<const MAX: usize> Field for Text<MAX> {
    type Value = String;
    const BYTES_MIN: usize = 4;
    fn write(value: &String, writer: &mut Writer) {
        writer.text(value);
    }
    fn read(reader: &mut Reader<'_>) -> Result<String> {
        reader.text(MAX)
    }
}

impl<const MAX: usize> Field for Blob<MAX> {
    type Value = Vec<u8>;
    const BYTES_MIN: usize = 4;
    fn write(value: &Vec<u8>, writer: &mut Writer) {
        writer.blob(value);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Vec<u8>> {
        Ok(reader.blob(MAX)?.to_vec())
    }
}

impl<const N: usize> Field for [u8; N] {
    type Value = [u8; N];
    const BYTES_MIN: usize = N;
    fn write(value: &[u8; N], writer: &mut Writer) {
        writer.raw(value);
    }
    fn read(reader: &mut Reader<'_>) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(reader.raw(N)?);
        Ok(array)
    }
}

impl Field for Credentials {
    type Value = Credentials;
    const BYTES_MIN: usize = 12;
    fn write(value: &Credentials, writer: &mut Writer) {
        <(u32, u32)>::write(&(value.uid, value.gid), writer);
        List::<u32>::write(&value.groups, writer);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Credentials> {
        let (uid, gid) = <(u32, u32)>::read(reader)?;
        Ok(Credentials { uid, gid, groups: List::<u32>::read(reader)? })
    }
}

impl<F: Field> Field for Opt<F> {
    type Value = Option<F::Value>;
    const BYTES_MIN: usize = 1;
    fn write(value: &Self::Value, writer: &mut Writer) {
        writer.option(value, |writer, value| F::write(value, writer));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self::Value> {
        reader.option(F::read)
    }
}

impl<F: Field> Field for List<F> {
    type Value = Vec<F::Value>;
    const BYTES_MIN: usize = 4;
    fn write(value: &Self::Value, writer: &mut Writer) {
        writer.list(value, |writer, value| F::write(value, writer));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self::Value> {
        reader.list(F::BYTES_MIN, F::read)
    }
}

/// Values one after the other.
macro_rules! tuples {
    ($(($($name:ident $at:tt),+);)+) => {$(
        impl<$($name: Field),+> Field for ($($name,)+) {
            type Value = ($($name::Value,)+);
            const BYTES_MIN: usize = 0 $(+ $name::BYTES_MIN)+;
            fn write(value: &Self::Value, writer: &mut Writer) {
                $($name::write(&value.$at, writer);)+
            }
            fn read(reader: &mut Reader<'_>) -> Result<Self::Value> {
                Ok(($($name::read(reader)?,)+))
            }
        }
    )+};
}

tuples! {
    (A 0, B 1);
    (A 0, B 1, C 2);
}

impl<F: Field> Field for Record<F> {
    type Value = F::Value;
    const BYTES_MIN: usize = 4 + F::BYTES_MIN;
    fn write(value: &Self::Value, writer: &mut Writer) {
        writer.record(|writer| F::write(value, writer));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self::Value> {
        reader.record("record", F::read)
    }
}

impl<M: Message> Field for Nested<M> {
    type Value = M;
    const BYTES_MIN: usize = 4 + M::BYTES_MIN;
    fn write(value: &M, writer: &mut Writer) {
        writer.record(|writer| value.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Result<M> {
        reader.record(M::NAME, M::read)
    }
}
