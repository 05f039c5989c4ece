//! wordexp of patterns that name forwarded files: libc looks for them itself, past the hooks.
//!
//! libc says what is wrong with the words, and expands those without patterns. A shell expands the
//! others; it is a forwarded program.

use crate::real::hooks;
use crate::{fault, process, state};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

const OFFSETS: c_int = 1;
const APPEND: c_int = 2;
const NO_COMMANDS: c_int = 4;
const REUSE: c_int = 8;
const SHOW_ERRORS: c_int = 16;
const UNDEFINED: c_int = 32;
/// WRDE_CMDSUB: there is a command, which was not to be.
const HAS_COMMAND: c_int = 4;
/// WRDE_NOSPACE.
const NO_SPACE: c_int = 1;

/// `wordexp_t`.
#[repr(C)]
pub(crate) struct Words {
    count: usize,
    words: *mut *mut c_char,
    offset: usize,
}

unsafe extern "C" {
    fn wordfree(words: *mut Words);
}

fn has_pattern(text: &CStr) -> bool {
    text.to_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

hooks! {
    fn wordexp(text: *const c_char, result: *mut Words, flags: c_int) -> c_int {
        let Some(given) = fault::string(text).filter(|_| state::is_active()) else {
            return next(text, result, flags);
        };
        if !given.to_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'$' | b'`' | b'~')) {
            return next(text, result, flags);
        }
        let mut trial = Words { count: 0, words: std::ptr::null_mut(), offset: 0 };
        let outcome = next(text, &raw mut trial, flags & (SHOW_ERRORS | UNDEFINED) | NO_COMMANDS);
        let commands = outcome == HAS_COMMAND && flags & NO_COMMANDS == 0;
        let mut patterns = false;
        if outcome == 0 {
            patterns = (0..trial.count).any(|at| has_pattern(CStr::from_ptr(*trial.words.add(at))));
            wordfree(&raw mut trial);
        }
        if !patterns && !commands {
            return next(text, result, flags);
        }
        match by_shell(given, flags & SHOW_ERRORS != 0) {
            Some(found) => fill(&mut *result, &found, flags),
            None => NO_SPACE,
        }
    }
}

/// The words, each ended by a zero byte, as a shell expands them.
fn by_shell(text: &CStr, shows_errors: bool) -> Option<Vec<u8>> {
    let quiet: &[u8] = if shows_errors { b"" } else { b"exec 2>/dev/null\n" };
    let script = [quiet, b"for word in ", text.to_bytes(), b"\ndo printf '%s\\0' \"$word\"; done"].concat();
    let script = CString::new(script).ok()?;
    let mut found = Vec::new();
    let mut piece = [0_u8; 4096];
    // SAFETY: strings; the stream is closed here.
    unsafe {
        let stream = process::popen(script.as_ptr(), c"re".as_ptr());
        if stream.is_null() {
            return None;
        }
        loop {
            match libc::fread(piece.as_mut_ptr().cast::<c_void>(), 1, piece.len(), stream) {
                0 => break,
                got => found.extend_from_slice(&piece[..got]),
            }
        }
        (libc::pclose(stream) == 0).then_some(found)
    }
}

/// Puts words into a result as libc does, so that `wordfree` frees them.
unsafe fn fill(result: &mut Words, found: &[u8], flags: c_int) -> c_int {
    // SAFETY: the program's result; memory of libc's.
    unsafe {
        if flags & REUSE != 0 {
            wordfree(result);
        }
        if flags & OFFSETS == 0 {
            result.offset = 0;
        }
        let (mut array, mut count) = (std::ptr::null_mut(), 0);
        if flags & APPEND != 0 {
            (array, count) = (result.words, result.count);
        }
        let new = found.iter().filter(|byte| **byte == 0).count();
        let room = (result.offset + count + new + 1) * size_of::<*mut c_char>();
        let words = libc::realloc(array.cast(), room).cast::<*mut c_char>();
        if words.is_null() {
            return NO_SPACE;
        }
        if array.is_null() {
            for at in 0..result.offset {
                *words.add(at) = std::ptr::null_mut();
            }
        }
        (result.words, result.count) = (words, count);
        *words.add(result.offset + count) = std::ptr::null_mut();
        for word in found.split_inclusive(|byte| *byte == 0).filter(|word| word.ends_with(b"\0")) {
            let copy = libc::strdup(word.as_ptr().cast());
            if copy.is_null() {
                return NO_SPACE;
            }
            *words.add(result.offset + result.count) = copy;
            result.count += 1;
            *words.add(result.offset + result.count) = std::ptr::null_mut();
        }
        0
    }
}
