//! The fixed part of a request and of a reply: which fields, at which offsets.
//!
//! Fields whose size the generator knows come first, in the order of the parameters, with explicit
//! padding; opaque bytes (structs, typedefs) follow, each padded to a multiple of 8. So the offset
//! of every known field is known here, and the C compiler checks it.

use crate::model::{Base, Function, Shape, Type};

/// One field of a fixed part.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) content: Content,
}

/// What a field holds.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A number: its C type of fixed width, and that in bytes.
    Number(&'static str, u64),
    /// Where a piece of the tail is.
    Span,
    /// The bytes of a type that only the compiler knows.
    Opaque(String),
    /// Zeros.
    Padding(u64),
}

/// A fixed part.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Known fields with their offsets, padding included.
    pub(crate) known: Vec<(u64, Field)>,
    /// Bytes of them all; a multiple of 8.
    pub(crate) known_bytes: u64,
    pub(crate) opaque: Vec<Field>,
}

/// The fixed part of `function`'s request.
pub(crate) fn request(function: &Function) -> Layout {
    let mut fields = Vec::new();
    for param in &function.params {
        if param.nullok {
            fields
                .push(Field { name: format!("has_{}", param.name), content: Content::Number("uint8_t", 1) });
        }
        match param.shape {
            Shape::Obj if param.handle.is_some() => fields.push(handle(format!("v_{}", param.name))),
            Shape::Obj => fields.push(value(&param.name, &param.ty)),
            Shape::Ptr if param.direction.is_in() => fields.push(value(&param.name, &param.ty)),
            _ if param.in_tail() && param.direction.is_in() => fields.push(span(&param.name)),
            _ => {}
        }
    }
    Layout::new(fields)
}

/// The fixed part of `function`'s reply.
pub(crate) fn reply(function: &Function) -> Layout {
    let mut fields = Vec::new();
    if function.errno {
        fields.push(Field { name: "error_number".into(), content: Content::Number("int32_t", 4) });
    }
    if function.handle.is_some() || function.fd {
        fields.push(handle("result".into()));
    } else if function.returns() {
        let field = value("", &function.result);
        fields.push(Field { name: "result".into(), ..field });
    }
    for param in function.params.iter().filter(|param| param.direction.is_out()) {
        match param.shape {
            Shape::Ptr if param.handle.is_some() || param.fd => {
                fields.push(handle(format!("v_{}", param.name)))
            }
            Shape::Ptr => fields.push(value(&param.name, &param.ty)),
            _ if param.in_tail() => fields.push(span(&param.name)),
            _ => {}
        }
    }
    Layout::new(fields)
}

fn handle(name: String) -> Field {
    Field { name, content: Content::Number("int64_t", 8) }
}

fn span(name: &str) -> Field {
    Field { name: format!("s_{name}"), content: Content::Span }
}

fn value(name: &str, ty: &Type) -> Field {
    match &ty.base {
        Base::Scalar(scalar) => {
            Field { name: format!("v_{name}"), content: Content::Number(scalar.wire, scalar.bytes) }
        }
        Base::Enum(_) => Field { name: format!("v_{name}"), content: Content::Number("uint32_t", 4) },
        Base::Opaque(c) => Field { name: format!("o_{name}"), content: Content::Opaque(c.clone()) },
        Base::Void => Field { name: format!("v_{name}"), content: Content::Padding(8) },
    }
}

impl Layout {
    fn new(fields: Vec<Field>) -> Layout {
        let (opaque, numbers): (Vec<Field>, Vec<Field>) =
            fields.into_iter().partition(|field| matches!(field.content, Content::Opaque(_)));
        let mut layout = Layout { known: Vec::new(), known_bytes: 0, opaque };
        for field in numbers {
            let (bytes, alignment) = match field.content {
                Content::Number(_, bytes) => (bytes, bytes),
                Content::Span => (16, 8),
                Content::Opaque(_) | Content::Padding(_) => (8, 8),
            };
            layout.pad(alignment);
            layout.known.push((layout.known_bytes, field));
            layout.known_bytes += bytes;
        }
        layout.pad(8);
        if layout.known.is_empty() && layout.opaque.is_empty() {
            // C has no empty structs.
            layout.known.push((0, Field { name: "padding0".into(), content: Content::Padding(8) }));
            layout.known_bytes = 8;
        }
        layout
    }

    fn pad(&mut self, alignment: u64) {
        let gap = self.known_bytes.next_multiple_of(alignment) - self.known_bytes;
        if gap > 0 {
            let name = format!("padding{}", self.known_bytes);
            self.known.push((self.known_bytes, Field { name, content: Content::Padding(gap) }));
            self.known_bytes += gap;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_explicit_and_opaque_bytes_come_last() {
        let number = |name: &str, c, bytes| Field { name: name.into(), content: Content::Number(c, bytes) };
        let opaque = Field { name: "o_s".into(), content: Content::Opaque("struct s".into()) };
        let layout =
            Layout::new(vec![number("a", "uint8_t", 1), opaque, number("b", "uint32_t", 4), span("c")]);
        let found: Vec<(u64, &str)> =
            layout.known.iter().map(|(at, field)| (*at, field.name.as_str())).collect();
        assert_eq!(found, [(0, "a"), (1, "padding1"), (4, "b"), (8, "s_c")]);
        assert_eq!((layout.known_bytes, layout.opaque.len()), (24, 1));
        assert_eq!(Layout::new(Vec::new()).known_bytes, 8);
    }
}
