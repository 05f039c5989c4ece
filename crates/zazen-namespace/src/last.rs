//! Fields that came to messages later.

use zazen_core::Result;
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::{Field, Opt};

/// An optional field that came later: it is missing at the end of older messages.
pub(crate) struct Last<F>(std::marker::PhantomData<F>);

impl<F: Field> Field for Last<F> {
    type Value = Option<F::Value>;
    const BYTES_MIN: usize = 0;
    fn write(value: &Option<F::Value>, writer: &mut Writer) {
        Opt::<F>::write(value, writer);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Option<F::Value>> {
        if reader.remaining() == 0 { Ok(None) } else { Opt::<F>::read(reader) }
    }
}
