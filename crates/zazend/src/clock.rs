//! The daemon's clock: what the state machines of `zazen-frames` are told as `now_ns`.

use std::sync::OnceLock;
use std::time::Duration;
use zazen_env::{Clock, RealClock};

/// Monotonic nanoseconds since the first call in this process.
pub fn now_ns() -> u64 {
    static CLOCK: OnceLock<RealClock> = OnceLock::new();
    CLOCK.get_or_init(RealClock::default).now_ns()
}

/// How long it is until `until_ns`; zero if that has passed.
pub fn left_until(until_ns: u64) -> Duration {
    Duration::from_nanos(until_ns.saturating_sub(now_ns()))
}
