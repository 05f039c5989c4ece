//! What the facts of all nodes mean. *Pure.*
//!
//! A *problem* keeps Zazen from its work on a node, or makes results depend on luck. *Advice* is
//! about time and about things to come. Each finding says what to do.

use super::facts::{Cache, Facts, Looked, Measured, Namespace};
use crate::target::Missed;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use zazen_client::NodeState;
use zazen_core::byte_size::show;

/// Clocks that differ by more than this, beyond what the measurement cannot tell, are worth advice.
const CLOCK_ADVICE_S: f64 = 0.1;
/// Beyond this they are a problem.
const CLOCK_PROBLEM_S: f64 = 1.0;
/// A daemon with fewer descriptors cannot serve many ranks.
const DESCRIPTORS_MIN: u64 = 4096;
/// Threads that a daemon needs beside one for each connection.
const THREADS_BESIDE: u64 = 256;
/// A control group with less memory is worth advice.
const MEMORY_MIN: u64 = 1 << 30;
/// A disk that reads more slowly is hardly a cache.
const READ_RATE_MIN: f64 = 50e6;
/// A store whose root takes longer to answer is slow.
const BACKING_SLOW_S: f64 = 1.0;
/// Nodes of which a median says something.
const MEDIAN_NODES: usize = 3;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Problem,
    Advice,
}

impl Level {
    pub(super) fn word(self) -> &'static str {
        match self {
            Level::Problem => "problem",
            Level::Advice => "advice",
        }
    }
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// The node, or `all nodes`.
    pub(super) node: String,
    /// What was looked at.
    pub(super) check: &'static str,
    pub(super) what: String,
    /// What to do.
    pub(super) remedy: String,
}

impl Finding {
    pub(super) fn as_json(&self) -> Value {
        let Finding { level, node, check, what, remedy } = self;
        json!({"level": level.word(), "node": node, "check": check, "what": what, "remedy": remedy})
    }
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        level: Level,
        node: &str,
        check: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (node, what, remedy) = (node.to_owned(), what.into(), remedy.into());
        self.0.push(Finding { level, node, check, what, remedy });
    }
}

/// All findings, problems first. `own_version`: that of the tool which asks.
pub(super) fn judge(looked: &[Looked], own_version: &str) -> Vec<Finding> {
    let mut found = Findings(Vec::new());
    for one in looked {
        judge_answer(one, &mut found);
        if let Some(facts) = &one.facts {
            judge_daemon(&one.name, facts, &mut found);
            facts.caches.iter().for_each(|cache| judge_cache(&one.name, facts, cache, &mut found));
            if let Some(namespace) = &facts.namespace {
                judge_namespace(&one.name, namespace, &mut found);
            }
            judge_stores(&one.name, facts, &mut found);
        }
    }
    compare_clocks(looked, &mut found);
    compare_disks(looked, &mut found);
    compare_settings(looked, &mut found);
    if !looked.is_empty()
        && looked.iter().all(|one| one.version.as_deref().is_some_and(|version| version != own_version))
    {
        let what = format!("this tool is of release {own_version}, no node is");
        found.add(Level::Advice, "this machine", "version", what, "install the nodes' release here too");
    }
    found.0.sort_by_key(|finding| finding.level);
    found.0
}

fn judge_answer(one: &Looked, found: &mut Findings) {
    let name = one.name.as_str();
    if let Some(missed) = &one.missed {
        let (what, remedy) = state_of(missed);
        found.add(Level::Problem, name, "daemon", what, remedy);
    }
    if let Some(why) = &one.not_examined {
        found.add(
            Level::Advice,
            name,
            "rights",
            format!("not examined: {why}"),
            "run `zazen doctor` as root, or with --nodes and --key",
        );
    }
    if let Some(why) = &one.large_messages {
        let what = format!("small messages arrive, messages of several packets do not: {why}");
        found.add(
            Level::Problem,
            name,
            "network",
            what,
            "the packet size (MTU) differs on the way: give all nodes and switches the same, or clamp it",
        );
    }
}

fn judge_daemon(name: &str, facts: &Facts, found: &mut Findings) {
    let limits = &facts.limits;
    if facts.draining {
        found.add(Level::Problem, name, "daemon", "it is about to stop", "start it again");
    }
    if let Some(descriptors) = limits.descriptors.filter(|descriptors| *descriptors < DESCRIPTORS_MIN) {
        let what = format!("it may open {descriptors} files, one for each frame on its way");
        found.add(Level::Advice, name, "limits", what, "set LimitNOFILE=65536 in its unit (ulimit -n)");
    }
    if let Some(threads) = limits.threads.filter(|threads| *threads < limits.connections_max + THREADS_BESIDE)
    {
        let what = format!(
            "it may have {threads} threads, fewer than one for each of {} connections",
            limits.connections_max
        );
        found.add(
            Level::Advice,
            name,
            "limits",
            what,
            "raise TasksMax in its unit, or lower connections_max",
        );
    }
    if let Some(bytes) = limits.memory_bytes.filter(|bytes| *bytes < MEMORY_MIN) {
        let what = format!("its control group has {} of memory, and pages of the cache count", show(bytes));
        found.add(Level::Advice, name, "limits", what, "raise MemoryMax in its unit");
    }
    if let (Some(total), Some(available)) = (facts.memory.total_bytes, facts.memory.available_bytes)
        && available < total / 20
    {
        let what = format!("{} of {} are available", show(available), show(total));
        found.add(
            Level::Advice,
            name,
            "memory",
            what,
            "find out what takes it: cached frames are read from the disk again",
        );
    }
    if !facts.acts_for_others {
        let (level, what) = match facts.user {
            0 => (Level::Problem, "the daemon runs as root and cannot act for other users".to_owned()),
            user => (Level::Advice, format!("it runs as user {user} and serves that user alone")),
        };
        let remedy = "for a daemon of all users, run it as root with CAP_SETUID and CAP_SETGID";
        found.add(level, name, "users", what, remedy);
    }
    if let Some(why) = &facts.refused {
        let what = format!("the last SIGHUP was refused: {why}");
        found.add(Level::Advice, name, "settings", what, "correct the file, then send SIGHUP again");
    }
    if !facts.needs_restart.is_empty() {
        let what = format!("settings wait for a restart: {}", facts.needs_restart.join(", "));
        found.add(Level::Advice, name, "settings", what, "restart its daemon when that suits");
    }
    if let Some(key) = &facts.key {
        let mode = key.mode.as_deref().and_then(|mode| u32::from_str_radix(mode, 8).ok());
        if let Some(why) = &key.error {
            let what = format!("key file {}: {why}; the daemon goes on with what it read", key.path);
            found.add(Level::Advice, name, "key", what, "put it back before the next start");
        } else if mode.is_some_and(|mode| mode & 0o007 != 0) {
            let what = format!("everybody can read or write {}", key.path);
            found.add(
                Level::Problem,
                name,
                "key",
                what,
                format!("run `chmod 600 {}`, and make a new key", key.path),
            );
        }
    }
}

/// What its folder lies on. `what`: the folder's name in words, and the flag that names it.
fn judge_folder(
    name: &str,
    (what, flag): (&str, &str),
    root: &str,
    file_system: Option<&str>,
    found: &mut Findings,
) {
    match file_system {
        Some(remote @ ("nfs" | "lustre" | "gpfs" | "beegfs" | "ceph" | "smb")) => found.add(
            Level::Problem,
            name,
            "disk",
            format!("{what} {root} lies on {remote}, which is no local disk"),
            format!("give {flag} a folder on a disk of the node"),
        ),
        Some(odd @ ("tmpfs" | "overlay" | "fuse")) => found.add(
            Level::Advice,
            name,
            "disk",
            format!("{what} {root} lies on {odd}"),
            format!("give {flag} a folder on a disk of the node, unless that is meant"),
        ),
        _ => {}
    }
}

fn judge_mode(name: &str, what: &str, root: &str, mode: Option<&str>, found: &mut Findings) {
    let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok());
    if mode.is_some_and(|mode| mode & 0o022 != 0) {
        let advice = format!("find out who did, then run `chmod go-w {root}`");
        found.add(Level::Problem, name, "permissions", format!("others can write to {what} {root}"), advice);
    }
}

fn judge_namespace(name: &str, namespace: &Namespace, found: &mut Findings) {
    let Namespace { root, file_system, mode, free, floor } = namespace;
    judge_folder(name, ("namespace", "--namespace"), root, file_system.as_deref(), found);
    judge_mode(name, "namespace", root, mode.as_deref(), found);
    if let Some(free) = free.filter(|free| free < floor) {
        let what = format!(
            "the disk of namespace {root} is nearly full: {} are free, and below {} new files go to \
             other nodes; where none has room, nothing new can be made",
            show(free),
            show(*floor)
        );
        let advice = "make room: `zazen namespace balance`, `zazen stage-out`, or remove files";
        found.add(Level::Problem, name, "disk", what, advice);
    }
}

fn judge_cache(name: &str, facts: &Facts, cache: &Cache, found: &mut Findings) {
    if !cache.ok {
        let what = format!("cache {} {}", cache.root, cache.trouble);
        found.add(
            Level::Problem,
            name,
            "disk",
            what,
            "look at the kernel's log, then repair or replace the disk",
        );
    }
    judge_folder(name, ("cache", "--cache"), &cache.root, cache.file_system.as_deref(), found);
    if cache.ok && cache.free < cache.floor {
        let what = format!(
            "cache {} takes no new frames: {} are free on its disk, and {} must stay free",
            cache.root,
            show(cache.free),
            show(cache.floor)
        );
        let advice = "make room on that disk, or set another free_floor";
        found.add(Level::Problem, name, "disk", what, advice);
    }
    if cache.ok && cache.budget > cache.used.saturating_add(cache.free) {
        let what = format!(
            "the budget is {}, but with what is cached and what is free the disk has {}",
            show(cache.budget),
            show(cache.used.saturating_add(cache.free))
        );
        found.add(
            Level::Advice,
            name,
            "disk",
            what,
            "lower the budget, or remove what else lies on that disk",
        );
    }
    judge_mode(name, "cache", &cache.root, cache.mode.as_deref(), found);
    if let Some(measured) = &cache.measured {
        if let Some(why) = &measured.error {
            found.add(
                Level::Advice,
                name,
                "disk",
                format!("{} was not measured: {why}", cache.root),
                "look again with `zazen doctor`",
            );
        }
        if let Some(rate) = measured.read_bytes_per_s.filter(|rate| *rate < READ_RATE_MIN) {
            let what = format!("{} reads {}", cache.root, rate_text(rate));
            found.add(
                Level::Advice,
                name,
                "disk",
                what,
                "a cache should be on a faster disk than that, or the disk is busy or failing",
            );
        }
    }
    if cache.kind == "spinning disk" && older_than(&facts.kernel, (6, 5)) {
        let what = format!("kernel {} cannot tell which files are in memory", facts.kernel);
        found.add(
            Level::Advice,
            name,
            "kernel",
            what,
            "Linux 6.5 saves readers their turns at the spinning disk",
        );
    }
}

fn judge_stores(name: &str, facts: &Facts, found: &mut Findings) {
    for backing in &facts.backing {
        if let Some(why) = &backing.error {
            let what = format!("{}: {why}", backing.root);
            let remedy = if backing.root.starts_with("s3://") {
                "look at the store's server, and at zazend's endpoint and credentials; cached frames are \
                 served meanwhile"
            } else {
                "mount it, or repair it; cached frames are served meanwhile"
            };
            found.add(Level::Problem, name, "backing store", what, remedy);
        } else if backing.answered_s > BACKING_SLOW_S {
            let what = format!("{} took {:.1} s to answer", backing.root, backing.answered_s);
            found.add(Level::Advice, name, "backing store", what, "look at the store's metadata server");
        }
    }
}

fn compare_clocks(looked: &[Looked], found: &mut Findings) {
    let offsets: Vec<f64> = looked.iter().filter_map(|one| one.clock_offset_s).collect();
    // With few nodes this machine's own clock is as good a witness as any.
    let usual = if offsets.len() < MEDIAN_NODES { 0.0 } else { median(offsets).unwrap_or(0.0) };
    for one in looked {
        let (Some(offset), Some(round_trip)) = (one.clock_offset_s, one.round_trip_s) else { continue };
        let (differs, error) = ((offset - usual).abs(), round_trip / 2.0);
        if differs <= CLOCK_ADVICE_S + error {
            continue;
        }
        let level = if differs > CLOCK_PROBLEM_S + error { Level::Problem } else { Level::Advice };
        let side = if offset > usual { "ahead of" } else { "behind" };
        let what = format!(
            "its clock is {differs:.3} s {side} the others' (to {error:.3} s): changes of sources may be \
             missed, or fetched twice"
        );
        found.add(level, &one.name, "clock", what, "mend its time service (chronyc tracking)");
    }
}

fn compare_disks(looked: &[Looked], found: &mut Findings) {
    let of_all = |measured: &Measured| measured.read_bytes_per_s;
    let rate = |one: &Looked| one.facts.as_ref()?.rate(of_all);
    let rates: Vec<f64> = looked.iter().filter_map(rate).collect();
    if rates.len() < MEDIAN_NODES {
        return;
    }
    let Some(usual) = median(rates) else { return };
    for one in looked {
        if let Some(rate) = rate(one).filter(|rate| *rate < usual / 2.0 && *rate >= READ_RATE_MIN) {
            let what = format!(
                "its disks read {}, half the nodes read {} or more",
                rate_text(rate),
                rate_text(usual)
            );
            found.add(
                Level::Advice,
                &one.name,
                "disk",
                what,
                "look whether it is busy, failing, or of another kind",
            );
        }
    }
}

fn compare_settings(looked: &[Looked], found: &mut Findings) {
    let all = || looked.iter().filter_map(|one| Some((one.name.as_str(), one.facts.as_ref()?)));
    differing(
        all().map(|(name, facts)| (name, facts.mtu().map(|mtu| mtu.to_string()))),
        |odd, usual, said| {
            let what = format!("the largest packet (MTU) is {odd}, on {said} it is {usual}");
            (
                Level::Advice,
                "network",
                what,
                "give all nodes the same MTU, or check that the network clamps it",
            )
        },
    )
    .into_iter()
    .for_each(|finding| found.0.push(finding));
    let roots = |facts: &Facts| {
        let mut roots: Vec<&str> = facts.backing.iter().map(|backing| backing.root.as_str()).collect();
        roots.sort_unstable();
        Some(roots.join(" "))
    };
    differing(all().map(|(name, facts)| (name, roots(facts))), |odd, usual, said| {
        let what = format!("its backing stores are {odd}, on {said} they are {usual}");
        (
            Level::Problem,
            "backing store",
            what,
            "give all nodes the same --backing, so that a dataset has one name",
        )
    })
    .into_iter()
    .for_each(|finding| found.0.push(finding));
    let versions = looked.iter().map(|one| (one.name.as_str(), one.version.clone()));
    differing(versions, |odd, usual, said| {
        let what = format!("it runs {odd}, {said} run {usual}");
        (Level::Advice, "version", what, "finish the upgrade: the same release on all nodes")
    })
    .into_iter()
    .for_each(|finding| found.0.push(finding));

    let mut names: BTreeMap<&str, Vec<&Looked>> = BTreeMap::new();
    let mut identities: BTreeMap<&str, Vec<&Looked>> = BTreeMap::new();
    for one in looked {
        if let Some(facts) = &one.facts {
            names.entry(&one.name).or_default().push(one);
            identities.entry(&facts.node).or_default().push(one);
        }
    }
    for (identity, ones) in
        identities.into_iter().filter(|(identity, ones)| !identity.is_empty() && ones.len() > 1)
    {
        let targets: Vec<&str> = ones.iter().map(|one| one.target.as_str()).collect();
        let what = format!("{} are one node ({identity})", targets.join(" and "));
        let remedy = "name each node once; if a cache was copied to another node, empty the copy";
        found.add(Level::Problem, &ones[0].name, "identity", what, remedy);
    }
    let are_two = |ones: &[&Looked]| {
        let identity = |one: &Looked| one.facts.as_ref().map(|facts| facts.node.clone());
        ones.iter().any(|one| identity(one) != identity(ones[0]))
    };
    for (name, ones) in names.into_iter().filter(|(_, ones)| are_two(ones)) {
        let what = format!("{} nodes have this name", ones.len());
        found.add(Level::Advice, name, "identity", what, "give each its own --name, or host name");
    }
}

/// A finding for each node whose value is not the one that most nodes have.
fn differing<'a>(
    values: impl Iterator<Item = (&'a str, Option<String>)>,
    tell: impl Fn(&str, &str, &str) -> (Level, &'static str, String, &'static str),
) -> Vec<Finding> {
    let known: Vec<(&str, String)> = values.filter_map(|(name, value)| Some((name, value?))).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    known.iter().for_each(|(_, value)| *counts.entry(value).or_default() += 1);
    let Some((usual, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return Vec::new() };
    let said = if count == 1 { "another node".to_owned() } else { format!("{count} nodes") };
    let odd = known.iter().filter(|(_, value)| value != usual);
    odd.map(|(name, value)| {
        let (level, check, what, remedy) = tell(value, usual, &said);
        Finding { level, node: (*name).to_owned(), check, what, remedy: remedy.to_owned() }
    })
    .collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn rate_text(rate: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a rate, for people
    let bytes = rate as u64;
    format!("{}/s", show(bytes))
}

/// Whether a kernel's release is older than this; one that cannot be read is not.
fn older_than(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < version,
        _ => false,
    }
}

/// What is the matter with a node that did not answer.
fn state_of(missed: &Missed) -> (String, &'static str) {
    let what = match missed.state {
        NodeState::Failed => missed.error.to_string(),
        state => format!("{state}: {}", missed.error),
    };
    (what, missed.state.remedy())
}

#[cfg(test)]
mod tests {
    use super::super::facts::*;
    use super::*;

    /// A node with which nothing is wrong.
    fn well(name: &str) -> Looked {
        Looked {
            name: name.to_owned(),
            target: format!("daemon at {name}:7345"),
            version: Some("1.0".into()),
            clock_offset_s: Some(0.001),
            round_trip_s: Some(0.002),
            facts: Some(Facts {
                node: format!("id of {name}"),
                acts_for_others: true,
                kernel: "6.1.0-13".into(),
                limits: Limits { descriptors: Some(65_536), connections_max: 4096, ..Limits::default() },
                interfaces: vec![Interface { name: "eth0".into(), mtu: 9000, is_physical: true }],
                caches: vec![Cache {
                    root: "/ssd".into(),
                    ok: true,
                    free: 100,
                    budget: 50,
                    ..Cache::default()
                }],
                backing: vec![Backing { root: "/lustre".into(), ..Backing::default() }],
                ..Facts::default()
            }),
            ..Looked::default()
        }
    }

    fn cluster(spoil: impl FnOnce(&mut Looked)) -> Vec<Looked> {
        let mut all: Vec<Looked> = ["n1", "n2", "n3", "n4"].map(well).into();
        spoil(&mut all[2]);
        all
    }

    #[test]
    fn a_good_cluster_has_no_findings() {
        assert_eq!(judge(&cluster(|_| {}), "1.0"), []);
        assert_eq!(judge(&[well("n1")], "1.0"), []);
    }

    #[test]
    fn each_fault_is_one_finding_about_its_node() {
        fn facts(one: &mut Looked) -> &mut Facts {
            one.facts.get_or_insert_default()
        }
        #[allow(clippy::type_complexity)]
        let faults: Vec<(fn(&mut Looked), Level, &str, &str)> = vec![
            (|one| one.clock_offset_s = Some(-0.5), Level::Advice, "clock", "0.501 s behind"),
            (|one| one.clock_offset_s = Some(9.0), Level::Problem, "clock", "ahead of"),
            (
                |one| one.large_messages = Some("timed out".into()),
                Level::Problem,
                "network",
                "several packets",
            ),
            (|one| one.not_examined = Some("only root".into()), Level::Advice, "rights", "not examined"),
            (
                |one| facts(one).interfaces[0].mtu = 1500,
                Level::Advice,
                "network",
                "is 1500, on 3 nodes it is 9000",
            ),
            (|one| facts(one).limits.descriptors = Some(1024), Level::Advice, "limits", "1024 files"),
            (|one| facts(one).limits.threads = Some(4000), Level::Advice, "limits", "4000 threads"),
            (|one| facts(one).limits.memory_bytes = Some(1 << 20), Level::Advice, "limits", "1.0 MiB"),
            (
                |one| facts(one).memory = Memory { total_bytes: Some(1000), available_bytes: Some(10) },
                Level::Advice,
                "memory",
                "available",
            ),
            (|one| facts(one).acts_for_others = false, Level::Problem, "users", "runs as root"),
            (
                |one| (facts(one).acts_for_others, facts(one).user) = (false, 1000),
                Level::Advice,
                "users",
                "user 1000",
            ),
            (|one| facts(one).refused = Some("bad".into()), Level::Advice, "settings", "refused: bad"),
            (
                |one| facts(one).needs_restart = vec!["cache".into()],
                Level::Advice,
                "settings",
                "restart: cache",
            ),
            (|one| facts(one).draining = true, Level::Problem, "daemon", "about to stop"),
            (
                |one| facts(one).key = Some(Key { mode: Some("644".into()), ..Key::default() }),
                Level::Problem,
                "key",
                "everybody can read",
            ),
            (
                |one| facts(one).key = Some(Key { error: Some("gone".into()), ..Key::default() }),
                Level::Advice,
                "key",
                "gone",
            ),
            (
                |one| {
                    (facts(one).caches[0].ok, facts(one).caches[0].trouble) = (false, "cannot be read".into())
                },
                Level::Problem,
                "disk",
                "cannot be read",
            ),
            (
                |one| facts(one).caches[0].floor = 101,
                Level::Problem,
                "disk",
                "takes no new frames: 100 B are free on its disk, and 101 B must stay free",
            ),
            (
                |one| facts(one).caches[0].file_system = Some("nfs".into()),
                Level::Problem,
                "disk",
                "lies on nfs",
            ),
            (
                |one| facts(one).caches[0].file_system = Some("tmpfs".into()),
                Level::Advice,
                "disk",
                "lies on tmpfs",
            ),
            (|one| facts(one).caches[0].budget = 1000, Level::Advice, "disk", "the budget is"),
            (
                |one| facts(one).caches[0].mode = Some("777".into()),
                Level::Problem,
                "permissions",
                "others can write",
            ),
            (
                |one| {
                    facts(one).caches[0].measured =
                        Some(Measured { read_bytes_per_s: Some(1e6), ..Measured::default() })
                },
                Level::Advice,
                "disk",
                "/ssd reads",
            ),
            (
                |one| {
                    facts(one).caches[0].measured =
                        Some(Measured { error: Some("full".into()), ..Measured::default() })
                },
                Level::Advice,
                "disk",
                "/ssd was not measured: full",
            ),
            (|one| facts(one).caches[0].kind = "spinning disk".into(), Level::Advice, "kernel", "6.1.0-13"),
            (
                |one| {
                    let (root, free) = ("/ssd/ns".into(), Some(100));
                    facts(one).namespace = Some(Namespace { root, free, floor: 101, ..Namespace::default() });
                },
                Level::Problem,
                "disk",
                "/ssd/ns is nearly full: 100 B are free, and below 101 B new files go to other nodes",
            ),
            (
                |one| {
                    let (root, mode) = ("/ssd/ns".into(), Some("777".into()));
                    facts(one).namespace = Some(Namespace { root, mode, ..Namespace::default() });
                },
                Level::Problem,
                "permissions",
                "others can write to namespace /ssd/ns",
            ),
            (
                |one| facts(one).backing[0].error = Some("gone".into()),
                Level::Problem,
                "backing store",
                "gone",
            ),
            (|one| facts(one).backing[0].answered_s = 3.0, Level::Advice, "backing store", "3.0 s"),
            (
                |one| facts(one).backing[0].root = "/nfs".into(),
                Level::Problem,
                "backing store",
                "on 3 nodes they are /lustre",
            ),
            (|one| facts(one).node = "id of n1".into(), Level::Problem, "identity", "are one node"),
        ];
        for (spoil, level, check, words) in faults {
            let found = judge(&cluster(spoil), "1.0");
            assert_eq!(found.len(), 1, "{words}: {found:?}");
            let one = &found[0];
            assert_eq!((one.level, one.check), (level, check), "{one:?}");
            assert!(one.what.contains(words) && !one.remedy.is_empty(), "{one:?}");
            assert!(one.node == "n3" || check == "identity", "{one:?}");
        }
    }

    #[test]
    fn slow_disks_names_and_versions_are_compared() {
        let mut all = cluster(|_| {});
        for (one, rate) in all.iter_mut().zip([500e6, 510e6, 100e6, 490e6]) {
            one.facts.get_or_insert_default().caches[0].measured =
                Some(Measured { read_bytes_per_s: Some(rate), ..Measured::default() });
        }
        all[1].name = "n1".to_owned();
        all[3].version = Some("0.9".to_owned());
        let found = judge(&all, "1.0");
        let checks: Vec<(&str, &str)> = found.iter().map(|one| (one.node.as_str(), one.check)).collect();
        assert_eq!(checks, [("n3", "disk"), ("n4", "version"), ("n1", "identity")]);
        let told = judge(&cluster(|_| {}), "2.0");
        assert_eq!((told.len(), told[0].node.as_str()), (1, "this machine"));
    }

    #[test]
    fn a_clock_is_not_blamed_for_a_slow_network() {
        let slow = cluster(|one| (one.clock_offset_s, one.round_trip_s) = (Some(0.4), Some(1.0)));
        assert_eq!(judge(&slow, "1.0"), []);
    }

    #[test]
    fn kernels_are_ordered() {
        assert!(older_than("6.1.0-13-amd64", (6, 5)) && older_than("5.15", (6, 5)));
        assert!(!older_than("6.5.0", (6, 5)) && !older_than("7.0", (6, 5)) && !older_than("odd", (6, 5)));
    }
}
