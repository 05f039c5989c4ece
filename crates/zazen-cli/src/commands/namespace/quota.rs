//! `zazen namespace quota`: how much users and directories may take.

use crate::output::{self, Table, human_bytes};
use crate::parse;
use crate::target::{Done, Targets};
use clap::Args;
use serde_json::json;
use std::process::Command;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::core::service::{Quota, QuotaView, Quotas};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen namespace quota                                # list: limits, and what is used
  zazen namespace quota /run1 --bytes 2T --files 1M    # all below /run1 together
  zazen namespace quota --user alice --bytes 500G      # all that alice owns
  zazen namespace quota --user alice --remove

Root and the daemon's user set quotas, and see all; others see their own. Who is beyond a limit gets
\"Disk quota exceeded\" (EDQUOT). docs/namespace.md says how exact the limits are.")]
pub(crate) struct QuotaCommand {
    /// The directory, by its path in the namespace
    #[arg(value_name = "DIR", conflicts_with = "user")]
    directory: Option<String>,
    /// The user, by name or number
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Bytes on disk, with a unit; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse::bytes, conflicts_with = "remove")]
    bytes: Option<u64>,
    /// Files, directories and links; K, M and G are allowed; 0 for no limit
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "remove")]
    files: Option<u64>,
    /// End the quota
    #[arg(long)]
    remove: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    targets: Targets,
}

/// A count: digits, and perhaps K, M or G for powers of 1000.
fn count(text: &str) -> std::result::Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| format!("{text:?} is not a count; give 1000000 or 1M"))
}

/// What `id` prints of a user, who may be in a directory service.
fn id(words: &[&str]) -> Option<String> {
    let asked = Command::new("id").args(words).output().ok().filter(|asked| asked.status.success())?;
    Some(String::from_utf8(asked.stdout).ok()?.trim().to_owned())
}

fn uid_of(name: &str) -> Result<u32> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    id(&["-u", "--", name]).and_then(|text| text.parse().ok()).ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!("user {name}: this machine knows no such user; give the number"),
        )
    })
}

pub(crate) fn run(arguments: &QuotaCommand) -> Result<Done> {
    let namespace = arguments.targets.namespace()?;
    let user = arguments.user.as_deref().map(uid_of).transpose()?;
    let sets = arguments.bytes.is_some() || arguments.files.is_some() || arguments.remove;
    let named = user.is_some() || arguments.directory.is_some();
    if sets && !named {
        let why = "name a directory, or a user by --user";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    if sets {
        // A limit that is not given stays as it is.
        let limit = |given: Option<u64>| if arguments.remove { Some(0) } else { given };
        namespace.set_quota(&Quota {
            user,
            path: arguments.directory.clone().unwrap_or_default(),
            bytes: limit(arguments.bytes),
            files: limit(arguments.files),
        })?;
        return Ok(Done::Wholly);
    }
    let mut told = namespace.quotas()?;
    if named {
        told.quotas.retain(|quota| is_named(quota, user, arguments.directory.as_deref()));
    }
    if told.quotas.is_empty() && !arguments.json {
        // Others than operators are told of their own only.
        let is_operator = namespace.hello().is_ok_and(|hello| hello.vouches);
        output::line(none(is_operator));
        return Ok(Done::Wholly);
    }
    tell(&told, arguments.json);
    Ok(Done::Wholly)
}

fn none(is_operator: bool) -> &'static str {
    if is_operator { "no quotas" } else { "no quota is yours; `df DIRECTORY` shows that of a directory" }
}

fn is_named(quota: &QuotaView, user: Option<u32>, directory: Option<&str>) -> bool {
    match (user, directory) {
        (Some(uid), _) => quota.user == Some(uid),
        (None, Some(path)) => {
            quota.user.is_none() && quota.path.trim_end_matches('/') == path.trim_end_matches('/')
        }
        (None, None) => true,
    }
}

/// The quotas as a table.
pub(super) fn table(quotas: &[QuotaView]) -> Table {
    let mut table = Table::new(&["quota of", ">bytes", ">limit", ">files", ">limit"]);
    for quota in quotas {
        let limit = |most: u64, shown: String| if most == 0 { "-".to_owned() } else { shown };
        let used = |shown: String| if quota.counted { shown } else { "?".to_owned() };
        let of = quota.user.map_or_else(
            || quota.path.clone(),
            |uid| id(&["-nu", "--", &uid.to_string()]).unwrap_or_else(|| format!("user {uid}")),
        );
        table.row(vec![
            of,
            used(human_bytes(quota.bytes)),
            limit(quota.bytes_max, human_bytes(quota.bytes_max)),
            used(quota.files.to_string()),
            limit(quota.files_max, quota.files_max.to_string()),
        ]);
    }
    table
}

fn tell(told: &Quotas, json: bool) {
    if json {
        let row = |quota: &QuotaView| {
            json!({
                "user": quota.user,
                "path": quota.user.is_none().then_some(&quota.path),
                "bytes": quota.counted.then_some(quota.bytes),
                "bytes_max": quota.bytes_max,
                "files": quota.counted.then_some(quota.files),
                "files_max": quota.files_max,
                "age_ms": told.age_ms.filter(|_| quota.counted),
            })
        };
        return output::json(&json!(told.quotas.iter().map(row).collect::<Vec<_>>()));
    }
    output::print(&table(&told.quotas).render());
    match told.age_ms {
        Some(age_ms) => output::note(format!("the files were added up {:.1} s ago", age_ms as f64 / 1e3)),
        None => output::note("the files were not added up yet"),
    }
    if told.age_ms.is_some() && told.quotas.iter().any(|quota| !quota.counted) {
        output::note("?: set since the files were added up last; until then only new files count");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units() {
        for (text, expected) in
            [("0", 0), ("12", 12), ("3K", 3_000), ("2m", 2_000_000), ("1G", 1_000_000_000)]
        {
            assert_eq!(count(text), Ok(expected), "{text}");
        }
        for bad in ["", "K", "-1", "1.5M", "1T", "99999999999G", "µ"] {
            assert!(count(bad).unwrap_err().contains("not a count"), "{bad}");
        }
    }
}
