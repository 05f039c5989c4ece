//! Names in sentences. Other users choose names of files and datasets: nothing in them reaches a
//! terminal as an order, and none of them begins a line.

/// Whether a terminal obeys `character`, or shows others because of it elsewhere than they stand:
/// control characters, separators of lines, and marks of the direction in which text runs.
pub fn is_order(character: char) -> bool {
    let is_direction = matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2066}'..='\u{2069}');
    character.is_control() || is_direction || matches!(character, '\u{2028}'..='\u{202e}')
}

/// `text` without anything that a terminal would obey: such characters become escapes.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match is_order(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_becomes_escapes() {
        let check = |text: &str, expected: &str| assert_eq!(shown(text), expected);
        check("frame-7 (naïve) 東京 \u{1f600}", "frame-7 (naïve) 東京 \u{1f600}");
        check("a\nzazen: all is well", r"a\nzazen: all is well");
        check("\x1b]0;title\x07\r\t\0", r"\u{1b}]0;title\u{7}\r\t\u{0}");
        check("\u{9b}2J\u{7f}\u{85}", r"\u{9b}2J\u{7f}\u{85}");
        check("txt.\u{202e}exe\u{2069}\u{2028}", r"txt.\u{202e}exe\u{2069}\u{2028}");
    }
}
