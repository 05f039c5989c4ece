//! Times and rates for people.

use zazen_core::byte_size;
pub use zazen_core::shown::{is_order, shown};

/// `text` as one word of a shell, without control characters.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%^".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.contains(is_order) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    // As bash and POSIX 2024 have it.
    let mut word = String::from("$'");
    for character in text.chars() {
        match character {
            '\'' | '\\' => word.extend(['\\', character]),
            order if is_order(order) => {
                let mut bytes = [0; 4];
                let bytes = order.encode_utf8(&mut bytes).bytes();
                bytes.for_each(|byte| word.push_str(&format!("\\{byte:03o}")));
            }
            other => word.push(other),
        }
    }
    word + "'"
}

/// A time in seconds with as many digits as a person needs.
pub fn seconds(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match seconds {
        _ if seconds >= 100.0 => format!("{seconds:.0} s"),
        _ if seconds >= 0.95 => format!("{seconds:.1} s"),
        _ => format!("{:.0} ms", seconds * 1e3),
    }
}

/// A long time, in milliseconds, rounded.
pub fn span(ms: u64) -> String {
    match ms / 1000 {
        0..120 => format!("{} s", ms / 1000),
        s @ 120..7200 => format!("{} min", s / 60),
        s @ 7200..172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

/// Bytes per second.
pub fn rate(bytes: u64) -> String {
    format!("{}/s", byte_size::show(bytes))
}
