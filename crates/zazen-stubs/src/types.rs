//! The C types that can travel, and those that are refused, with a reason.

/// A scalar as it lies in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scalar {
    /// As written in C.
    pub(crate) c: &'static str,
    /// In a message: a C type of fixed width.
    pub(crate) wire: &'static str,
    /// In bytes; also its alignment.
    pub(crate) bytes: u64,
    /// What it is.
    pub(crate) class: Class,
    /// In Rust.
    pub(crate) rust: &'static str,
    /// In Python's ctypes.
    pub(crate) ctypes: &'static str,
}

/// What kind of number a scalar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Signed,
    Unsigned,
    Float,
    Bool,
}

impl Scalar {
    pub(crate) fn is_integer(&self) -> bool {
        matches!(self.class, Class::Signed | Class::Unsigned)
    }
}

const fn scalar(c: &'static str, wire: &'static str, bytes: u64, class: Class) -> Scalar {
    let (rust, ctypes) = match (class, bytes) {
        (Class::Bool, _) => ("bool", "c_bool"),
        (Class::Float, 4) => ("f32", "c_float"),
        (Class::Float, _) => ("f64", "c_double"),
        (Class::Signed, 1) => ("i8", "c_int8"),
        (Class::Signed, 2) => ("i16", "c_int16"),
        (Class::Signed, 4) => ("i32", "c_int32"),
        (Class::Signed, _) => ("i64", "c_int64"),
        (Class::Unsigned, 1) => ("u8", "c_uint8"),
        (Class::Unsigned, 2) => ("u16", "c_uint16"),
        (Class::Unsigned, 4) => ("u32", "c_uint32"),
        (Class::Unsigned, _) => ("u64", "c_uint64"),
    };
    Scalar { c, wire, bytes, class, rust, ctypes }
}

const I: Class = Class::Signed;
const U: Class = Class::Unsigned;

/// Scalars that have one name; the built-in ones with several words are put together by
/// [`builtin`].
const NAMED: &[Scalar] = &[
    scalar("int8_t", "int8_t", 1, I),
    scalar("int16_t", "int16_t", 2, I),
    scalar("int32_t", "int32_t", 4, I),
    scalar("int64_t", "int64_t", 8, I),
    scalar("uint8_t", "uint8_t", 1, U),
    scalar("uint16_t", "uint16_t", 2, U),
    scalar("uint32_t", "uint32_t", 4, U),
    scalar("uint64_t", "uint64_t", 8, U),
    scalar("size_t", "uint64_t", 8, U),
    scalar("ssize_t", "int64_t", 8, I),
    scalar("ptrdiff_t", "int64_t", 8, I),
    scalar("off_t", "int64_t", 8, I),
    scalar("off64_t", "int64_t", 8, I),
    scalar("loff_t", "int64_t", 8, I),
    scalar("time_t", "int64_t", 8, I),
    scalar("mode_t", "uint32_t", 4, U),
    scalar("pid_t", "int32_t", 4, I),
    scalar("uid_t", "uint32_t", 4, U),
    scalar("gid_t", "uint32_t", 4, U),
    scalar("id_t", "uint32_t", 4, U),
    scalar("dev_t", "uint64_t", 8, U),
    scalar("ino_t", "uint64_t", 8, U),
    scalar("ino64_t", "uint64_t", 8, U),
    scalar("socklen_t", "uint32_t", 4, U),
    scalar("sa_family_t", "uint16_t", 2, U),
    scalar("in_port_t", "uint16_t", 2, U),
    scalar("in_addr_t", "uint32_t", 4, U),
    scalar("nfds_t", "uint64_t", 8, U),
    scalar("bool", "uint8_t", 1, Class::Bool),
];

/// The scalar of this name.
pub(crate) fn named(name: &str) -> Option<Scalar> {
    NAMED.iter().find(|scalar| scalar.c == name).copied()
}

/// Words that make up built-in types.
pub(crate) const BUILTIN_WORDS: &[&str] =
    &["void", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "_Bool", "_Complex"];

/// The built-in type of these words: `None` for `void`; a reason and a remedy for one that can't
/// travel.
pub(crate) fn builtin(words: &[&str]) -> Result<Option<Scalar>, (String, &'static str)> {
    let count = |word: &str| words.iter().filter(|found| **found == word).count();
    let mut sorted: Vec<&str> = words.to_vec();
    sorted.sort_unstable();
    let found = match sorted.as_slice() {
        ["void"] => return Ok(None),
        ["char"] => scalar("char", "int8_t", 1, I),
        ["char", "signed"] => scalar("signed char", "int8_t", 1, I),
        ["char", "unsigned"] => scalar("unsigned char", "uint8_t", 1, U),
        ["short"] | ["int", "short"] | ["short", "signed"] | ["int", "short", "signed"] => {
            scalar("short", "int16_t", 2, I)
        }
        ["short", "unsigned"] | ["int", "short", "unsigned"] => scalar("unsigned short", "uint16_t", 2, U),
        ["int"] | ["signed"] | ["int", "signed"] => scalar("int", "int32_t", 4, I),
        ["unsigned"] | ["int", "unsigned"] => scalar("unsigned int", "uint32_t", 4, U),
        ["float"] => scalar("float", "float", 4, Class::Float),
        ["double"] => scalar("double", "double", 8, Class::Float),
        ["_Bool"] => scalar("_Bool", "uint8_t", 1, Class::Bool),
        ["double", "long"] => {
            return Err(("`long double` differs between machines".into(), "use double"));
        }
        _ if count("_Complex") > 0 => {
            return Err(("complex numbers are not understood".into(), "pass an array of float or double"));
        }
        _ if count("long") == 2 && count("unsigned") == 0 && only(words, &["long", "int", "signed"]) => {
            scalar("long long", "int64_t", 8, I)
        }
        _ if count("long") == 2 && only(words, &["long", "int", "unsigned"]) => {
            scalar("unsigned long long", "uint64_t", 8, U)
        }
        _ if count("long") == 1 && only(words, &["long", "int", "signed", "unsigned"]) => {
            return Err((
                "`long` has 4 bytes on some machines and 8 on others".into(),
                "use int64_t or uint64_t (or int32_t)",
            ));
        }
        _ => return Err((format!("`{}` is no type", words.join(" ")), "use one of C's types")),
    };
    Ok(Some(found))
}

fn only(words: &[&str], allowed: &[&str]) -> bool {
    words.iter().all(|word| allowed.contains(word))
}

/// Why a typedef of the C library can't travel, and what to use instead.
pub(crate) fn refused(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "intptr_t" | "uintptr_t" => {
            ("an address means nothing at the far end", "pass a number, or what it points to")
        }
        "FILE" | "DIR" | "pthread_t" | "va_list" | "jmp_buf" => {
            ("it lives in one process only", "pass a number that the plug-in gives out (option handle)")
        }
        "wchar_t" | "wint_t" => ("it differs between machines", "use uint32_t"),
        "intmax_t" | "uintmax_t" => ("its size is not fixed", "use int64_t or uint64_t"),
        "fd_set" => ("its size depends on a macro", "pass an array of descriptors"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_any_order_make_the_type() {
        let check = |words: &str, expected: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            assert_eq!(builtin(&words).unwrap().unwrap().c, expected, "{words:?}");
        };
        check("unsigned", "unsigned int");
        check("int unsigned", "unsigned int");
        check("long int long", "long long");
        check("unsigned long long", "unsigned long long");
        check("long unsigned long int", "unsigned long long");
        check("int short", "short");
        check("char", "char");
        assert_eq!(builtin(&["void"]), Ok(None));
    }

    #[test]
    fn what_differs_between_machines_is_refused() {
        for words in
            ["long", "unsigned long", "long int", "long double", "float _Complex", "int int", "char long"]
        {
            let words: Vec<&str> = words.split(' ').collect();
            assert!(builtin(&words).is_err(), "{words:?}");
        }
    }
}
