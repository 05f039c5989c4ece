//! Which programs a preload library cannot forward: those without an interpreter, into which
//! nothing is loaded, and Go's, which make their system calls themselves. Pure.

const PT_INTERP: u64 = 3;
const PT_NOTE: u64 = 4;
/// How much of a program's beginning tells.
pub const HEAD_BYTES: usize = 8192;

fn number(head: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let field = head.get(at..at.checked_add(bytes)?)?;
    Some(field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Whether these are the first bytes of a 64-bit program.
pub fn is_program(head: &[u8]) -> bool {
    head.starts_with(b"\x7fELF\x02")
}

/// Whether a program that begins with `head` bypasses a preload library. A program whose headers
/// lie beyond `head` counts as an ordinary one.
pub fn bypasses_libraries(head: &[u8]) -> bool {
    if !is_program(head) {
        return false;
    }
    let (mut has_interpreter, mut is_go) = (false, false);
    let mut look = || {
        let (start, size, count) = (number(head, 32, 8)?, number(head, 54, 2)?, number(head, 56, 2)?);
        for index in 0..count {
            let at = usize::try_from(start.checked_add(index * size)?).ok()?;
            match number(head, at, 4)? {
                PT_INTERP => has_interpreter = true,
                PT_NOTE => is_go |= has_go_note(head, number(head, at + 8, 8)?, number(head, at + 32, 8)?),
                _ => {}
            }
        }
        Some(())
    };
    look().is_some() && (is_go || !has_interpreter)
}

/// Whether one of the notes in these bytes is that of Go's linker.
fn has_go_note(head: &[u8], start: u64, bytes: u64) -> bool {
    let found = || {
        let (mut at, mut left) = (usize::try_from(start).ok()?, bytes);
        while left >= 12 {
            let (name, text) = (number(head, at, 4)?, number(head, at + 4, 4)?);
            if head.get(at + 12..at + 16)? == b"Go\0\0" {
                return Some(true);
            }
            let whole = 12 + name.next_multiple_of(4) + text.next_multiple_of(4);
            at = at.checked_add(usize::try_from(whole).ok()?)?;
            left = left.saturating_sub(whole);
        }
        None
    };
    found().unwrap_or(false)
}

/// The interpreter of a script that begins with `head`.
pub fn interpreter(head: &[u8]) -> Option<&[u8]> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
    line.split(|byte| *byte == b' ' || *byte == b'\t').next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with one header of each kind, and a note.
    fn program(kinds: &[u8], note: &[u8]) -> Vec<u8> {
        let mut head = vec![0; 64 + 56 * kinds.len()];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        (head[32], head[54], head[56]) = (64, 56, kinds.len() as u8);
        let end = head.len();
        for (index, kind) in kinds.iter().enumerate() {
            head[64 + 56 * index] = *kind;
            head[64 + 56 * index + 8..][..2].copy_from_slice(&(end as u16).to_le_bytes());
            head[64 + 56 * index + 32] = note.len() as u8;
        }
        head.extend(note);
        head
    }

    fn check(kinds: &[u8], note: &[u8], expected: bool) {
        assert_eq!(bypasses_libraries(&program(kinds, note)), expected, "{kinds:?} {note:?}");
    }

    const GNU: &[u8] = b"\x04\0\0\0\x05\0\0\0\x03\0\0\0GNU\0abcde\0\0\0";
    const GO: &[u8] = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";

    #[test]
    fn programs_without_an_interpreter_and_those_of_go() {
        check(&[1, 3, 4], GNU, false);
        check(&[1, 4], GNU, true);
        check(&[1, 3, 4], GO, true);
        check(&[1, 3, 4], &[GNU, GO].concat(), true);
        check(&[], b"", true);
        assert!(!bypasses_libraries(b"#!/bin/sh\n") && !bypasses_libraries(b"\x7fELF\x02"));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let whole = program(&[1, 4, 4], &[GNU, GO].concat());
        for cut in 0..whole.len() {
            bypasses_libraries(&whole[..cut]);
            let mut other = whole.clone();
            other[cut] = 0xff;
            bypasses_libraries(&other);
        }
    }

    #[test]
    fn scripts_name_their_interpreter() {
        assert_eq!(interpreter(b"#! /bin/sh -e\nx"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter(b"#!/usr/bin/env\tpython"), Some(&b"/usr/bin/env"[..]));
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }
}
