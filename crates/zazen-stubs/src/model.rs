//! The content of a header that passed all checks.

use crate::diagnostic::SourceSpan;
use crate::marker::Marker;
use crate::types::Scalar;

/// A header: its marker and its functions, in the order in which they are numbered.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    /// As a C identifier.
    pub(crate) name: String,
    /// As its users include it.
    pub(crate) file_name: String,
    pub(crate) marker: Marker,
    pub(crate) functions: Vec<Function>,
}

/// What a type is made of, apart from pointers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Base {
    Void,
    Scalar(Scalar),
    /// A struct, union or typedef. Its bytes travel; only the compiler knows its size.
    Opaque(String),
    /// An enumeration: travels as 32 bits.
    Enum(String),
}

/// A type as declared.
#[derive(Clone, Debug)]
pub(crate) struct Type {
    pub(crate) base: Base,
    pub(crate) base_const: bool,
    /// One entry a level, the innermost first: whether a `const` follows the `*`. Includes that of
    /// `[]`.
    pub(crate) pointers: Vec<bool>,
    /// The number of a declarator `[N]`.
    pub(crate) array: Option<u64>,
}

impl Base {
    /// As written in C.
    pub(crate) fn c(&self) -> &str {
        match self {
            Base::Void => "void",
            Base::Scalar(scalar) => scalar.c,
            Base::Opaque(name) | Base::Enum(name) => name,
        }
    }

    /// What `sizeof` has to be taken of for one element; an element of `void` is a byte.
    pub(crate) fn element(&self) -> &str {
        if *self == Base::Void { "unsigned char" } else { self.c() }
    }

    pub(crate) fn integer(&self) -> Option<Scalar> {
        match self {
            Base::Scalar(scalar) if scalar.is_integer() => Some(*scalar),
            _ => None,
        }
    }
}

impl Type {
    /// As written in C, arrays as pointers.
    pub(crate) fn c(&self) -> String {
        let mut text = String::new();
        if self.base_const {
            text.push_str("const ");
        }
        text.push_str(self.base.c());
        for (level, constant) in self.pointers.iter().enumerate() {
            text.push_str(if level == 0 { " *" } else { "*" });
            if *constant {
                text.push_str("const ");
            }
        }
        text.trim_end().to_owned()
    }

    /// A declaration of `name` as this type.
    pub(crate) fn declare(&self, name: &str) -> String {
        if let Some(count) = self.array {
            // Compilers compare the bounds of two declarations of a function.
            let mut element = self.clone();
            element.array = None;
            element.pointers.pop();
            return element.declare(&format!("{name}[{count}]"));
        }
        let text = self.c();
        if text.ends_with('*') { format!("{text}{name}") } else { format!("{text} {name}") }
    }
}

/// Which way an argument goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
    InOut,
}

impl Direction {
    pub(crate) fn is_in(self) -> bool {
        self != Direction::Out
    }

    pub(crate) fn is_out(self) -> bool {
        self != Direction::In
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::InOut => "inout",
        }
    }
}

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// By value.
    Obj,
    /// A pointer to one object.
    Ptr,
    /// A NUL-terminated string.
    Str,
    /// An array.
    Arr,
    /// An array of pointers to lines.
    Arr2d,
}

impl Shape {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Shape::Obj => "obj",
            Shape::Ptr => "ptr",
            Shape::Str => "str",
            Shape::Arr => "arr",
            Shape::Arr2d => "arr2d",
        }
    }
}

/// How many elements an array, or a string's buffer, has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// No number: an object, or a string that its NUL ends.
    None,
    /// The value of this argument (for arr2d: an array with the length of each line).
    Argument(usize),
    /// Always this number.
    Fixed(u64),
}

/// One argument.
#[derive(Clone, Debug)]
pub(crate) struct Param {
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) direction: Direction,
    pub(crate) shape: Shape,
    pub(crate) size: Size,
    pub(crate) max: Option<u64>,
    pub(crate) nullok: bool,
    pub(crate) zerocopy: bool,
    pub(crate) userbuf: bool,
    /// The kind of handle that this number is.
    pub(crate) handle: Option<String>,
    /// The handle ends with this call.
    pub(crate) close: bool,
    /// A file descriptor.
    pub(crate) fd: bool,
    pub(crate) annotation_place: SourceSpan,
}

impl Param {
    /// The scalar or enum that a value of this argument is, or `None` for opaque bytes.
    pub(crate) fn is_opaque(&self) -> bool {
        matches!(self.ty.base, Base::Opaque(_))
    }

    /// Whether it lies in the tail of a message in this direction.
    pub(crate) fn in_tail(&self) -> bool {
        match self.shape {
            Shape::Str => true,
            Shape::Arr | Shape::Arr2d => !self.zerocopy,
            Shape::Obj | Shape::Ptr => false,
        }
    }

    /// The annotation in its full form.
    pub(crate) fn annotation(&self, index: usize) -> String {
        let mut text = format!("{}:{}", self.direction.word(), self.shape.word());
        if let Size::Argument(target) = self.size {
            text.push_str(&format!(":size={:+}", target as i64 - index as i64));
        }
        if let Some(max) = self.max {
            text.push_str(&format!(":max={max}"));
        }
        for (set, word) in
            [(self.nullok, "nullok"), (self.zerocopy, "zerocopy"), (self.userbuf, "userbuf"), (self.fd, "fd")]
        {
            if set {
                text.push_str(&format!(":{word}"));
            }
        }
        if let Some(kind) = &self.handle {
            text.push_str(&format!(":handle={kind}"));
        }
        if self.close {
            text.push_str(":close");
        }
        text
    }
}

/// One forwarded function.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) result: Type,
    pub(crate) params: Vec<Param>,
    pub(crate) errno: bool,
    pub(crate) blocking: bool,
    pub(crate) oneway: bool,
    pub(crate) idempotent: bool,
    /// The result is a handle of this kind where it isn't negative.
    pub(crate) handle: Option<String>,
    /// The result is a descriptor where it isn't negative.
    pub(crate) fd: bool,
    pub(crate) place: SourceSpan,
}

impl Function {
    pub(crate) fn returns(&self) -> bool {
        self.result.base != Base::Void
    }

    /// The prototype on one line, with names.
    pub(crate) fn prototype(&self, name: &str, prefix: &str) -> String {
        let params: Vec<String> =
            self.params.iter().map(|param| param.ty.declare(&format!("{prefix}{}", param.name))).collect();
        let params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
        self.result.declare(&format!("{name}({params})"))
    }

    /// The function's type, for comparing.
    pub(crate) fn function_type(&self) -> String {
        let params: Vec<String> = self.params.iter().map(|param| param.ty.c()).collect();
        let params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
        format!("{} ({params})", self.result.c())
    }

    /// The words that describe the function as a whole.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = [
            (self.errno, "errno"),
            (self.blocking, "blocking"),
            (self.oneway, "oneway"),
            (self.idempotent, "idempotent"),
            (self.fd, "fd"),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .map(|(_, word)| word.to_owned())
        .collect();
        words.extend(self.handle.iter().map(|kind| format!("handle={kind}")));
        words
    }

    /// The arguments whose bytes are in the tail of a message, those of one dimension first: the
    /// lengths of an arr2d's lines must be known before its lines.
    pub(crate) fn tail(&self, is: fn(Direction) -> bool) -> impl Iterator<Item = (usize, &Param)> {
        self.in_two_passes(move |param| param.in_tail() && is(param.direction))
    }

    /// The arguments that are segments, in the order of the segments.
    pub(crate) fn segments(&self, is: fn(Direction) -> bool) -> impl Iterator<Item = (usize, &Param)> {
        self.in_two_passes(move |param| param.zerocopy && is(param.direction))
    }

    fn in_two_passes<F: Fn(&Param) -> bool + Copy>(&self, keep: F) -> impl Iterator<Item = (usize, &Param)> {
        let pass = move |lines: bool| {
            self.params
                .iter()
                .enumerate()
                .filter(move |(_, param)| (param.shape == Shape::Arr2d) == lines && keep(param))
        };
        pass(false).chain(pass(true))
    }

    pub(crate) fn has_lines(&self) -> bool {
        self.params.iter().any(|param| param.shape == Shape::Arr2d)
    }
}
