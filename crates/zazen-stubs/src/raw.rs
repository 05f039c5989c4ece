//! Prototypes as written, before they are checked.

use crate::annotation::{Annotation, FunctionWords};
use crate::diagnostic::SourceSpan;
use crate::model::Type;

/// A parameter as written.
#[derive(Debug)]
pub(crate) struct RawParam {
    pub(crate) name: Option<String>,
    pub(crate) ty: Type,
    pub(crate) annotation: Option<Annotation>,
    /// A mistake in this parameter has been reported. A second report about what is missing would
    /// only confuse.
    pub(crate) broken: bool,
    pub(crate) place: SourceSpan,
}

/// A prototype as written.
#[derive(Debug)]
pub(crate) struct RawFunction {
    pub(crate) name: String,
    pub(crate) name_place: SourceSpan,
    pub(crate) result: Type,
    pub(crate) params: Vec<RawParam>,
    pub(crate) words: FunctionWords,
    pub(crate) line: usize,
}
