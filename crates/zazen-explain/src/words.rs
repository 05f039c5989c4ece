//! Times and rates for people.

use zazen_core::byte_size;

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
