//! Sizes as people write them: `200G`, `1.5T`, `4096`, `10GB`.

use zazen_core::{Error, ErrorKind, Result};

/// Bytes in `text`: a number with an optional unit. `K M G T P` (also `KiB` …) count in steps of 1024,
/// `KB MB GB TB PB` in steps of 1000. Case does not matter.
pub fn parse(text: &str) -> Result<u64> {
    let refuse = || {
        let what =
            format!("size {text:?}: give a number of bytes with an optional unit, such as 200G or 1.5TB");
        Error::new(ErrorKind::Config, what)
    };
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| refuse())?;
    let unit = text[digits..].trim().to_ascii_lowercase();
    let (letter, step) = match unit.as_str() {
        "" | "b" => return Ok(number as u64),
        unit if unit.len() == 2 && unit.ends_with('b') => (&unit[..1], 1000f64),
        unit => (unit.strip_suffix("ib").unwrap_or(unit), 1024f64),
    };
    let power = ["k", "m", "g", "t", "p"].iter().position(|known| *known == letter).ok_or_else(refuse)?;
    let bytes = number * step.powi(power as i32 + 1);
    if bytes >= u64::MAX as f64 { Err(refuse()) } else { Ok(bytes as u64) }
}

/// `bytes` for a person: `186.3 GiB`.
pub fn show(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(parse(text).ok(), expected, "{text}");
        check("4096", Some(4096));
        check("200G", Some(200 << 30));
        check("1.5k", Some(1536));
        check("10 GB", Some(10_000_000_000));
        check("3TiB", Some(3 << 40));
        check("", None);
        check("G", None);
        check("5X", None);
        check("-1", None);
        check("1e30", None);
        check("99999999P", None);
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(12), "12 B");
    }
}
