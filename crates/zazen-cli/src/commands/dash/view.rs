//! What the page shows of the nodes: what each said last, and one JSON of it all. *Pure*: seconds
//! since the page began are arguments.
//!
//! Nothing here escapes names: the page sets them as text, never as HTML.

use super::rates::{Done, LATELY_S, Progress};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// A node that takes longer than this to answer is slow, in seconds.
pub(super) const SLOW_S: f64 = 1.0;
/// Datasets that the page gets, the largest first.
const DATASETS_MAX: usize = 500;
/// Holders of a dataset that the page gets, those with most frames first.
const HOLDERS_MAX: usize = 64;

/// A dataset: its path, and the series' pattern.
pub(super) type Named = (String, String);

/// What came of asking a node.
pub(super) enum Heard {
    /// It answered with its status.
    Status { state: String, status: Value },
    /// It is there, but its status takes too long.
    Slow,
    /// It did not answer, or not with a status.
    Missed { state: String, error: String, remedy: String },
}

/// What is known of a node.
pub(super) struct Seen {
    pub(super) name: String,
    target: String,
    state: String,
    error: String,
    remedy: String,
    /// When `state` began.
    since: f64,
    /// When it answered last.
    heard_at: Option<f64>,
    answer_s: f64,
    /// The last one, null before the first.
    status: Value,
    pub(super) progress: Progress,
    grown: BTreeMap<Named, Growth>,
}

/// How many natives came to a dataset of a node lately.
#[derive(Default)]
struct Growth {
    natives: u64,
    /// Times and frames, the oldest first.
    came: VecDeque<(f64, u64)>,
    /// The clock of its last use, and when that changed while somebody looked.
    last_use: u64,
    used_at: Option<f64>,
}

impl Seen {
    pub(super) fn new(name: String, target: String) -> Seen {
        Seen {
            name,
            target,
            state: "asked".to_owned(),
            error: String::new(),
            remedy: String::new(),
            since: 0.0,
            heard_at: None,
            answer_s: 0.0,
            status: Value::Null,
            progress: Progress::default(),
            grown: BTreeMap::new(),
        }
    }

    /// What came of asking it, at the time `now`, after `answer_s` seconds.
    pub(super) fn hear(&mut self, now: f64, answer_s: f64, heard: Heard) {
        self.answer_s = answer_s;
        let (state, error, remedy) = match heard {
            Heard::Status { state, status } => {
                self.heard_at = Some(now);
                self.take(now, status);
                match state.as_str() {
                    "up" if answer_s > SLOW_S => slow(),
                    _ => (state, String::new(), String::new()),
                }
            }
            Heard::Slow => slow(),
            Heard::Missed { state, error, remedy } => (state, error, remedy),
        };
        if state != self.state {
            self.since = now;
        }
        (self.state, self.error, self.remedy) = (state, error, remedy);
    }

    fn take(&mut self, now: f64, status: Value) {
        self.progress.look(now, Done::of(&status["counters"]));
        if let Some(name) = status["name"].as_str() {
            self.name = name.to_owned();
        }
        let is_first = self.status.is_null();
        let mut grown = BTreeMap::new();
        for (named, row) in rows(&status) {
            let before = self.grown.remove(&named);
            let is_new = before.is_none();
            let mut growth = before.unwrap_or_default();
            let natives = number(row, "natives");
            let more = natives.saturating_sub(growth.natives);
            if more > 0 && !is_first {
                growth.came.push_back((now, more));
            }
            growth.came.retain(|(at, _)| *at > now - LATELY_S);
            growth.natives = natives;
            let last_use = number(row, "last_use");
            if !is_first && (is_new || last_use != growth.last_use) {
                growth.used_at = Some(now);
            }
            growth.last_use = last_use;
            grown.insert(named, growth);
        }
        self.grown = grown;
        self.status = status;
    }

    /// Whether it serves: what it holds counts.
    fn serves(&self) -> bool {
        ["up", "slow", "disk fails", "draining"].contains(&self.state.as_str()) && !self.status.is_null()
    }

    /// Datasets of this node, with the time of their last use as far as it was seen, and its clock.
    pub(super) fn used(&self) -> impl Iterator<Item = (&Named, Option<f64>, u64)> {
        self.grown.iter().map(|(named, growth)| (named, growth.used_at, growth.last_use))
    }

    fn as_json(&self, now: f64) -> Value {
        let status = &self.status;
        let at = |path: &str| status.pointer(path).cloned().unwrap_or(Value::Null);
        let [reads, read_bytes, pushes, push_bytes] = self.progress.lately(now);
        let frames = |key: &str| rows(status).map(|(_, row)| number(row, key)).fold(0, u64::saturating_add);
        json!({
            "name": self.name, "target": self.target, "state": self.state, "error": self.error,
            "remedy": self.remedy, "state_s": now - self.since, "answer_s": self.answer_s,
            "heard_s": self.heard_at.map(|at| now - at), "serves": self.serves(),
            "trouble": trouble(status), "version": at("/version"), "uptime_s": at("/uptime_s"),
            "natives": frames("natives"), "aliens": frames("aliens"),
            "used": at("/space/used"), "budget": at("/space/budget"), "hit_rate": at("/hit_rate"),
            "scans": at("/scans"), "opened": at("/opened"), "fetches": at("/fetches"),
            "connections": at("/connections"), "promised": at("/space/reserved"),
            "reads_per_s": reads, "read_bytes_per_s": read_bytes, "pushes_per_s": pushes,
            "push_bytes_per_s": push_bytes,
        })
    }
}

fn slow() -> (String, String, String) {
    let remedy = "it is there, and takes long to answer: look at its load, its disk and its backing store";
    ("slow".to_owned(), String::new(), remedy.to_owned())
}

/// What is wrong with a node that answers, in sentences.
fn trouble(status: &Value) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(trouble) = status.pointer("/disk/trouble").and_then(Value::as_str) {
        all.push(format!("the cache disk {trouble}; its frames are read from the backing store"));
    }
    for store in status["backing"].as_array().into_iter().flatten().filter(|store| store["ok"] == false) {
        all.push(format!("the backing store {} does not answer", store["root"].as_str().unwrap_or("?")));
    }
    for disk in status["disks"].as_array().into_iter().flatten() {
        if disk["ok"] == true && number(disk, "free") < number(disk, "floor") {
            let root = disk["root"].as_str().unwrap_or("?");
            all.push(format!("the cache {root} takes no new frames: its disk has less free than its floor"));
        }
    }
    if status.pointer("/left_undone/refused") == Some(&Value::Bool(true)) {
        all.push("the last reload was refused; its log says why".to_owned());
    }
    all
}

fn rows(status: &Value) -> impl Iterator<Item = (Named, &Value)> {
    status["datasets"].as_array().into_iter().flatten().map(|row| {
        let text = |key: &str| row[key].as_str().map(str::to_owned);
        let path = text("path").or_else(|| text("dataset")).unwrap_or_default();
        ((path, text("pattern").unwrap_or_default()), row)
    })
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

/// A dataset on all nodes.
#[derive(Default)]
struct Spread {
    natives: u64,
    aliens: u64,
    bytes: u64,
    pinned_on: u64,
    nodes: u64,
    scans: u64,
    pushed: u64,
    /// The node's index, natives, aliens, scans, frames that came lately.
    holders: Vec<[u64; 5]>,
}

/// All nodes at the time `now`. Nodes that do not serve are in `nodes` only: nobody gets frames
/// from them.
pub(super) fn all(seen: &[Seen], now: f64) -> Value {
    let mut spread: BTreeMap<Named, Spread> = BTreeMap::new();
    for (index, node) in seen.iter().enumerate().filter(|(_, node)| node.serves()) {
        for (named, row) in rows(&node.status) {
            let growth = node.grown.get(&named);
            let came = growth.map_or(0, |growth| {
                growth.came.iter().filter(|(at, _)| *at > now - LATELY_S).map(|(_, frames)| frames).sum()
            });
            let (natives, aliens) = (number(row, "natives"), number(row, "aliens"));
            let one = spread.entry(named).or_default();
            one.natives = one.natives.saturating_add(natives);
            one.aliens = one.aliens.saturating_add(aliens);
            one.bytes = one.bytes.saturating_add(number(row, "bytes"));
            one.pinned_on += u64::from(row["pinned"] == true);
            one.nodes += 1;
            one.scans = one.scans.saturating_add(number(row, "scans"));
            one.pushed = one.pushed.saturating_add(came);
            one.holders.push([index as u64, natives, aliens, number(row, "scans"), came]);
        }
    }
    let count = spread.len();
    let mut largest: Vec<(Named, Spread)> = spread.into_iter().collect();
    // What is at work comes first, then what is large. The sort keeps names in order.
    largest.sort_by_key(|(_, one)| std::cmp::Reverse((one.scans + one.pushed > 0, one.bytes)));
    largest.truncate(DATASETS_MAX);
    let datasets: Vec<Value> = largest.into_iter().map(dataset).collect();
    json!({
        "nodes": seen.iter().map(|node| node.as_json(now)).collect::<Vec<_>>(),
        "datasets_left_out": count - datasets.len(),
        "datasets": datasets,
    })
}

#[allow(clippy::cast_precision_loss)] // a rate, for people
fn dataset(((path, pattern), mut one): (Named, Spread)) -> Value {
    one.holders.sort_by_key(|[index, natives, aliens, ..]| (std::cmp::Reverse(natives + aliens), *index));
    one.holders.truncate(HOLDERS_MAX);
    json!({
        "path": path, "pattern": pattern, "natives": one.natives, "aliens": one.aliens, "bytes": one.bytes,
        "pinned_on": one.pinned_on, "nodes": one.nodes, "scans": one.scans,
        "pushed_per_s": one.pushed as f64 / LATELY_S, "holders": one.holders,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &str, datasets: &[(&str, u64, u64)]) -> Value {
        let row = |(path, natives, aliens): &(&str, u64, u64)| {
            json!({"path": path, "pattern": "f-{n}.bin", "natives": natives, "aliens": aliens,
                "bytes": 100 * (natives + aliens), "pinned": false, "scans": 0, "last_use": natives})
        };
        json!({"name": name, "counters": {}, "datasets": datasets.iter().map(row).collect::<Vec<_>>()})
    }

    fn node(name: &str, datasets: &[(&str, u64, u64)]) -> Seen {
        let mut seen = Seen::new(format!("{name}:1"), format!("daemon at {name}:1"));
        seen.hear(0.0, 0.1, up(status(name, datasets)));
        seen
    }

    fn up(status: Value) -> Heard {
        Heard::Status { state: "up".into(), status }
    }

    fn dead() -> Heard {
        Heard::Missed { state: "dead".into(), error: "refused".into(), remedy: "start it".into() }
    }

    #[test]
    fn datasets_are_summed_over_the_nodes_that_serve() {
        let mut nodes = vec![
            node("n0", &[("/a", 5, 1), ("/b", 1, 0)]),
            node("n1", &[("/a", 7, 0)]),
            node("n2", &[("/a", 100, 0)]),
        ];
        nodes[2].hear(3.0, 0.0, dead());
        let shown = all(&nodes, 4.0);
        assert_eq!(shown["datasets"][0]["path"], "/a");
        assert_eq!(shown["datasets"][0]["natives"], 12);
        assert_eq!(shown["datasets"][0]["holders"], json!([[1, 7, 0, 0, 0], [0, 5, 1, 0, 0]]));
        assert_eq!(shown["datasets"][1]["path"], "/b");
        let states: Vec<&str> =
            shown["nodes"].as_array().unwrap().iter().map(|node| node["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["up", "up", "dead"]);
        assert_eq!(shown["nodes"][2]["name"], "n2", "a dead node keeps the name that it told");
        assert_eq!(shown["nodes"][2]["remedy"], "start it");
        assert_eq!(shown["nodes"][2]["state_s"], 1.0);
    }

    #[test]
    fn a_push_is_shown_while_natives_come_and_an_eviction_is_none() {
        let mut nodes = vec![node("n0", &[("/a", 50, 0)])];
        let pushed = |nodes: &[Seen], now| all(nodes, now)["datasets"][0]["pushed_per_s"].as_f64().unwrap();
        assert_eq!(pushed(&nodes, 0.0), 0.0, "what was there before is no push");
        nodes[0].hear(2.0, 0.0, up(status("n0", &[("/a", 70, 0)])));
        assert_eq!(pushed(&nodes, 2.0), 2.0);
        nodes[0].hear(4.0, 0.0, up(status("n0", &[("/a", 10, 0)])));
        assert_eq!(pushed(&nodes, 4.0), 2.0);
        assert_eq!(pushed(&nodes, 13.0), 0.0);
        nodes[0].hear(14.0, 0.0, up(status("n0", &[("/a", 10, 0), ("/new", 30, 0)])));
        let shown = all(&nodes, 14.0);
        assert_eq!(
            (&shown["datasets"][0]["path"], &shown["datasets"][0]["pushed_per_s"]),
            (&json!("/new"), &json!(3.0))
        );
    }

    #[test]
    fn a_node_that_answers_late_is_slow_and_still_counts() {
        let mut nodes = vec![node("n0", &[("/a", 5, 0)])];
        nodes[0].hear(5.0, 3.0, Heard::Slow);
        let shown = all(&nodes, 6.0);
        assert_eq!(shown["nodes"][0]["state"], "slow");
        assert_eq!(shown["nodes"][0]["heard_s"], 6.0);
        assert_eq!(shown["datasets"][0]["natives"], 5);
        nodes[0].hear(8.0, 1.5, up(status("n0", &[])));
        assert_eq!(all(&nodes, 8.0)["nodes"][0]["state"], "slow");
        nodes[0].hear(9.0, 0.1, up(status("n0", &[])));
        assert_eq!(all(&nodes, 9.0)["nodes"][0]["state"], "up");
    }

    #[test]
    fn what_the_page_gets_has_bounds() {
        let names: Vec<String> = (0..DATASETS_MAX + 3).map(|number| format!("/d{number}")).collect();
        let datasets: Vec<(&str, u64, u64)> = names.iter().map(|name| (name.as_str(), 1, 0)).collect();
        let nodes: Vec<Seen> = (0..HOLDERS_MAX + 1).map(|n| node(&format!("n{n}"), &datasets)).collect();
        let shown = all(&nodes, 0.0);
        assert_eq!(shown["datasets"].as_array().unwrap().len(), DATASETS_MAX);
        assert_eq!(shown["datasets_left_out"], 3);
        assert_eq!(shown["datasets"][0]["holders"].as_array().unwrap().len(), HOLDERS_MAX);
        assert_eq!(shown["datasets"][0]["nodes"], HOLDERS_MAX + 1);
    }

    #[test]
    fn trouble_of_nodes_that_answer_is_told() {
        let sick = json!({
            "disk": {"ok": false, "trouble": "cannot be read"},
            "backing": [{"root": "/lustre", "ok": false}, {"root": "/fine", "ok": true}],
            "disks": [{"root": "/ssd", "ok": true, "free": 1, "floor": 2}],
            "left_undone": {"refused": true},
        });
        let told = trouble(&sick);
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[1].contains("/lustre") && told[2].contains("/ssd"), "{told:?}");
        assert!(trouble(&json!({})).is_empty() && trouble(&Value::Null).is_empty());
    }
}
