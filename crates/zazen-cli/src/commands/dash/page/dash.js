// The page of `zazen dash`: asks its server for one JSON text, and shows it.
//
// Invariants: names of nodes, datasets and errors come from other people. They become text nodes
// only (`textContent`); nothing here parses HTML. What did not change is left alone, so that the
// keyboard's focus, a selection and a screen reader stay where they are.
"use strict";

const id = (name) => document.getElementById(name);
const PATIENCE_MS = 8000;

let token = sessionStorage.getItem("zazen-token") || "";
let wanted = null; // the dataset whose last analysis is shown; null: the last of all
let paused = false;
let last = null; // the last state
let lastAt = 0;
const open = new Set(); // datasets whose holders are shown

function takeToken() {
  const found = /^#token=([0-9a-f]{32})$/.exec(location.hash);
  if (!found) return;
  token = found[1];
  sessionStorage.setItem("zazen-token", token);
  // Not in the history, nor in what somebody copies or reads over a shoulder.
  history.replaceState(null, "", location.pathname);
}

// Characters that give orders: to text's direction, or none at all. They are shown, not obeyed.
const ORDERS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const shown = (text) =>
  String(text ?? "").replace(ORDERS, (one) => "\\u{" + one.codePointAt(0).toString(16) + "}");

function say(element, text) {
  const plain = shown(text);
  if (element.textContent !== plain) element.textContent = plain;
}

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) say(element, text);
  if (className) element.className = className;
  return element;
}

// Makes `parent`'s children stand for `items`: keeps those whose key is there still.
function sync(parent, items, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    if (child) {
      old.delete(name);
    } else {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
function bytes(count) {
  let unit = 0;
  for (; count >= 1024 && unit < UNITS.length - 1; unit++) count /= 1024;
  return (unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)) + " " + UNITS[unit];
}
const rate = (count) => (count > 0 ? bytes(count) + "/s" : "-");
const percent = (share) => (share === null || share === undefined ? "-" : (100 * share).toFixed(1) + " %");
const count = (number) => Number(number ?? 0).toLocaleString("en");
function span(seconds) {
  if (seconds < 1) return Math.round(1000 * seconds) + " ms";
  if (seconds < 120) return Math.round(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return Math.round(seconds / 3600) + " h";
}

const stateClass = (state) => (["up", "slow", "asked", "draining"].includes(state) ? state : "bad");

function showAlerts(state) {
  const alerts = [];
  for (const node of state.nodes) {
    if (node.state !== "up" && node.state !== "asked") {
      const why = [node.error, node.remedy].filter(Boolean).join("; ");
      const text = `${node.name} is ${node.state} for ${span(node.state_s)}: ${why}`;
      alerts.push({ key: node.target, text, mild: stateClass(node.state) !== "bad" });
    }
    node.trouble.forEach((text, at) =>
      alerts.push({ key: `${node.target} ${at}`, text: `${node.name}: ${text}`, mild: false }));
  }
  const most = alerts.slice(0, 50);
  if (alerts.length > most.length) {
    most.push({ key: "more", text: `and ${alerts.length - most.length} more`, mild: true });
  }
  sync(id("alerts"), most, (one) => one.key, () => make("p"), (element, one) => {
    element.className = one.mild ? "alert mild" : "alert";
    say(element, one.text);
  });
}

function showSummary(state) {
  const sums = new Map();
  for (const node of state.nodes) sums.set(node.state, (sums.get(node.state) || 0) + 1);
  const parts = [...sums].sort().map(([word, number]) => `${number} ${word}`);
  say(id("summary"), `${state.nodes.length} nodes: ${parts.join(", ")}`);
  const sick = state.nodes.filter((node) => node.state !== "up").length;
  document.title = sick ? `(${sick}) Zazen` : "Zazen";
}

function cell(row, at, label, text, className) {
  let td = row.cells[at];
  if (!td) {
    td = row.insertCell();
    td.dataset.label = label;
  }
  if (className !== undefined && td.className !== className) td.className = className;
  if (text !== null) say(td, text);
  return td;
}

function showNodes(state) {
  const order = { bad: 0, slow: 1, draining: 1, asked: 1, up: 2 };
  const nodes = [...state.nodes].sort((one, other) =>
    order[stateClass(one.state)] - order[stateClass(other.state)] ||
    one.name.localeCompare(other.name, "en", { numeric: true }));
  const body = id("node-table").tBodies[0];
  sync(body, nodes, (node) => node.target, () => document.createElement("tr"), (row, node) => {
    row.className = node.serves ? "" : "silent";
    const known = node.heard_s !== null;
    const value = (text) => (known ? text : "-");
    cell(row, 0, "node", node.name, "name");
    cell(row, 1, "state", node.state, "state " + stateClass(node.state));
    cell(row, 2, "answers in", node.serves ? span(node.answer_s) : "-", "number");
    cell(row, 3, "native", value(count(node.natives)), "number");
    cell(row, 4, "alien", value(count(node.aliens)), "number");
    const used = cell(row, 5, "used", null);
    if (!used.firstChild) used.append(make("progress"), " ", make("span"));
    used.firstChild.max = node.budget || 1;
    used.firstChild.value = node.used || 0;
    used.firstChild.setAttribute("aria-label", "share of the budget that is used");
    say(used.lastChild, known ? `${bytes(node.used || 0)} of ${bytes(node.budget || 0)}` : "-");
    cell(row, 6, "hit rate", percent(node.hit_rate), "number");
    cell(row, 7, "read", rate(node.read_bytes_per_s), "number");
    cell(row, 8, "pushed", rate(node.push_bytes_per_s), "number");
    cell(row, 9, "scans", value(count(node.scans)), "number");
    cell(row, 10, "fetches", value(count(node.fetches)), "number");
  });
}

// One path through [x, y] of 0..1; a null y leaves a gap.
function path(points) {
  let text = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (y === null) {
      pen = "M";
      continue;
    }
    text += `${pen}${(600 * x).toFixed(1)} ${(116 - 112 * y).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

function draw(svg, lines) {
  sync(svg, lines, (line) => line.className, (line) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", "path");
    element.setAttribute("class", line.className);
    return element;
  }, (element, line) => element.setAttribute("d", path(line.points)));
}

function showRates(state) {
  const rows = state.history;
  const begin = rows.length ? rows[0][0] : 0;
  const length = Math.max(1, (rows.length ? rows[rows.length - 1][0] : 0) - begin);
  const hits = [], read = [], pushed = [];
  let most = 1, lastHit = null;
  for (let at = 1; at < rows.length; at++) {
    const [now, before] = [rows[at], rows[at - 1]];
    const x = (now[0] - begin) / length;
    const seconds = Math.max(0.1, now[0] - before[0]);
    const all = now[1] - before[1] + now[2] - before[2];
    const share = all > 0 ? (now[1] - before[1]) / all : null;
    if (share !== null) lastHit = share;
    // A stretch in which nothing was read has no rate; one point alone would be invisible.
    if (share !== null) hits.push([Math.max(0, x - 4 / 600), share]);
    hits.push([x, share]);
    const [reads, pushes] = [(now[3] - before[3]) / seconds, (now[4] - before[4]) / seconds];
    most = Math.max(most, reads, pushes);
    read.push([x, reads]);
    pushed.push([x, pushes]);
  }
  draw(id("hits-chart"), [{ className: "first", points: hits }]);
  const scaled = (points) => points.map(([x, y]) => [x, y / most]);
  draw(id("bytes-chart"), [
    { className: "first", points: scaled(read) },
    { className: "second", points: scaled(pushed) },
  ]);
  const [first, final] = [rows[0] || [0, 0, 0], rows[rows.length - 1] || [0, 0, 0]];
  const frames = final[1] - first[1] + final[2] - first[2];
  const whole = frames > 0 ? (final[1] - first[1]) / frames : null;
  say(id("hits-text"), frames > 0
    ? `Hit rate of the frames read, 0 to 100 %, in ${span(length)}: ${percent(whole)} of ` +
      `${count(frames)} frames; lately ${percent(lastHit)}`
    : "Hit rate of the frames read: none was read since this page began");
  const now = (points) => rate(points.length ? points[points.length - 1][1] : 0);
  say(id("bytes-text"), `Bytes read from the caches (blue): ${now(read)}; pushed (orange): ` +
    `${now(pushed)}; the top is ${rate(most)}`);
}

const named = (one) => `${one.path}\u0000${one.pattern}`;

function showHolders(list, one, state) {
  const holders = one.holders.map(([index, natives, aliens]) => ({ node: state.nodes[index], natives, aliens }));
  const all = one.natives + one.aliens;
  sync(list, holders, (holder) => holder.node.target, () => {
    const item = make("li", undefined, "bar");
    item.append(make("span"), make("progress"), make("span"));
    return item;
  }, (item, holder) => {
    const frames = holder.natives + holder.aliens;
    say(item.children[0], `${holder.node.name}: ${count(holder.natives)} native, ${count(holder.aliens)} alien`);
    item.children[1].max = all || 1;
    item.children[1].value = frames;
    item.children[1].setAttribute("aria-label", "share of the cached frames");
    say(item.children[2], percent(all ? frames / all : 0));
  });
}

function showDatasets(state) {
  const part = id("filter").value.toLowerCase();
  const fit = state.datasets.filter((one) => one.path.toLowerCase().includes(part));
  const rows = fit.slice(0, 200);
  const more = state.datasets_left_out + fit.length - rows.length;
  const none = state.datasets.length ? "" : "The nodes hold none that you may see.";
  say(id("datasets-note"), more > 0 ? `${count(more)} more are not shown.` : none);
  const body = id("dataset-table").tBodies[0];
  sync(body, rows, named, () => document.createElement("tr"), (row, one) => {
    cell(row, 0, "dataset", one.path, "name");
    cell(row, 1, "pattern", one.pattern);
    cell(row, 2, "native", count(one.natives), "number");
    cell(row, 3, "alien", count(one.aliens), "number");
    cell(row, 4, "size", bytes(one.bytes), "number");
    const holders = cell(row, 5, "nodes", null);
    if (!holders.firstChild) {
      const button = make("button");
      button.type = "button";
      button.addEventListener("click", () => {
        const key = row.dataset.key;
        if (!open.delete(key)) open.add(key);
        show(last);
      });
      holders.append(button, make("ul", undefined, "holders"));
    }
    const [button, list] = holders.children;
    const isOpen = open.has(named(one));
    say(button, `${count(one.nodes)} ${one.nodes === 1 ? "node" : "nodes"}`);
    button.setAttribute("aria-expanded", String(isOpen));
    list.hidden = !isOpen;
    if (isOpen) showHolders(list, one, state);
    const pinned = one.pinned_on === 0 ? "no" : one.pinned_on === one.nodes ? "yes" : `on ${one.pinned_on}`;
    cell(row, 6, "pinned", pinned);
    const why = cell(row, 7, "last analysis", null);
    if (!why.firstChild) {
      const ask = make("button", "Explain");
      ask.type = "button";
      ask.addEventListener("click", () => explain(one.path));
      why.append(ask);
    }
  });
}

function showWork(state) {
  const rows = state.datasets.filter((one) => one.scans > 0 || one.pushed_per_s > 0).slice(0, 100);
  const sum = (key) => state.nodes.reduce((all, node) => all + (node.serves ? node[key] || 0 : 0), 0);
  say(id("work-note"), `${count(sum("scans"))} scans and ${count(sum("fetches"))} fetches run on all nodes, ` +
    `${count(sum("opened"))} datasets are open, ${sum("pushes_per_s").toFixed(1)} frames a second are pushed.`);
  sync(id("work-list"), rows, named, () => make("li"), (item, one) => {
    const scans = one.scans > 0 ? `${count(one.scans)} ${one.scans === 1 ? "scan" : "scans"}` : "";
    const push = one.pushed_per_s > 0 ? `a push of ${one.pushed_per_s.toFixed(1)} frames a second` : "";
    const at = one.holders.filter((holder) => holder[3] > 0 || holder[4] > 0)
      .map((holder) => state.nodes[holder[0]].name);
    const many = at.length > 8 ? ` and ${at.length - 8} more` : "";
    say(item, `${one.path} ${one.pattern}: ${[scans, push].filter(Boolean).join(", ")}` +
      (at.length ? ` on ${at.slice(0, 8).join(", ")}${many}` : ""));
  });
}

function explain(dataset) {
  wanted = dataset;
  id("explain").focus();
  ask();
}

function showExplain(state) {
  const found = state.explain;
  id("explain-any").hidden = wanted === null;
  const bars = [];
  let causes = [], of = "", verdict = "", mend = "";
  if (found.asked !== wanted || found.state === "working") {
    of = `${wanted === null ? "The last analysis" : wanted}: asking the nodes …`;
  } else if (found.state === "none") {
    of = wanted === null ? "The last analysis" : wanted;
    verdict = found.why;
  } else {
    const ago = Math.max(0, (state.wall_ms - found.began_ms) / 1000);
    of = `${found.dataset}, begun ${span(ago)} ago, ${found.ranks.length} ranks, took ` +
      `${found.wall_s.toFixed(2)} s; with each frame on its reader's node at most ${found.all_local_s.toFixed(2)} s`;
    verdict = found.verdict;
    mend = found.mend;
    const slow = found.ranks.find((rank) => rank.rank === found.slowest);
    for (const [part, seconds] of Object.entries(slow.spent_s)) bars.push({ part, seconds, all: slow.wall_s });
    causes = found.findings;
  }
  say(id("explain-of"), of);
  say(id("explain-verdict"), verdict);
  say(id("explain-mend"), mend);
  sync(id("explain-bars"), bars, (bar) => bar.part, () => {
    const row = make("div", undefined, "bar");
    row.append(make("span"), make("progress"), make("span"));
    return row;
  }, (row, bar) => {
    say(row.children[0], bar.part);
    row.children[1].max = bar.all || 1;
    row.children[1].value = bar.seconds;
    row.children[1].setAttribute("aria-label", "share of the slowest rank's time");
    say(row.children[2], bar.seconds.toFixed(2) + " s");
  });
  const lines = causes.map((one, at) => ({ at, text: [one.sentence, one.mend].filter(Boolean).join(" ") }));
  sync(id("explain-causes"), lines, (line) => line.at, () => make("li"), (item, line) => say(item, line.text));
}

function show(state) {
  if (!state) return;
  showSummary(state);
  showAlerts(state);
  showNodes(state);
  showRates(state);
  showDatasets(state);
  showWork(state);
  showExplain(state);
}

function showAge() {
  if (paused) return say(id("age"), "paused");
  if (!lastAt) return;
  const seconds = (performance.now() - lastAt) / 1000;
  say(id("age"), seconds < 4 + (last ? last.every_s : 0) ? "live" : `no news for ${span(seconds)}`);
}

let asking = null;
async function ask() {
  if (!token) return refuse("Open the address that `zazen dash` printed: it holds the token that this page needs.");
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  const patience = setTimeout(() => mine.abort(), PATIENCE_MS);
  try {
    const query = wanted === null ? "" : "?explain=" + encodeURIComponent(wanted);
    const answer = await fetch("state" + query, {
      headers: { Authorization: "Bearer " + token }, signal: mine.signal, cache: "no-store",
      credentials: "omit", redirect: "error",
    });
    if (answer.status === 401) {
      return refuse("This token is old: `zazen dash` was started anew. Open the address that it printed.");
    }
    if (!answer.ok) throw new Error(`the page's server answers ${answer.status}`);
    last = await answer.json();
    lastAt = performance.now();
    show(last);
  } catch (error) {
    if (mine === asking) {
      say(id("summary"), "`zazen dash` does not answer: it may have ended. The page shows what it heard last.");
    }
  } finally {
    clearTimeout(patience);
    if (mine === asking) asking = null;
  }
}

function refuse(why) {
  for (const one of document.querySelectorAll("main tbody, #work-list, #alerts")) one.replaceChildren();
  say(id("summary"), why);
}

id("pause").addEventListener("click", () => {
  paused = !paused;
  id("pause").setAttribute("aria-pressed", String(paused));
  say(id("pause"), paused ? "Go on" : "Pause");
  showAge();
  if (!paused) ask();
});
id("filter").addEventListener("input", () => show(last));
id("explain-any").addEventListener("click", () => explain(null));
addEventListener("hashchange", () => { takeToken(); ask(); });
takeToken();
ask();
setInterval(() => { if (!paused && !asking) ask(); showAge(); }, 1000);
