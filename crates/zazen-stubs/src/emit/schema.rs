//! `NAME_schema.json`: the interface for tools, and the hash that both ends compare when they meet.

use super::code::quote;
use crate::layout::{self, Content, Layout};
use crate::model::{Base, Function, Interface, Param, Size};
use std::fmt::Write;

/// FNV-1a over the schema without its hash. It shows that two headers differ by mistake; it does
/// not protect against malice.
pub(crate) fn schema_hash(interface: &Interface) -> u64 {
    let text = json(interface, 0);
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The schema. Its content decides the hash; the header's wording does not.
pub(crate) fn json(interface: &Interface, hash: u64) -> String {
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = write!(
        text,
        "{{\n  \"schema\": 1,\n  \"name\": \"{}\",\n  \"id\": {},\n  \"schema_hash\": \"{hash:016x}\",\n  \
         \"functions\": [\n",
        interface.name, interface.marker.id
    );
    let functions: Vec<String> =
        interface.functions.iter().enumerate().map(|(index, function)| describe(index, function)).collect();
    let _ = writeln!(text, "{}\n  ]\n}}", functions.join(",\n"));
    text
}

fn describe(index: usize, function: &Function) -> String {
    let words: Vec<String> = function.words().iter().map(|word| format!("\"{word}\"")).collect();
    let params: Vec<String> =
        function.params.iter().enumerate().map(|(index, param)| parameter(index, param)).collect();
    let params = match params.is_empty() {
        true => "[]".to_owned(),
        false => format!("[\n{}\n      ]", params.join(",\n")),
    };
    let reply = match function.oneway {
        true => "null".to_owned(),
        false => layout_json(&layout::reply(function)),
    };
    format!(
        "    {{\n      \"index\": {index},\n      \"name\": \"{}\",\n      \"result\": \"{}\",\n      \
         \"words\": [{}],\n      \"params\": {params},\n      \"request\": {},\n      \"reply\": {reply}\n    \
         }}",
        function.name,
        quote(&function.result.c()),
        words.join(", "),
        layout_json(&layout::request(function)),
    )
}

fn parameter(index: usize, param: &Param) -> String {
    let mut text = format!(
        "        {{\"name\": \"{}\", \"type\": \"{}\", \"annotation\": \"{}\"",
        param.name,
        quote(&param.ty.c()),
        param.annotation(index)
    );
    if let Size::Fixed(count) = param.size {
        let _ = write!(text, ", \"count\": {count}");
    }
    if let Base::Opaque(c) = &param.ty.base {
        let _ = write!(text, ", \"opaque\": \"{c}\"");
    }
    text.push('}');
    text
}

/// The fields of a fixed part: (name, type, offset); offsets of opaque bytes are the compiler's.
fn layout_json(layout: &Layout) -> String {
    let known = layout.known.iter().filter_map(|(offset, field)| {
        let c = match &field.content {
            Content::Number(c, _) => c,
            Content::Span => "span",
            Content::Padding(_) | Content::Opaque(_) => return None,
        };
        Some(format!("[\"{}\", \"{c}\", {offset}]", field.name))
    });
    let opaque = layout.opaque.iter().filter_map(|field| match &field.content {
        Content::Opaque(c) => Some(format!("[\"{}\", \"{c}\", null]", field.name)),
        _ => None,
    });
    format!("[{}]", known.chain(opaque).collect::<Vec<_>>().join(", "))
}
