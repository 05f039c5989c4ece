//! `NAME.md`: what can be called, in tables.

use crate::model::{Function, Interface, Param, Shape, Size};
use std::fmt::Write;

pub(crate) fn text(interface: &Interface) -> String {
    let mut text = format!(
        "# {}\n\nPlug-in {}, generated from `{}`. Functions are numbered in the header's order.\n\n",
        interface.name, interface.marker.id, interface.file_name
    );
    text.push_str("| | function | |\n|---|---|---|\n");
    for (index, function) in interface.functions.iter().enumerate() {
        // Writing to a String can't fail.
        let _ =
            writeln!(text, "| {index} | [`{0}`](#{0}) | {1} |", function.name, function.words().join(", "));
    }
    for function in &interface.functions {
        describe(&mut text, function);
    }
    text
}

fn describe(text: &mut String, function: &Function) {
    let _ =
        write!(text, "\n## {}\n\n```c\n{};\n```\n", function.name, function.prototype(&function.name, ""));
    let mut remarks: Vec<String> = [
        (function.errno, "`errno` is the function's own."),
        (function.blocking, "It may block for long."),
        (function.oneway, "The caller does not wait: whether it worked is not known."),
        (function.idempotent, "Running it twice does what running it once does: it may be sent again."),
        (function.fd, "A result that isn't negative is an open descriptor, the caller's to close."),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .map(|(_, remark)| remark.to_owned())
    .collect();
    if let Some(kind) = &function.handle {
        remarks.push(format!("A result that isn't negative is a handle of kind `{kind}`."));
    }
    if !remarks.is_empty() {
        let _ = write!(text, "\n{}\n", remarks.join(" "));
    }
    if function.params.is_empty() {
        return;
    }
    text.push_str("\n| argument | | |\n|---|---|---|\n");
    for (index, param) in function.params.iter().enumerate() {
        let (name, annotation) = (&param.name, param.annotation(index));
        let _ = writeln!(text, "| `{name}` | `{annotation}` | {} |", explain(function, param));
    }
}

fn explain(function: &Function, param: &Param) -> String {
    let c = param.ty.base.c();
    let unit = if c == "void" { "bytes".to_owned() } else { format!("elements of `{c}`") };
    let mut words = match param.shape {
        Shape::Obj => format!("`{c}`"),
        Shape::Ptr => format!("one `{c}`"),
        Shape::Str => "a string".to_owned(),
        Shape::Arr => match param.size {
            Size::Fixed(count) => format!("{count} {unit}"),
            _ => unit,
        },
        Shape::Arr2d => format!("lines of {unit}"),
    };
    if let Size::Argument(target) = param.size {
        let target = &function.params[target].name;
        words.push_str(&match param.shape {
            Shape::Arr2d => format!("; `{target}` holds each line's length"),
            _ => format!("; `{target}` says how many"),
        });
    }
    if let Some(max) = param.max {
        let _ = write!(words, "; at most {max}");
    }
    for (set, remark) in [
        (param.nullok, "may be NULL"),
        (param.zerocopy, "not copied where the transport can help it"),
        (param.userbuf, "in the plug-in's own buffer at the far end"),
        (param.fd, "an open descriptor"),
        (param.close, "it ends with this call"),
    ] {
        if set {
            let _ = write!(words, "; {remark}");
        }
    }
    if let Some(kind) = &param.handle {
        let _ = write!(words, "; a handle of kind `{kind}`");
    }
    words
}
