//! What all written files share: indented lines, the banner.

use crate::model::Interface;
use std::fmt::Write;

/// Source text that is being written. Braces set the depth.
#[derive(Default)]
pub(crate) struct Code {
    text: String,
    depth: usize,
}

impl Code {
    /// Goes on after `text`.
    pub(crate) fn after(text: String) -> Code {
        Code { text, depth: 0 }
    }

    /// Writes a line. A line that begins with `}` is one level further out, one that ends with `{`
    /// opens a level, and labels are not indented.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        if line.starts_with('}') {
            self.depth = self.depth.saturating_sub(1);
        }
        let depth = if line.starts_with('#') || line == "done:" { 0 } else { self.depth };
        if line.is_empty() {
            self.text.push('\n');
        } else {
            // Writing to a String can't fail.
            let _ = writeln!(self.text, "{:width$}{line}", "", width = depth * 4);
        }
        if line.ends_with('{') {
            self.depth += 1;
        }
    }

    /// Several lines.
    pub(crate) fn lines(&mut self, lines: &str) {
        for line in lines.lines() {
            self.line(line.trim_start());
        }
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

/// `text` escaped for a C string literal. This is right for JSON too, except for bytes that JSON
/// cannot express.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            '\n' => quoted.push_str("\\n"),
            c => quoted.push(c),
        }
    }
    quoted
}

/// One generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name, without a folder.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// The first lines of a generated C file.
pub(super) fn banner(interface: &Interface, file: &str, what: &str) -> String {
    let header = &interface.file_name;
    format!(
        "/* {file}: {what}.\n *\n * Generated from {header} by `zazen plugin generate`: do not edit; edit \
         {header}.\n */\n"
    )
}
