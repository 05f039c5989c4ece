//! `NAME_wire.h`: the fixed parts of all messages, and checks that generator and compiler read the
//! same header.

use super::code::{Code, banner};
use crate::layout::{self, Content, Layout};
use crate::model::{Base, Function, Interface, Shape, Type};

pub(crate) fn text(interface: &Interface, schema_hash: u64) -> String {
    let name = &interface.name;
    let upper = name.to_uppercase();
    let what =
        "the messages of this plug-in, and proofs that the compiler reads the header as the generator did";
    let mut code = Code::after(banner(interface, &format!("{name}_wire.h"), what));
    code.lines(&format!(
        "#ifndef {upper}_WIRE_H
        #define {upper}_WIRE_H

        #include \"zazen_segment.h\"
        #include \"{}\"

        #define {upper}_ID UINT32_C({})
        #define {upper}_FUNCTIONS UINT32_C({})
        #define {upper}_SCHEMA_HASH UINT64_C(0x{schema_hash:016x})
        ",
        interface.file_name,
        interface.marker.id,
        interface.functions.len(),
    ));
    layout_hash(&mut code, interface, &upper);
    types(&mut code, interface);
    for (index, function) in interface.functions.iter().enumerate() {
        function_part(&mut code, name, index, function);
    }
    code.lines("\n#endif");
    code.finish()
}

/// All types of arguments and results, without pointers.
fn bases(interface: &Interface) -> Vec<&Base> {
    let mut found: Vec<&Base> = Vec::new();
    let types = interface.functions.iter().flat_map(|function| {
        let params = function.params.iter().map(|param| &param.ty);
        std::iter::once(&function.result).chain(params).map(|ty: &Type| &ty.base)
    });
    for base in types {
        if !found.iter().any(|known| known.c() == base.c()) {
            found.push(base);
        }
    }
    found.sort_by_key(|base| base.c().to_owned());
    found
}

/// The schema hash does not cover the fields of a struct. Its size and alignment are mixed in here.
fn layout_hash(code: &mut Code, interface: &Interface, upper: &str) {
    code.line(
        "/* The schema hash, mixed with the size and alignment of each struct as this compiler sees it. */",
    );
    let mut expression = format!("{upper}_SCHEMA_HASH");
    for base in bases(interface) {
        if let Base::Opaque(c) = base {
            expression = format!(
                "\\\n    ((({expression}) ^ (sizeof({c}) * 64 + _Alignof({c}))) * UINT64_C(0x100000001b3))"
            );
        }
    }
    code.line(format!("#define {upper}_LAYOUT_HASH ({expression})"));
    code.line("");
}

fn types(code: &mut Code, interface: &Interface) {
    code.line("_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, \"messages are little endian\");");
    code.line("_Static_assert(sizeof(void *) == 8, \"sizes are 64 bits\");");
    for base in bases(interface) {
        match base {
            Base::Void => {}
            Base::Scalar(scalar) => {
                let (c, bytes) = (scalar.c, scalar.bytes);
                let class = match scalar.class {
                    crate::types::Class::Signed if c != "char" => format!(" && ({c})-1 < ({c})1"),
                    crate::types::Class::Unsigned => format!(" && ({c})-1 > ({c})1"),
                    _ => String::new(),
                };
                code.line(format!(
                    "_Static_assert(sizeof({c}) == {bytes}{class}, \"{c} is not what travels\");"
                ));
            }
            Base::Enum(c) => {
                code.line(format!("_Static_assert(sizeof({c}) == 4, \"{c} travels as 32 bits\");"));
            }
            Base::Opaque(c) => {
                code.line(format!(
                    "_Static_assert(_Alignof({c}) <= 8, \"{c} is aligned beyond what messages keep\");"
                ));
                code.line(format!(
                    "_Static_assert(__builtin_classify_type(*({c} *)8) != 5, \"{c} is a pointer: it means \
                     nothing at the far end\");"
                ));
            }
        }
    }
}

fn function_part(code: &mut Code, name: &str, index: usize, function: &Function) {
    let f = &function.name;
    code.line("");
    code.line(format!("/* {index}: {} */", function.prototype(f, "")));
    code.line(format!("#define {}_F_{f} UINT32_C({index})", name.to_uppercase()));
    code.line(format!(
        "_Static_assert(__builtin_types_compatible_p(__typeof__({f}), {}),",
        function.function_type()
    ));
    code.line(format!("               \"the header changed or was misread: generate again ({f})\");"));
    structure(code, &format!("{name}_{f}_request"), &layout::request(function));
    if !function.oneway {
        structure(code, &format!("{name}_{f}_reply"), &layout::reply(function));
    }
    if function
        .params
        .iter()
        .any(|param| param.userbuf && param.shape == Shape::Arr && param.direction.is_in())
    {
        code.line(format!(
            "/* The plug-in's: memory for the input of {f}, before it arrives; NULL refuses the call. */"
        ));
        code.line(format!("void *{f}_allocate_cb(uint64_t bytes);"));
        code.line(
            "/* The plug-in's, if it has one: that memory, when the call ends before the function runs. */",
        );
        code.line(format!("void {f}_release_cb(void *buffer, int32_t status);"));
    }
}

fn structure(code: &mut Code, name: &str, layout: &Layout) {
    code.line(format!("struct {name} {{"));
    for (_, field) in &layout.known {
        let field_name = &field.name;
        code.line(match &field.content {
            Content::Number(c, _) => format!("{c} {field_name};"),
            Content::Span => format!("struct zazen_span {field_name};"),
            Content::Padding(bytes) => format!("uint8_t {field_name}[{bytes}];"),
            Content::Opaque(c) => format!("{c} {field_name};"),
        });
    }
    for field in &layout.opaque {
        if let Content::Opaque(c) = &field.content {
            code.line(format!("uint64_t {}[(sizeof({c}) + 7) / 8];", field.name));
        }
    }
    code.line("};");
    for (offset, field) in &layout.known {
        code.line(format!(
            "_Static_assert(offsetof(struct {name}, {}) == {offset}, \"offset\");",
            field.name
        ));
    }
    let mut bytes = layout.known_bytes.to_string();
    for field in &layout.opaque {
        if let Content::Opaque(c) = &field.content {
            bytes.push_str(&format!(" + (sizeof({c}) + 7) / 8 * 8"));
        }
    }
    code.line(format!("_Static_assert(sizeof(struct {name}) == {bytes}, \"size\");"));
    code.line(format!(
        "_Static_assert(sizeof(struct {name}) <= ZAZEN_FIXED_BYTES_MAX, \"too large for ptr or obj: pass it \
         as arr\");"
    ));
}
