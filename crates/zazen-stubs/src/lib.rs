//! The stub generator: an annotated C header in, files of C, Rust, Python and documentation out.
//!
//! The annotations are those of ZOID (PPoPP'08, §2.2 and Figure 3; docs/plugins.md is the
//! reference), with compatible extensions. The parser reads the comments that a preprocessor would
//! throw away, so it reads the header as written and is strict about it; what it can't see (sizes
//! of structs, what a typedef hides, macros) the generated code makes the C compiler check: a
//! misparse is a compile error, never a wrong call.
//!
//! Invariants: the generator turns text into text and touches nothing else. The same header gives
//! the same bytes on every machine. Every mistake of a header is reported, not only the first, each
//! with its place and a remedy.

mod annotation;
mod check;
mod diagnostic;
mod emit;
mod layout;
mod lex;
mod marker;
mod model;
mod parse;
mod raw;
mod types;

pub use diagnostic::{Diagnostic, Severity};
pub use emit::File;

/// The largest header, in bytes.
pub const HEADER_BYTES_MAX: usize = 1 << 20;

/// What a header was turned into.
#[derive(Clone, Debug)]
pub struct Output {
    /// The plug-in's name: the header's, without its extension, as a C identifier.
    pub name: String,
    /// The plug-in's number (`ID=`).
    pub id: u32,
    /// How many functions are forwarded.
    pub functions: usize,
    /// Of the prototypes and annotations; both ends of a call must have the same.
    pub schema_hash: u64,
    /// The files, in the order of their names.
    pub files: Vec<File>,
    /// What is suspicious, but was generated all the same.
    pub warnings: Vec<Diagnostic>,
}

/// Generates everything for the header `text`, which its users include as `file_name` (no folder).
///
/// Fails with all mistakes found, in the order of their places; never panics, whatever `text` is.
pub fn generate(file_name: &str, text: &str) -> Result<Output, Vec<Diagnostic>> {
    let mut diagnostics = diagnostic::Diagnostics::new(file_name, text);
    // The output is some hundred times as large as the header, and must fit into memory.
    if text.len() > HEADER_BYTES_MAX {
        let what = format!("the header has {} bytes, the limit is {HEADER_BYTES_MAX}", text.len());
        diagnostics.error(
            diagnostic::SourceSpan { start: 0, end: 0 },
            what,
            "split it into several plug-ins",
        );
        return Err(diagnostics.into_parts().0);
    }
    let interface = parse::parse(file_name, text, &mut diagnostics);
    let (errors, warnings) = diagnostics.into_parts();
    let interface = match interface {
        Some(interface) if errors.is_empty() => interface,
        _ => return Err(errors),
    };
    let schema_hash = emit::schema_hash(&interface);
    Ok(Output {
        files: emit::files(&interface, schema_hash),
        schema_hash,
        functions: interface.functions.len(),
        id: interface.marker.id,
        name: interface.name,
        warnings,
    })
}
