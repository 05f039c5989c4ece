//! What users type for sizes, times, rates and frame numbers.
//!
//! Pure; each parser is a clap value parser, so its error text follows "invalid value … for …".

use std::io::Read;
use std::path::Path;
use std::time::Duration;
use zazen_core::byte_size::{self, scaled, split_unit};
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::runset::Run;
use zazen_core::{Error, ErrorKind, Request, RunSet};
use zazen_env::plain_file::open_given;

/// The longest time, ten years: clocks can count that far.
const TIME_MAX: Duration = Duration::from_secs(87_600 * 3_600);

/// Bytes, as [`byte_size::parse`] reads them.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    byte_size::parse(text).map_err(|error| error.to_string())
}

/// Bytes per second: like [`bytes`], with or without `/s`; 0 is refused.
pub(crate) fn byte_rate(text: &str) -> Result<u64, String> {
    match bytes(text.trim_end_matches("/s"))? {
        0 => Err("a rate of 0 moves nothing; leave the option out for no limit".to_owned()),
        rate => Ok(rate),
    }
}

/// Bits per second of a link: a number with `kbit`, `mbit`, `gbit` or `bit` (powers of 1000).
pub(crate) fn bit_rate(text: &str) -> Result<u64, String> {
    let (digits, unit) = split_unit(text);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "bit" => 1,
        "kbit" => 1_000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        _ => return Err(format!("{text:?} is not a link's rate; give 160mbit or 1gbit")),
    };
    match scaled(digits, factor) {
        Some(rate @ 8_000..=400_000_000_000) => Ok(rate),
        Some(_) => Err(format!("{text:?}: a link's rate must be between 8kbit and 400gbit")),
        None => Err(format!("{text:?} is not a link's rate; give 160mbit or 1gbit")),
    }
}

/// A time: `250ms`, `30s`, `5m`, `2h`, or seconds without a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = split_unit(text);
    let factor_ms = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("unknown unit {unit:?}; give 250ms, 30s, 5m or 2h")),
    };
    let time = scaled(digits, factor_ms).map(Duration::from_millis);
    match time {
        Some(time) if time > TIME_MAX => Err(format!("{text:?} is too long; give at most 87600h")),
        Some(time) => Ok(time),
        None => Err(format!("{text:?} is not a time; give 250ms, 30s, 5m or 2h")),
    }
}

/// How long somebody is waited for: a [`duration`], but not 0, which nobody could keep.
pub(crate) fn patience(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("no answer comes in no time; give 250ms, 30s, 5m or 2h".to_owned()),
        time => Ok(time),
    }
}

/// Frame numbers: `7`, `0-999`, `0-999:2` (every second), several joined by commas. Ends are
/// inclusive.
pub(crate) fn frames(text: &str) -> Result<RunSet, String> {
    let mut runs = Vec::new();
    for part in text.split(',') {
        let request = frame_range(part.trim())?;
        let run = Run::new(request.begin(), request.count(), request.stride()).map_err(|e| e.to_string())?;
        runs.push(run);
    }
    RunSet::checked_from_runs(runs).map_err(|error| error.to_string())
}

/// The text of `file`, `what` in messages; one of more than `bytes_max` bytes is refused before it
/// takes the memory.
pub(crate) fn text_file(file: &Path, bytes_max: u64, what: &str) -> zazen_core::Result<String> {
    let named = |error| Error::io(format!("{what} {}", file.display()), error);
    text_of(open_given(file).map_err(named)?, bytes_max, &format!("{what} {}", file.display()))
}

fn text_of(from: impl Read, bytes_max: u64, named: &str) -> zazen_core::Result<String> {
    let mut text = String::new();
    from.take(bytes_max + 1).read_to_string(&mut text).map_err(|error| Error::io(named, error))?;
    if text.len() as u64 > bytes_max {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("{named}: has more than {bytes_max} bytes; is it the right file?"),
        ));
    }
    Ok(text)
}

/// The text of a scenario, and what messages call it. `argument`: the scenario's file, or - for
/// standard input.
pub(crate) fn scenario_text(argument: &str, bytes_max: u64) -> zazen_core::Result<(&str, String)> {
    if argument == "-" {
        let name = "scenario on standard input";
        return Ok((name, text_of(std::io::stdin().lock(), bytes_max, name)?));
    }
    Ok((argument, text_file(Path::new(argument), bytes_max, "scenario")?))
}

/// One range of frame numbers: `BEGIN[-END[:STRIDE]]`.
pub(crate) fn frame_range(text: &str) -> Result<Request, String> {
    let number = |digits: &str| {
        digits.parse::<u64>().map_err(|_| {
            format!(
                "{text:?} is not a range of frames; give 7, 0-999 or 0-999:2 (numbers up to {FRAME_NO_MAX})"
            )
        })
    };
    let (range, stride) = match text.split_once(':') {
        Some((range, stride)) => (range, number(stride)?),
        None => (text, 1),
    };
    let (begin, end) = match range.split_once('-') {
        Some((begin, end)) => (number(begin)?, number(end)?),
        None => (number(range)?, number(range)?),
    };
    Request::new(begin, end, stride).map_err(|error| error.to_string())
}

/// A number of frames, also as 1e9.
pub(crate) fn frame_count(text: &str) -> Result<u64, String> {
    let most = FRAME_NO_MAX + 1;
    let value = text.parse::<f64>().ok().filter(|value| value.fract() == 0.0 && *value >= 0.0);
    match (text.parse::<u64>().ok(), value) {
        (Some(0), _) => Err(format!("0 frames need no assignment; give 1 to {most}")),
        (Some(frames), _) if frames <= most => Ok(frames),
        (_, Some(value)) if value > most as f64 => {
            Err(format!("beyond the limit of {most} frames (2^40 + 1)"))
        }
        (_, Some(0.0)) => Err(format!("0 frames need no assignment; give 1 to {most}")),
        // Below 2^53 every whole number is exact.
        (_, Some(value)) => Ok(value as u64),
        (_, None) => Err(format!("not a number of frames; give 1 to {most}, as 1000000 or 1e6")),
    }
}

/// A number above 0.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("give a number above 0, as 117e6".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(byte_rate("40MB/s"), Ok(40_000_000));
        assert!(byte_rate("0").is_err());
        assert_eq!(bit_rate("160mbit"), Ok(160_000_000));
        assert_eq!(bit_rate("1Gbit"), Ok(1_000_000_000));
        for wrong in ["160", "0mbit", "1bit", "999999gbit", "fast"] {
            assert!(bit_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        let check = |text: &str, ms: Option<u64>| {
            assert_eq!(duration(text).ok(), ms.map(Duration::from_millis), "{text:?}");
        };
        check("250ms", Some(250));
        check("30s", Some(30_000));
        check("30", Some(30_000));
        check("1.5s", Some(1_500));
        check("5m", Some(300_000));
        check("2h", Some(7_200_000));
        check("soon", None);
        check("3d", None);
        check("0", Some(0));
        check("87600h", Some(315_360_000_000));
        check("87601h", None);
        check("5000000000000h", None);
        check("-1s", None);
        assert!(patience("0").is_err() && patience("0.0001ms").is_err());
        assert_eq!(patience("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn a_file_without_end_is_refused_before_it_takes_the_memory() {
        let error = text_file(Path::new("/dev/zero"), 1000, "file of ranks").unwrap_err().to_string();
        assert!(error.starts_with("file of ranks /dev/zero: has more than 1000 bytes"), "{error}");
    }

    #[test]
    fn ranges_are_inclusive_and_strided() {
        let numbers = |text: &str| frames(text).map(|set| set.iter().collect::<Vec<_>>());
        assert_eq!(numbers("7"), Ok(vec![7]));
        assert_eq!(numbers("0-6:3"), Ok(vec![0, 3, 6]));
        assert_eq!(numbers("4-5, 1,5"), Ok(vec![1, 4, 5]));
        for wrong in ["", "5-4", "0-9:0", "1-", "-1", "a", "0-9:", "0-99999999999999"] {
            assert!(frames(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn counts_of_frames_are_whole_and_bounded() {
        let check =
            |text: &str, expected: Option<u64>| assert_eq!(frame_count(text).ok(), expected, "{text:?}");
        check("1", Some(1));
        check("1e9", Some(1_000_000_000));
        check("1.5e3", Some(1500));
        check("1099511627777", Some((1 << 40) + 1));
        check("0", None);
        check("1099511627778", None);
        check("9223372036854775809", None);
        check("1e30", None);
        check("0.5", None);
        check("-1", None);
        check("nan", None);
        check("inf", None);
        check("many", None);
        assert!(frame_count("2e13").unwrap_err().contains("2^40"));
    }
}
