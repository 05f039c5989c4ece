//! Log lines that others can provoke are written only now and then, however often their cause
//! occurs.
//!
//! Invariant: whatever a caller does, one place in the code writes at most one line about it in
//! [`EACH`]. The next line says how many were left out. Lines about one caller leave room for those
//! about others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines of one place in the code about one caller.
const EACH: Duration = Duration::from_secs(10);
/// Callers remembered; those beyond share one line.
const CALLERS_MAX: usize = 1024;

struct Said {
    at: Instant,
    left_out: u64,
}

static SAID: Mutex<Option<HashMap<(&'static str, String), Said>>> = Mutex::new(None);

/// How many lines were left out before this one; shown at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut(u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, " ({more} more such lines were left out)"),
        }
    }
}

/// Whether a line of `site` about `who` may be written now. Ask before formatting the line.
pub fn may_say(site: &'static str, who: &str) -> Option<LeftOut> {
    may_say_at(Instant::now(), site, who)
}

fn may_say_at(now: Instant, site: &'static str, who: &str) -> Option<LeftOut> {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = said.get_or_insert_default();
    if said.len() >= CALLERS_MAX {
        said.retain(|_, last| now.saturating_duration_since(last.at) < EACH);
    }
    let mut key = (site, who.to_owned());
    if said.len() >= CALLERS_MAX && !said.contains_key(&key) {
        key.1.clear();
    }
    match said.get_mut(&key) {
        Some(last) if now.saturating_duration_since(last.at) < EACH => {
            last.left_out += 1;
            None
        }
        Some(last) => {
            let left_out = std::mem::take(&mut last.left_out);
            last.at = now;
            Some(LeftOut(left_out))
        }
        None => {
            said.insert(key, Said { at: now, left_out: 0 });
            Some(LeftOut(0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_and_its_count() {
        let start = Instant::now();
        let say = |seconds, who: &str| may_say_at(start + Duration::from_secs(seconds), "flood", who);
        assert_eq!(say(0, "b"), Some(LeftOut(0)));
        (0..1000).for_each(|_| assert_eq!(say(1, "b"), None));
        assert_eq!(say(1, "a"), Some(LeftOut(0)), "another one's line is told");
        let next = say(10, "b").unwrap();
        assert_eq!(next.to_string(), " (1000 more such lines were left out)");
        // Many names do not make many lines for ever.
        let told = (0..5000).filter(|nth| say(11, &format!("c{nth}")).is_some()).count();
        assert!(told <= CALLERS_MAX + 1, "{told}");
        assert!(SAID.lock().unwrap().as_ref().unwrap().len() <= CALLERS_MAX + 1);
    }
}
