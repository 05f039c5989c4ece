//! The daemon's state, as JSON for tools and as text for people.

use crate::node::Node;
use crate::node_store::DiskState;
use crate::quotas::{self, Row, Whose};
use crate::service_plugins;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;
use zazen_backing::{Backing, Rights};
use zazen_call::Caller;
use zazen_core::RelPath;
use zazen_core::byte_size::show;
use zazen_store::DatasetSummary;

/// The JSON of STATUS for `caller`.
pub fn status(node: &Node, caller: &Caller) -> Value {
    let space = node.store.space();
    let backing = node.roots.roots.iter().map(|root| {
        let (reads, bytes) = root.backing.traffic();
        json!({
            "root": root.directory, "describe": root.backing.describe(), "ok": root.backing.is_ok(),
            "reads": reads, "bytes": bytes,
        })
    });
    let backing: Vec<Value> = backing.collect();
    let (opened, scans) = (node.shares.opened.under_way(), node.shares.scans.under_way());
    json!({
        "node": format!("{:032x}", node.store.node()),
        "name": node.config().name,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_s": node.started.elapsed().as_secs(),
        "cache": node.cache_root,
        "readers": node.readers(),
        "space": {
            "used": space.used, "reserved": space.reserved, "budget": space.budget, "free": space.free,
            "floor": space.floor,
        },
        "quotas": quotas(node, caller),
        "disk": disk(node, caller),
        "disks": disks(node, caller),
        "counters": counters(node),
        "hit_rate": node.counters.hit_rate(),
        "connections": node.connections(),
        "opened": opened,
        "scans": scans,
        "fetches": node.fetcher.under_way(),
        "backing": backing,
        "datasets": datasets(node, caller),
        "plugins": node.plugins.get().and_then(std::sync::Weak::upgrade)
            .map_or(Value::Array(Vec::new()), |plugins| service_plugins::status(&plugins)),
        "left_undone": left_undone(node),
        "draining": node.draining.load(std::sync::atomic::Ordering::SeqCst),
    })
}

/// The health of the cache's disks together. The cause names files, which are only the operators'
/// to know.
fn disk(node: &Node, caller: &Caller) -> Value {
    let states = node.disks.states();
    let failing: Vec<String> =
        states.iter().filter(|disk| !disk.trouble.is_empty()).map(|disk| told(disk, states.len())).collect();
    let trouble = match (failing.is_empty(), node.is_operator(caller)) {
        (true, _) => Value::Null,
        (false, true) => failing.join("; ").into(),
        (false, false) => FAILS.into(),
    };
    let sum = |pick: fn(&DiskState) -> u64| states.iter().map(pick).sum::<u64>();
    json!({
        "ok": failing.is_empty(), "trouble": trouble,
        "read_failures": sum(|disk| disk.failures.0), "change_failures": sum(|disk| disk.failures.1),
    })
}

/// What users and folders have of their bounds. Who is no operator is told its own.
fn quotas(node: &Node, caller: &Caller) -> Value {
    let is_shown = |row: &Row| node.is_operator(caller) || row.whose == Whose::User(caller.credentials.uid);
    let shown = quotas::report(node).into_iter().filter(is_shown);
    let all = shown.map(|row| match row.whose {
        Whose::User(uid) => json!({"user": uid, "used": row.used, "budget": row.budget}),
        Whose::Folder(path) => json!({"folder": path, "used": row.used, "budget": row.budget}),
    });
    all.collect()
}

const FAILS: &str = "it fails; its operator is told more";

/// What is wrong with a disk, and with which one if there are several.
fn told(disk: &DiskState, count: usize) -> String {
    match count {
        1 => disk.trouble.clone(),
        _ => format!("{} {}", disk.root.display(), disk.trouble),
    }
}

/// Each disk of the cache: its root, its health and its space.
fn disks(node: &Node, caller: &Caller) -> Value {
    let all = node.disks.states().into_iter().map(|disk| {
        let trouble = match (disk.trouble.is_empty(), node.is_operator(caller)) {
            (true, _) => Value::Null,
            (false, true) => disk.trouble.clone().into(),
            (false, false) => FAILS.into(),
        };
        json!({
            "root": disk.root, "ok": disk.trouble.is_empty(), "trouble": trouble,
            "used": disk.space.used, "budget": disk.space.budget, "free": disk.space.free,
            "floor": disk.space.floor,
            "read_failures": disk.failures.0, "change_failures": disk.failures.1,
        })
    });
    all.collect()
}

/// What the last SIGHUP left undone: why it refused the settings, and which of them need a restart.
fn left_undone(node: &Node) -> Value {
    let left = node.left_undone.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    json!({"refused": left.refused.is_some(), "needs_restart": left.needs_restart})
}

fn counters(node: &Node) -> Value {
    let mut all = Map::new();
    for (name, value) in node.store.counters() {
        all.insert(name.to_owned(), value.into());
    }
    for (name, _, value) in node.counters.all() {
        all.insert(name.to_owned(), value.into());
    }
    Value::Object(all)
}

/// The JSON of DATASETS for `caller`: operators see all, others those whose directory they may
/// list.
pub fn datasets(node: &Node, caller: &Caller) -> Value {
    let shown = match node.is_operator(caller) {
        true => node.store.datasets(),
        false => shown_to(node, caller),
    };
    let rows = shown.into_iter().map(|dataset| {
        let (directory, pattern) = parts(&dataset.dataset);
        json!({
            "dataset": directory.as_str(),
            "pattern": pattern,
            "path": node.roots.spelled(&directory),
            "natives": dataset.natives,
            "aliens": dataset.aliens,
            "bytes": dataset.bytes,
            "pinned": dataset.pinned,
            "scans": dataset.scans,
            "last_use": dataset.last_use,
        })
    });
    Value::Array(rows.collect())
}

/// A series' directory, and the series for people.
pub(crate) fn parts(series: &RelPath) -> (RelPath, String) {
    series.series_parts().unwrap_or_else(|| (series.clone(), String::new()))
}

fn shown_to(node: &Node, caller: &Caller) -> Vec<DatasetSummary> {
    let Ok(viewer) = node.powers.viewer(caller) else { return Vec::new() };
    let all: Vec<_> = node
        .store
        .datasets()
        .into_iter()
        .filter_map(|dataset| {
            Some((node.roots.locate(&node.roots.spelled(&parts(&dataset.dataset).0)?).ok()?, dataset))
        })
        .collect();
    let mut shown = Vec::new();
    for root in &node.roots.roots {
        let here: Vec<_> = all.iter().filter(|(at, _)| Arc::ptr_eq(&at.root, root)).collect();
        let paths: Vec<_> = here.iter().map(|(at, _)| at.beneath.clone()).collect();
        let rights = Rights::READ.and(Rights::SEARCH);
        let answers = root.seen_by(&viewer).and_then(|view| view.allows_many(&paths, rights));
        let answers = answers.unwrap_or_default().into_iter().map(|answer| answer.unwrap_or(false));
        let open = here.into_iter().zip(answers).filter(|(_, open)| *open);
        shown.extend(open.map(|((_, dataset), _)| dataset.clone()));
    }
    shown.sort_by(|one, other| one.dataset.cmp(&other.dataset));
    shown
}

/// The whole state as text.
pub fn dump(node: &Node) -> String {
    let mut text = String::new();
    let space = node.store.space();
    let (opened, scans) = (node.shares.opened.under_way(), node.shares.scans.under_way());
    let head = format!(
        "zazend {} on {} (node {:032x}, pid {}), up {} s\ncache {}: {} used, {} promised, budget {}, {} free \
         on disk\n\
         {} connections, {opened} datasets open, {scans} scans, {} fetches under way\n\
         memory: {} kept for answers\n",
        env!("CARGO_PKG_VERSION"),
        node.config().name,
        node.store.node(),
        std::process::id(),
        node.started.elapsed().as_secs(),
        node.disks.roots(),
        show(space.used),
        show(space.reserved),
        show(space.budget),
        show(space.free),
        node.connections(),
        node.fetcher.under_way(),
        show(zazen_call::kept_bytes() as u64),
    );
    text.push_str(&head);
    for disk in node.disks.states().iter().filter(|disk| !disk.trouble.is_empty()) {
        writeln!(text, "cache disk {}: {}", disk.root.display(), disk.trouble).ok();
    }
    for root in &node.roots.roots {
        let (reads, bytes) = root.backing.traffic();
        let health = if root.backing.is_ok() { "answers" } else { "does not answer" };
        let prefix =
            if root.prefix.is_root() { String::new() } else { format!(" (named {}/…)", root.prefix) };
        let describe = root.backing.describe();
        // Writing to a String cannot fail.
        writeln!(
            text,
            "backing {}{prefix}: {describe}, {health}, {reads} reads, {}",
            root.directory,
            show(bytes)
        )
        .ok();
    }
    text.push_str("counters:\n");
    for (name, _, value) in node.counters.all().into_iter().filter(|counter| counter.2 > 0) {
        writeln!(text, "  {name} {value}").ok();
    }
    text.push_str("store:\n");
    text.push_str(&node.store.dump());
    text
}
