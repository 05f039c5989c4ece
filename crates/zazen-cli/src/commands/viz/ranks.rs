//! The hosts of a job's ranks, as a file of a launcher lists them.

use crate::parse::text_file;
use std::path::Path;
use zazen_core::{Error, ErrorKind, Result};

/// The longest file of ranks.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// The most ranks.
const RANKS_MAX: usize = 1 << 20;

/// The host of each rank: a host in each line, once for each rank, or with `slots=N` (Open MPI) or
/// `:N` (MPICH) behind it. `#` begins a comment.
pub(super) fn read(file: &Path) -> Result<Vec<String>> {
    let name = format!("file of ranks {}", file.display());
    let text = text_file(file, FILE_BYTES_MAX, "file of ranks")?;
    parse(&text).map_err(|error| error.within(name))
}

fn parse(text: &str) -> Result<Vec<String>> {
    let mut hosts = Vec::new();
    for (line, at) in text.lines().zip(1..) {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let refuse = || {
            let why = format!("line {at}: {line:?} is not HOST, HOST:RANKS or HOST slots=RANKS");
            Error::new(ErrorKind::Config, why)
        };
        let (host, count) = match words[..] {
            [] => continue,
            [host] if host.ends_with(']') => (host, "1"),
            [host] => match host.rsplit_once(':') {
                None => (host, "1"),
                Some((host, count)) => (host, count),
            },
            [host, slots] => (host, slots.strip_prefix("slots=").ok_or_else(refuse)?),
            _ => return Err(refuse()),
        };
        // Of an address such as fe80::2, the end is no number of ranks: it stands in brackets.
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        let count: usize = count.parse().map_err(|_| refuse())?;
        if count == 0 || host.is_empty() || (host.contains(':') && !is_bracketed) {
            return Err(refuse());
        }
        if count > RANKS_MAX - hosts.len() {
            let why = format!("line {at}: {line:?} makes more than {RANKS_MAX} ranks");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        hosts.resize(hosts.len() + count, host.to_owned());
    }
    match hosts.is_empty() {
        true => Err(Error::new(ErrorKind::Config, "names no host")),
        false => Ok(hosts),
    }
}

/// Whether two names are of one host: alike, or one is the other's without the domain.
pub(super) fn same_host(one: &str, other: &str) -> bool {
    let is_address = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit() || b".:[]".contains(&byte));
    if one.eq_ignore_ascii_case(other) {
        return true;
    }
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    let head = long.split('.').next().unwrap_or_default();
    !is_address(long) && !short.contains('.') && head.eq_ignore_ascii_case(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_files_list_ranks() {
        let hosts = parse("n1\nn1\n# more\nn2 slots=2\nn3:1 # last\n\n").unwrap();
        assert_eq!(hosts, ["n1", "n1", "n2", "n2", "n3"]);
        for bad in ["", "n1 n2", "n1:x", "n1:0", ":3", "n1 slots=-1", "fe80::2", "n1:2 slots=3"] {
            assert_eq!(parse(bad).unwrap_err().kind(), ErrorKind::Config, "{bad}");
        }
        for many in ["n1:9999999999", "n1\nn2:18446744073709551615", "n1:1048576\nn2"] {
            assert_eq!(parse(many).unwrap_err().kind(), ErrorKind::TooLarge, "{many}");
        }
        assert_eq!(parse("[fe80::2]:2\n[fe80::2]").unwrap(), ["[fe80::2]"; 3]);
    }

    #[test]
    fn hosts_may_lack_their_domain() {
        assert!(same_host("n1", "N1") && same_host("n1", "n1.cluster.org") && same_host("n1.a", "n1"));
        assert!(!same_host("n1", "n10") && !same_host("n1.a", "n1.b") && !same_host("10", "10.0.0.1"));
    }
}
