//! Turns the tokens of a header's scanned part into prototypes.
//!
//! After a mistake the parser goes on at the next parameter or declaration, so that one run reports
//! them all.

use crate::annotation::{self, Comment, FunctionWords};
use crate::check;
use crate::diagnostic::{Diagnostics, SourceSpan};
use crate::lex::{self, Kind, Token};
use crate::marker::{self, Marker};
use crate::model::{Base, Interface, Type};
use crate::raw::{RawFunction, RawParam};
use crate::types;

/// Reads a header; `None` if nothing can be said about it at all.
pub(crate) fn parse(file_name: &str, text: &str, diagnostics: &mut Diagnostics<'_>) -> Option<Interface> {
    let (marker, from) = marker::find(text, diagnostics)?;
    let tokens = lex::tokens(text, from, diagnostics);
    let mut parser =
        Parser { text, tokens: &tokens, at: 0, marker: &marker, diagnostics, functions: Vec::new() };
    parser.header();
    let functions = parser.functions;
    if functions.is_empty() && diagnostics.error_count() == 0 {
        let place = SourceSpan { start: from, end: from + 1 };
        diagnostics.error(
            place,
            "no prototype follows the START marker",
            "put it before the first prototype",
        );
    }
    let functions = check::functions(functions, diagnostics);
    let name = interface_name(file_name);
    Some(Interface { name, file_name: file_name.to_owned(), marker, functions })
}

/// The header's name as a C identifier.
fn interface_name(file_name: &str) -> String {
    let stem = file_name.rsplit_once('.').map_or(file_name, |(stem, _)| stem);
    let mut name: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    name
}

struct Parser<'a, 'd, 't> {
    text: &'t str,
    tokens: &'a [Token<'t>],
    at: usize,
    marker: &'a Marker,
    diagnostics: &'a mut Diagnostics<'d>,
    functions: Vec<RawFunction>,
}

impl<'t> Parser<'_, '_, 't> {
    fn peek(&self) -> Token<'t> {
        self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Token<'t> {
        let token = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    /// The next token that isn't a comment, without taking anything.
    fn peek_code(&self) -> Token<'t> {
        let rest = &self.tokens[self.at.min(self.tokens.len() - 1)..];
        rest.iter().find(|token| !token.is_comment()).copied().unwrap_or(self.tokens[self.tokens.len() - 1])
    }

    fn header(&mut self) {
        let mut comments: Vec<Token<'t>> = Vec::new();
        // `}` of an extern "C" that was opened before the marker, and #endif of the include guard.
        loop {
            let token = self.take();
            match token.kind {
                Kind::End => break,
                Kind::Comment | Kind::LineComment if marker::is_end(token.comment_text()) => break,
                Kind::Comment | Kind::LineComment => {
                    if marker::is_start(token.comment_text()) {
                        self.diagnostics.error(token.place, "a second START marker", "keep one a header");
                    }
                    comments.push(token);
                }
                Kind::Directive => {
                    comments.clear();
                    self.directive(token);
                }
                _ if token.is(";") || token.is("}") => comments.clear(),
                _ => {
                    self.at -= 1;
                    self.declaration(&comments);
                    comments.clear();
                }
            }
        }
    }

    fn directive(&mut self, token: Token<'t>) {
        let line = token.text.trim_start_matches('#').trim();
        let word: String = line.chars().take_while(|c| c.is_ascii_alphabetic()).collect();
        let is_cplusplus = ["ifdef __cplusplus", "if defined(__cplusplus)", "if defined __cplusplus"]
            .iter()
            .any(|form| line.split_whitespace().collect::<Vec<_>>().join(" ") == *form);
        if is_cplusplus {
            // Code for C++ only is not part of the C interface. It is skipped up to its #else or
            // #endif.
            while !matches!(self.peek().kind, Kind::End) {
                let next = self.take();
                let inner = next.text.trim_start_matches('#').trim();
                if next.kind == Kind::Directive && (inner.starts_with("endif") || inner.starts_with("else")) {
                    break;
                }
            }
        } else if ["if", "ifdef", "ifndef", "elif", "else"].contains(&word.as_str()) {
            self.diagnostics.error(
                token.place,
                format!("#{word} in the scanned part: the generator can't know which branch is compiled"),
                "move it before the START marker, or end the scanned part with /* END-ZAZEN-SCANNER */",
            );
        }
    }

    /// One declaration: a prototype, or a type, which is skipped.
    fn declaration(&mut self, comments: &[Token<'t>]) {
        let first = self.peek();
        if first.is("typedef") {
            return self.skip_declaration();
        }
        if first.is("extern") {
            self.take();
            if self.peek_code().kind == Kind::Literal {
                // extern "C" { … }: the brace that closes it is skipped like any other.
                while !(self.peek().is("{") || self.peek().is(";") || self.peek().kind == Kind::End) {
                    if self.peek_code().kind == Kind::Word {
                        return;
                    }
                    self.take();
                }
                self.take();
                return;
            }
        }
        if self.is_type_definition() {
            return self.skip_declaration();
        }
        if let Some(function) = self.prototype(comments)
            && !self.marker.hooks().any(|hook| hook == function.name)
        {
            self.functions.push(function);
        }
    }

    /// `struct X { …`, `struct X;`, `enum …`: of no interest here.
    fn is_type_definition(&self) -> bool {
        if !["struct", "union", "enum"].iter().any(|word| self.peek().is(word)) {
            return false;
        }
        let code = self.tokens[self.at..].iter().filter(|token| !token.is_comment());
        let mut code = code.skip(1).skip_while(|token| token.kind == Kind::Word);
        code.next().is_some_and(|token| token.is("{") || token.is(";"))
    }

    /// Goes behind the `;` (or the body) that ends a declaration.
    fn skip_declaration(&mut self) {
        let mut depth = 0i64;
        loop {
            let token = self.take();
            match token.text {
                _ if token.kind == Kind::End => return,
                _ if token.kind == Kind::Directive && depth == 0 => {
                    self.at -= 1;
                    return;
                }
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" if depth > 0 => {
                    depth -= 1;
                    let body_ends = token.text == "}" && depth == 0;
                    // No `;` follows a function's body; one follows a struct's.
                    if body_ends && !self.peek_code().is(";") && self.peek_code().kind != Kind::Word {
                        return;
                    }
                }
                ";" if depth <= 0 => return,
                _ => {}
            }
        }
    }

    fn prototype(&mut self, comments: &[Token<'t>]) -> Option<RawFunction> {
        let start = self.peek().place;
        for word in ["static", "inline", "_Noreturn", "__inline", "register"] {
            if self.peek().is(word) {
                let message = format!("`{word}` in the scanned part: such a function can't be forwarded");
                self.diagnostics.error(start, message, "move it before the START marker");
                self.skip_declaration();
                return None;
            }
        }
        let mut words = FunctionWords::new();
        // Only the comment that stands right before the prototype is about it.
        if let Some(comment) = comments.last() {
            words.extend(annotation::of_function(comment, false, self.diagnostics));
        }
        let mut result = self.specifiers(&mut |parser, comment| {
            words.extend(annotation::of_function(&comment, true, parser.diagnostics));
        });
        while let Some(token) = self.pointer_part() {
            match token.text {
                "*" => result.as_mut().ok().into_iter().for_each(|ty| ty.pointers.push(false)),
                _ if token.is_comment() => {
                    words.extend(annotation::of_function(&token, true, self.diagnostics))
                }
                _ => {}
            }
        }
        let name = self.peek();
        if name.kind != Kind::Word {
            self.not_a_prototype(name);
            return None;
        }
        self.take();
        if !self.peek_code().is("(") {
            self.not_a_prototype(self.peek_code());
            return None;
        }
        self.past_comments();
        self.take();
        let params = self.params();
        while !matches!(self.peek().kind, Kind::End) && !self.peek().is(";") {
            let token = self.take();
            if token.kind == Kind::Comment {
                words.extend(annotation::of_function(&token, true, self.diagnostics));
            } else if token.is("{") {
                self.diagnostics.error(
                    name.place,
                    format!("`{}` has a body here", name.text),
                    "only prototypes belong in the scanned part; move the function before the START marker",
                );
                self.at -= 1;
                self.skip_declaration();
                return None;
            } else if !(["__attribute__", "(", ")"].contains(&token.text) || self.within_attribute(token)) {
                self.diagnostics.error(
                    token.place,
                    format!("`{}` after the prototype of `{}`", token.text, name.text),
                    "end the prototype with a semicolon",
                );
                self.at -= 1;
                break;
            }
        }
        let result = match result {
            Ok(result) => result,
            Err((place, message, remedy)) => {
                self.diagnostics.error(place, message, remedy);
                return None;
            }
        };
        let line = self.text[..start.start].matches('\n').count() + 1;
        Some(RawFunction {
            name: name.text.to_owned(),
            name_place: name.place,
            result,
            params: params?,
            words,
            line,
        })
    }

    /// Whether `token` lies within the parentheses of an `__attribute__` just before it.
    fn within_attribute(&self, token: Token<'t>) -> bool {
        let before = &self.tokens[..self.at - 1];
        let from = before.iter().rposition(|token| token.is("__attribute__"));
        from.is_some_and(|from| {
            let depth =
                before[from..].iter().map(|token| i64::from(token.is("(")) - i64::from(token.is(")")));
            depth.sum::<i64>() > 0 && token.kind != Kind::End
        })
    }

    fn not_a_prototype(&mut self, token: Token<'t>) {
        self.diagnostics.error(
            token.place,
            match token.text {
                "" => "the header ends in the middle of a declaration".to_owned(),
                text => format!("`{text}` where a function's name and parameters should be"),
            },
            "only prototypes belong in the scanned part; move anything else before the START marker",
        );
        self.skip_declaration();
    }

    fn past_comments(&mut self) {
        while self.peek().is_comment() {
            self.take();
        }
    }

    /// Takes a `*`, a qualifier behind one, or a comment.
    fn pointer_part(&mut self) -> Option<Token<'t>> {
        let token = self.peek();
        let qualifier = ["const", "restrict", "__restrict", "volatile"].iter().any(|word| token.is(word));
        (token.is("*") || qualifier || token.is_comment()).then(|| self.take())
    }

    /// The words before the pointers: qualifiers and the base type.
    fn specifiers(
        &mut self,
        comment: &mut dyn FnMut(&mut Self, Token<'t>),
    ) -> Result<Type, (SourceSpan, String, String)> {
        let start = self.peek_code().place;
        let mut end = start;
        let (mut base_const, mut words, mut base) = (false, Vec::new(), None);
        loop {
            let token = self.peek();
            if token.is_comment() {
                if base.is_none() && words.is_empty() {
                    break;
                }
                self.take();
                comment(self, token);
                continue;
            }
            if token.kind != Kind::Word {
                break;
            }
            let is_named = base.is_some() || !words.is_empty();
            match token.text {
                "const" => base_const = true,
                "volatile" | "_Atomic" | "register" => {
                    let message = format!("`{}` can't be forwarded", token.text);
                    self.diagnostics.error(token.place, message, "remove it");
                }
                "struct" | "union" | "enum" if !is_named => {
                    self.take();
                    let tag = self.peek();
                    if tag.kind != Kind::Word {
                        let message = format!("`{}` without a name", token.text);
                        return Err((token.place, message, "define the type before the START marker".into()));
                    }
                    let name = format!("{} {}", token.text, tag.text);
                    base = Some(if token.text == "enum" { Base::Enum(name) } else { Base::Opaque(name) });
                }
                word if types::BUILTIN_WORDS.contains(&word) && base.is_none() => words.push(word),
                word if !is_named => {
                    if let Some((why, remedy)) = types::refused(word) {
                        self.diagnostics.error(token.place, format!("`{word}` can't travel: {why}"), remedy);
                    }
                    base = Some(match types::named(word) {
                        Some(scalar) => Base::Scalar(scalar),
                        None => Base::Opaque(word.to_owned()),
                    });
                }
                _ => break,
            }
            end = self.take().place;
        }
        let place = start.to(end);
        let base = match (base, words.is_empty()) {
            (Some(base), _) => base,
            (None, true) => {
                return Err((start, "a type is missing here".into(), "write the parameter's type".into()));
            }
            (None, false) => match types::builtin(&words) {
                Ok(Some(scalar)) => Base::Scalar(scalar),
                Ok(None) => Base::Void,
                Err((message, remedy)) => return Err((place, message, remedy.into())),
            },
        };
        Ok(Type { base, base_const, pointers: Vec::new(), array: None })
    }

    /// The parameters, up to and with the closing parenthesis; `None` if that is missing.
    fn params(&mut self) -> Option<Vec<RawParam>> {
        let mut params = Vec::new();
        let code: Vec<&str> = self.tokens[self.at..]
            .iter()
            .filter(|token| !token.is_comment())
            .take(2)
            .map(|token| token.text)
            .collect();
        if code.first() == Some(&")") || code == ["void", ")"] {
            while !self.take().is(")") {}
            return Some(params);
        }
        loop {
            params.push(self.param());
            let token = self.take();
            if token.is(")") {
                return Some(params);
            }
            if !token.is(",") {
                self.diagnostics.error(
                    token.place,
                    "the parameters of this function never end",
                    "close them with ) and ;",
                );
                return None;
            }
            self.stray_annotation();
        }
    }

    /// An annotation behind the comma is an error, because it would silently annotate the next
    /// parameter.
    fn stray_annotation(&mut self) {
        while self.peek().is_comment() {
            let token = self.take();
            let comment = annotation::of_parameter(&token, self.diagnostics);
            if matches!(comment, Comment::Annotation(_)) {
                self.diagnostics.error(
                    token.place,
                    "an annotation after the comma",
                    "move it before the comma, behind the parameter that it is about",
                );
            }
        }
    }

    /// One parameter, up to but without its comma or the closing parenthesis.
    fn param(&mut self) -> RawParam {
        let errors_before = self.diagnostics.error_count();
        let start = self.peek_code().place;
        self.past_comments();
        let mut comments: Vec<Token<'t>> = Vec::new();
        let mut param = RawParam {
            name: None,
            ty: Type { base: Base::Void, base_const: false, pointers: Vec::new(), array: None },
            annotation: None,
            broken: false,
            place: start,
        };
        if self.peek().is("...") {
            self.diagnostics.error(
                self.peek().place,
                "a variadic function can't be forwarded",
                "write a function with a fixed list of arguments, and wrap it in the client",
            );
            self.take();
        } else {
            match self.specifiers(&mut |_, comment| comments.push(comment)) {
                Ok(ty) => param.ty = ty,
                Err((place, message, remedy)) => self.diagnostics.error(place, message, remedy),
            }
            self.declarator(&mut param, &mut comments);
        }
        self.param_rest(&mut param, &mut comments);
        self.comments_of(&mut param, &comments);
        param.broken |= self.diagnostics.error_count() > errors_before;
        param
    }

    fn declarator(&mut self, param: &mut RawParam, comments: &mut Vec<Token<'t>>) {
        while let Some(token) = self.pointer_part() {
            param.place = if token.is_comment() { param.place } else { param.place.to(token.place) };
            match token.text {
                "*" => param.ty.pointers.push(false),
                "const" => match param.ty.pointers.last_mut() {
                    Some(level) => *level = true,
                    None => param.ty.base_const = true,
                },
                _ if token.is_comment() => comments.push(token),
                _ => {}
            }
        }
        if self.peek().is("(") {
            self.diagnostics.error(
                self.peek().place,
                "a pointer to a function means nothing at the far end",
                "forward a function that does the work, or poll for events",
            );
            return;
        }
        if self.peek().kind == Kind::Word {
            let name = self.take();
            param.name = Some(name.text.to_owned());
            param.place = param.place.to(name.place);
        }
        while self.peek().is_comment() {
            comments.push(self.take());
        }
        if self.peek().is("[") {
            self.array(param);
        }
    }

    /// `[]` or `[N]`.
    fn array(&mut self, param: &mut RawParam) {
        let open = self.take();
        let inside = self.peek();
        if inside.kind == Kind::Number {
            param.ty.array = parse_number(inside.text);
            self.take();
        }
        if !self.peek().is("]")
            || (inside.kind == Kind::Number && param.ty.array.is_none_or(|count| count == 0))
        {
            self.diagnostics.error(
                open.place.to(self.peek().place),
                "the generator can't compute this array's length",
                "write the number, or [] with size= in the annotation",
            );
            while !(self.peek().is("]") || self.peek().is(")") || self.peek().kind == Kind::End) {
                self.take();
            }
        }
        let close = self.peek();
        if close.is("]") {
            self.take();
            param.place = param.place.to(close.place);
        }
        param.ty.pointers.push(false);
        if self.peek().is("[") {
            self.diagnostics.error(
                self.peek().place,
                "an array of arrays can't be forwarded as such",
                "pass one array with the whole, or arr2d: an array of pointers to lines",
            );
        }
    }

    /// Takes comments up to the comma or parenthesis. Anything else there is a mistake.
    fn param_rest(&mut self, param: &mut RawParam, comments: &mut Vec<Token<'t>>) {
        let mut depth = 0;
        let mut reported = self.diagnostics.error_count();
        let had_errors = param.broken || reported > 0;
        let mut annotated = comments.iter().any(|token| token.kind == Kind::Comment);
        loop {
            let token = self.peek();
            match token.kind {
                Kind::End => return,
                _ if token.is(";") || token.is("{") => return,
                _ if depth == 0 && (token.is(",") || token.is(")")) => return,
                Kind::Comment | Kind::LineComment => {
                    annotated |= depth == 0;
                    comments.push(token);
                }
                Kind::Directive => {
                    self.directive(token);
                    reported = self.diagnostics.error_count();
                }
                _ if token.is("(") || token.is("[") => depth += 1,
                _ if token.is(")") || token.is("]") => depth -= 1,
                _ if depth == 0 && annotated && token.kind == Kind::Word => {
                    self.diagnostics.error(
                        token.place,
                        format!("a comma is missing before `{}`", token.text),
                        "put it behind the annotation of the parameter before",
                    );
                    // Continue as if the comma were there.
                    param.broken = true;
                    self.comments_of(param, &std::mem::take(comments));
                    while !(self.peek().is(",") || self.peek().is(")") || self.peek().kind == Kind::End) {
                        self.take();
                    }
                    return;
                }
                _ if depth == 0 && self.diagnostics.error_count() == reported && !had_errors => {
                    let message = format!("`{}` makes no sense in a parameter", token.text);
                    self.diagnostics.error(token.place, message, "write TYPE NAME /* DIR:KIND */");
                }
                _ => {}
            }
            self.take();
        }
    }

    fn comments_of(&mut self, param: &mut RawParam, comments: &[Token<'t>]) {
        for token in comments {
            match annotation::of_parameter(token, self.diagnostics) {
                Comment::Annotation(found) => match &param.annotation {
                    Some(_) => {
                        self.diagnostics.error(token.place, "a second annotation", "remove one of them");
                    }
                    None => param.annotation = Some(found),
                },
                Comment::Wrong => param.broken = true,
                Comment::Name(name) if param.name.is_none() => param.name = Some(name),
                Comment::Name(_) | Comment::Other => {}
            }
        }
    }
}

/// A decimal, hexadecimal or octal integer literal.
fn parse_number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8).ok(),
        None => digits.parse().ok(),
    }
}
