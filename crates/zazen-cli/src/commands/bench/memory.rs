//! What this process takes, as the kernel counts it (/proc/self/status); 0 where it does not say.

/// Bytes in memory now.
pub(crate) fn resident_bytes() -> u64 {
    field("VmRSS:")
}

/// The most bytes that were in memory at once, since the start or the last [`reset_peak`].
pub(crate) fn peak_bytes() -> u64 {
    field("VmHWM:")
}

/// Starts the peak anew at what is in memory now. Where the kernel does not allow it, the peak
/// stays that of the whole run.
pub(crate) fn reset_peak() {
    // 5: reset the peak resident set size (proc(5)).
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Bytes that new work may take on this machine without swapping; `None` where the kernel does not
/// say.
pub(crate) fn available_bytes() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    kilobytes(&status, name).unwrap_or(0)
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t1024 kB\n";
        assert_eq!(kilobytes(text, "VmHWM:"), Some(2 << 20));
        assert_eq!(kilobytes(text, "VmRSS:"), Some(1 << 20));
        assert_eq!(kilobytes(text, "VmSwap:"), None);
        assert!(resident_bytes() > 0 && peak_bytes() >= resident_bytes() / 2);
    }
}
