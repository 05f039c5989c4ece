//! `zazend --check`: tries every setting without starting anything, and says what a start would do.
//!
//! Invariant: it changes nothing that lasts and disturbs no running daemon.

use crate::backing_roots::{BackingRoots, CacheState};
use crate::config::{Args, CacheSpec, Config, Validate, check_budget};
use crate::daemon::{disk_space, space_limits};
use crate::disk_readers::disk_kind;
use crate::forward;
use crate::namespace_check;
use crate::placement::check_placement;
use crate::probe::{nearest, try_writing};
use crate::quota_settings::QuotaSettings;
use crate::quotas;
use crate::service_plugins;
use crate::viewer::Powers;
use std::fmt::Write;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use zazen_backing::Backing;
use zazen_call::ClusterKey;
use zazen_core::byte_size::show;
use zazen_core::{Error, ErrorKind, RelPath, Result};
use zazen_env::RealDisk;

/// The longest socket path that the kernel takes, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// What a check found.
pub struct Report {
    /// Whether a daemon would start and find everything in place.
    pub good: bool,
    /// One line per setting, `ok:`, `note:` or `error:` first.
    pub text: String,
}

impl Report {
    fn add(&mut self, what: &str, result: Result<String>) {
        // Writing to a String cannot fail.
        match result {
            Ok(found) => writeln!(self.text, "ok: {what}: {found}").ok(),
            Err(error) => {
                self.good = false;
                writeln!(self.text, "error: {what}: {error}").ok()
            }
        };
    }

    /// A remark, which makes nothing bad.
    fn note(&mut self, what: &str, remark: &str) {
        writeln!(self.text, "note: {what}: {remark}").ok();
    }
}

/// Checks the settings in `args` and in the file that they name.
pub fn check(args: &Args) -> Report {
    let mut report = Report { good: true, text: String::new() };
    let config = match Config::assemble(args) {
        Ok(config) => config,
        Err(error) => {
            report.add("settings", Err(error));
            return report;
        }
    };
    report.add("name", Ok(config.name.clone()));
    report.add("users", Ok(Powers::of_this_process().describe()));
    for spec in &config.caches {
        let what = if config.caches.len() == 1 {
            "cache".to_owned()
        } else {
            format!("cache {}", spec.root.display())
        };
        report.add(&what, check_cache(&config, spec));
    }
    check_backing(&config, &mut report);
    if let Some(cpus) = &config.cpus {
        // On a thread of its own: this one goes on as it was.
        let kept = std::thread::scope(|scope| scope.spawn(|| cpus.keep_to()).join());
        report.add("cpus", kept.unwrap_or(Ok(())).map(|()| cpus.to_string()));
    }
    if let Some(share) = config.cpu_share {
        report.add("cpu_share", Ok(share.to_string()));
    }
    report.add("socket", check_socket(&config.socket));
    if let Some(key) = &config.key {
        report.add("key", ClusterKey::from_file(key).map(|_| key.display().to_string()));
    }
    match &config.listen {
        Some(addr) => report.add("listen", check_address(addr)),
        None => report.add("listen", Ok("off; other nodes cannot push here".into())),
    }
    if let Some(addr) = &config.metrics {
        report.add("metrics", check_address(addr));
    }
    match config.plugins_to_serve() {
        Err(error) => report.add("plugin", Err(error)),
        Ok(plugins) => {
            for plugin in &plugins {
                let what = format!("plugin {}", plugin.path.display());
                report.add(&what, service_plugins::check(&config, plugin));
            }
        }
    }
    check_exports(&config, &mut report);
    if let Some(told) = &config.namespace {
        report.add("namespace", namespace_check::folder(told));
        report.add("namespace nodes", namespace_check::nodes(told, config.listen.as_deref()));
        if let Some(archive) = &told.archive {
            report.add("namespace archive", namespace_check::archive(&archive.root));
        }
    }
    if let Some(path) = config.forward() {
        report.add("namespace forward", forward::check(path));
    }
    let validate = match config.validate {
        Validate::Always => "always; a copy is compared with its source before it is handed out",
        Validate::Never => "never; sources are taken not to change",
    };
    report.add("validate", Ok(validate.into()));
    report.text.push_str(if report.good {
        "zazend would start\n"
    } else {
        "zazend would not do its work; mend the errors above\n"
    });
    report
}

/// The folders of `--export`. Those of `--backing` have lines of their own.
fn check_exports(config: &Config, report: &mut Report) {
    let is_backing = |export: &Path| config.backing.iter().any(|store| Path::new(&store.directory) == export);
    let told: Vec<&PathBuf> = config.exports.iter().filter(|export| !is_backing(export)).collect();
    for export in &told {
        let shown = export.display();
        let found = match std::fs::metadata(export) {
            Ok(found) if found.is_dir() => Ok("programs may reach what is below".to_owned()),
            Ok(_) => Err(Error::new(ErrorKind::Config, "is not a directory; give another --export")),
            Err(error) => Err(Error::io("make the folder, or give another --export", error)),
        };
        report.add(&format!("export {shown}"), found);
    }
    if !told.is_empty() && config.plugins_to_serve().is_ok_and(|plugins| plugins.is_empty()) {
        report.note("export", "no plug-in uses it; for `zazen run`, add --plugin posix");
    }
}

fn check_cache(config: &Config, spec: &CacheSpec) -> Result<String> {
    let cache = &spec.root;
    check_placement(config)?;
    check_budget(config)?;
    RealDisk::check_root(cache)?;
    let place = nearest(cache);
    if !place.is_dir() {
        return Err(Error::new(
            ErrorKind::Config,
            format!("{} is not a directory; choose another --cache", place.display()),
        ));
    }
    try_writing(&place, "choose another --cache or mend its permissions")?;
    let mut state = remembered(cache)?;
    let (free, capacity) = disk_space(&place)?;
    let limits = space_limits(config, spec, (free, capacity), &mut state);
    if limits.budget_bytes > capacity {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "the budget of {} is more than the disk's {}; lower --budget",
                show(limits.budget_bytes),
                show(capacity)
            ),
        ));
    }
    let kind = disk_kind(&place);
    let readers = config.readers.unwrap_or(kind.readers());
    let made = if cache.is_dir() { "" } else { " (would be made)" };
    Ok(format!(
        "{}{made}: budget {}, floor {} of free space, {kind}, {readers} readers{}",
        cache.display(),
        show(limits.budget_bytes),
        show(limits.free_floor_bytes),
        beside(config, spec)
    ))
}

/// Names an earlier cache on the same disk.
fn beside(config: &Config, spec: &CacheSpec) -> String {
    let disk_of = |spec: &CacheSpec| std::fs::metadata(nearest(&spec.root)).ok().map(|meta| meta.dev());
    let mut earlier = config.caches.iter().take_while(|other| *other != spec);
    let shared = earlier.find(|other| disk_of(other) == disk_of(spec));
    shared.map_or_else(String::new, |other| {
        format!("; shares the disk of {}, give one folder for each disk", other.root.display())
    })
}

/// What the cache at `root` remembers, without making the root or closing it to other users.
fn remembered(root: &Path) -> Result<CacheState> {
    if root.is_dir() { CacheState::read(&RealDisk::as_it_is(root)?) } else { Ok(CacheState::default()) }
}

fn check_backing(config: &Config, report: &mut Report) {
    let remembered = |spec: &CacheSpec| Some((spec.root.clone(), remembered(&spec.root).ok()?));
    let states: Vec<_> = config.caches.iter().filter_map(remembered).collect();
    let mut state = match CacheState::of_all(&states) {
        Ok(state) => state,
        Err(error) => return report.add("cache", Err(error)),
    };
    let roots = match BackingRoots::new(&config.backing, &mut state, &std::sync::Arc::default()) {
        Ok(roots) => roots,
        Err(error) => return report.add("backing", Err(error)),
    };
    if config.quotas != QuotaSettings::default() {
        let told = quotas::of(&config.quotas, &roots).map(|_| config.quotas.shown());
        report.add("budgets of users and datasets", told);
    }
    for root in &roots.roots {
        let listed = root.backing.list(&RelPath::default());
        let named =
            if root.prefix.is_root() { String::new() } else { format!(", cached under {}/", root.prefix) };
        let found =
            listed.map(|names| format!("{} entries by {}{named}", names.len(), root.backing.describe()));
        report.add(&format!("backing {}", root.directory), found);
    }
}

fn check_socket(socket: &Path) -> Result<String> {
    let refuse = |why: String| Err(Error::new(ErrorKind::Config, format!("{}: {why}", socket.display())));
    if socket.as_os_str().len() > SOCKET_PATH_MAX {
        return refuse(format!(
            "is longer than the kernel's limit of {SOCKET_PATH_MAX} bytes; choose a shorter --socket"
        ));
    }
    let place = nearest(socket.parent().unwrap_or(Path::new("/")));
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    if !place.is_dir() || rustix::fs::access(&place, access).is_err() {
        return refuse(format!("{} cannot be written to; choose another --socket", place.display()));
    }
    if UnixStream::connect(socket).is_ok() {
        return Ok(format!(
            "{}, where a daemon answers now; stop it before starting this one",
            socket.display()
        ));
    }
    Ok(socket.display().to_string())
}

fn check_address(addr: &str) -> Result<String> {
    match TcpListener::bind(addr) {
        Ok(_) => Ok(addr.to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Ok(format!("{addr}, which is taken now; stop what has it before starting this daemon"))
        }
        Err(error) => Err(Error::io(format!("{addr} cannot be listened to; choose another address"), error)),
    }
}
