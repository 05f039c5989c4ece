//! Enumerations of messages, declared once.

/// Declares an enumeration of messages: a tag byte, then the message as a record.
macro_rules! tagged {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$on:meta])* $variant:ident = $tag:literal $(($message:ty))?,)+
    })+) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        // Some are parts of what others hold only.
        #[allow(unreachable_pub)]
        pub enum $name {
            $($(#[$on])* $variant $(($message))?,)+
        }

        impl zazen_wire::field::Field for $name {
            type Value = $name;
            const BYTES_MIN: usize = 1;
            fn write(value: &$name, writer: &mut zazen_wire::codec::Writer) {
                match value {
                    $($crate::tagged::tagged!(@pattern $name $variant message $($message)?) => {
                        writer.u8($tag);
                        $(<zazen_wire::field::Nested<$message> as zazen_wire::field::Field>::write(
                            message, writer,
                        );)?
                    })+
                }
            }
            fn read(reader: &mut zazen_wire::codec::Reader<'_>) -> zazen_core::Result<$name> {
                let tag = reader.u8()?;
                Ok(match tag {
                    $($tag => $name::$variant $((
                        <zazen_wire::field::Nested<$message> as zazen_wire::field::Field>::read(reader)?
                    ))?,)+
                    _ => return Err(reader.malformed(format_args!(
                        concat!(stringify!($name), " has no number {}"), tag
                    ))),
                })
            }
        }
    )+};
    (@pattern $name:ident $variant:ident $bind:ident $message:ty) => { $name::$variant($bind) };
    (@pattern $name:ident $variant:ident $bind:ident) => { $name::$variant };
}

pub(crate) use tagged;
