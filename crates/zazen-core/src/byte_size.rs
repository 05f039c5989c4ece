//! Sizes as people write and read them: `200G`, `1.5T`, `4096`, `10GB`; `186 GiB`.

use crate::{Error, ErrorKind, Result};

/// Bytes in `text`: a number with an optional unit. `K M G T P` (also `KiB` …) count in steps of
/// 1024, `KB MB GB TB PB` in steps of 1000. Case does not matter. Fractions of a byte are dropped.
///
/// `Config` if `text` is something else or more than a `u64` holds.
pub fn parse(text: &str) -> Result<u64> {
    let refuse = || {
        let what =
            format!("size {text:?}: give a number of bytes with an optional unit, such as 200G or 1.5TB");
        Error::new(ErrorKind::Config, what)
    };
    let (digits, unit) = split_unit(text);
    scaled(digits, factor_of(unit).ok_or_else(refuse)?).ok_or_else(refuse)
}

/// Bytes in one `unit`.
fn factor_of(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let (letter, step) = match unit.as_str() {
        "" | "b" => return Some(1),
        unit if unit.len() == 2 && unit.ends_with('b') => (&unit[..1], 1000u64),
        unit => (unit.strip_suffix("ib").unwrap_or(unit), 1024),
    };
    let power = ["k", "m", "g", "t", "p"].iter().position(|known| *known == letter)?;
    Some(step.pow(power as u32 + 1))
}

/// `text` cut into a number and the unit after it, both without blanks around them.
pub fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..at], text[at..].trim())
}

/// `digits × factor`: exact for whole numbers, rounded down for fractions. `None` if `digits` is no
/// number or the product is too large.
pub fn scaled(digits: &str, factor: u64) -> Option<u64> {
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let value = digits.parse::<f64>().ok()? * factor as f64;
    (value.is_finite() && value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// `bytes` for people: three digits and a unit of 1024, such as `1.5 KiB` or `186 GiB`.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 99.95 { 1 } else { 0 };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(parse(text).ok(), expected, "{text:?}");
        check("0", Some(0));
        check("4096", Some(4096));
        check("17 B", Some(17));
        check("200G", Some(200 << 30));
        check("2 GiB", Some(2 << 30));
        check("1.5k", Some(1536));
        check("1.5K", Some(1536));
        check("3TiB", Some(3 << 40));
        check("2P", Some(2 << 50));
        check("10 GB", Some(10_000_000_000));
        for thousand in ["1kb", "1kB", "1KB", "1Kb"] {
            check(thousand, Some(1000));
        }
        // Exact where a float is not.
        check("9007199254740993", Some((1 << 53) + 1));
        for wrong in ["", "G", "-1", "1.2.3K", "5X", "1e30", "1kbit", "99999999P", "99999999999T", "B"] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_refusal_names_the_text_and_the_remedy() {
        let error = parse("lots").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("\"lots\"") && error.to_string().contains("200G"), "{error}");
    }

    #[test]
    fn bytes_are_shown_with_three_digits() {
        let check = |bytes: u64, expected: &str| assert_eq!(show(bytes), expected);
        check(0, "0 B");
        check(1023, "1023 B");
        check(1024, "1.0 KiB");
        check(1536, "1.5 KiB");
        check(430 << 10, "430 KiB");
        check((1 << 30) - 1, "1.0 GiB");
        check(2 << 30, "2.0 GiB");
        check(u64::MAX, "16384 PiB");
    }
}
