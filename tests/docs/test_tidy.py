"""scripts/tidy.py refuses what it says it refuses: each offence is planted in a copy of the
sources, and found there."""

import importlib
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = ("tidy", "tidy_docs", "tidy_lines")
LONG = "x" * 111

# Files to plant, and what tidy says of each.
RUST = {
    "crates/zazen-core/src/planted_path.rs": ('#[path = "other.rs"]\nmod other;\n', "#[path]"),
    "crates/zazen-push/src/planted_include.rs": (
        'const TEXT: &str = include_str!("../../zazen-core/src/lib.rs");\n',
        "includes a file of another crate",
    ),
    "crates/zazen-explain/src/planted_bytes.rs": (
        "fn bytes(value: u32) -> [u8; 4] {\n    value.to_le_bytes()\n}\n",
        "integer encoding does not belong here",
    ),
    "crates/zazen-store/src/planted_map.rs": (
        "use std::collections::HashMap;\n",
        "std's HashMap or HashSet does not belong here",
    ),
    "crates/zazen-frames/src/planted_set.rs": (
        "use std::collections::HashSet;\n",
        "std's HashMap or HashSet does not belong here",
    ),
    "crates/zazen-store/src/planted_clock.rs": (
        "fn now() -> std::time::Instant {\n    std::time::Instant::now()\n}\n",
        "a clock or randomness does not belong here",
    ),
    "crates/zazen-vopr/src/planted_random.rs": (
        "fn draw(bytes: &mut [u8]) {\n    getrandom::fill(bytes).ok();\n}\n",
        "a clock or randomness does not belong here",
    ),
    "crates/zazen-assign/src/planted_file.rs": (
        'fn read() -> std::io::Result<Vec<u8>> {\n    std::fs::read("x")\n}\n',
        "what is pure touches the machine",
    ),
    "plugins/stream/src/ring.rs": (None, "what is pure touches the machine"),
    "crates/zazen-wire/src/planted_thread.rs": (
        "fn start() {\n    std::thread::spawn(|| ());\n}\n",
        "what is pure touches the machine",
    ),
    "crates/zazen-env/src/planted_word.rs": ("pub struct Entry;\n", "take another name"),
    "crates/zazen-env/src/planted_code.rs": (
        f'const PLANTED: &str = "{LONG}";\n',
        "code has at most 110",
    ),
    "crates/zazen-env/src/planted_comment.rs": (f"// {LONG[:98]}\n", "a comment of 101 columns"),
    "crates/zazen-env/src/planted_end.rs": ("fn end() {\n    todo" + "!()\n}\n", "unfinished code"),
    "crates/zazen-env/src/planted_lines.rs": ("\n" * 801, "801 lines"),
    "crates/zazen-env/src/planted_sample.rs": (
        "/// ```\n/// let a = 1;\n/// ```\nfn a() {}\n",
        "a code block that nobody compiles",
    ),
    "crates/zazen-env/src/planted_empty.rs": ("", "an empty file"),
}
OTHERS = {
    "docs/decisions/9999-planted.md": ("# Planted\n", "is not listed in ARCHITECTURE.md"),
    "docs/planted_link.md": ("[there](nowhere.md)\n", "no such file"),
    "docs/planted_file.md": ("`crates/zazen-core/src/nowhere.rs`\n", "no such file"),
    "docs/planted_make.md": ("`make nothing`\n", "the Makefile has no such target"),
    "docs/planted_name.md": ("`$ZAZEN_" + "NOWHERE`\n", "no source names it"),
    "docs/planted_prose.md": (f"{LONG[:101]}\n", "101 columns; prose has at most 100"),
    "docs/planted_setting.md": ("```toml\nplanted = 1\n```\n", "no setting of zazend"),
    "tests/sim/test_claims.py": ("PLANTED = 1\n", "pytest cannot run both"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of all files of this checkout, as a repository of its own, and its tidy module."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("no git checkout: tidy asks git which files there are")
    root = tmp_path_factory.mktemp("tidy")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, root / name)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(root / "scripts"))
    try:
        yield root, importlib.import_module("tidy")
    finally:
        sys.path.remove(str(root / "scripts"))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def said_by(tidy, *checks):
    """What the checks find, a line each."""
    tidy.problems.clear()
    for check in checks:
        check()
    return list(tidy.problems)


def test_each_planted_file_is_refused(copy):
    root, tidy = copy
    planted = RUST | OTHERS
    for name, (text, _) in planted.items():
        if text is None:
            file = root / name
            text = "fn planted() {\n    std::process::exit(1)\n}\n" + file.read_text()
        (root / name).write_text(text)
    checks = [
        tidy.check_purity, tidy.check_bans, tidy.check_reach, tidy.check_files, tidy.check_one_meaning,
        tidy.check_test_names, tidy.check_samples, tidy.check_lines, tidy.check_docs,
    ]  # fmt: skip
    said = said_by(tidy, *checks)
    for name, (_, expected) in planted.items():
        assert any(line.startswith(name) and expected in line for line in said), (name, expected)


def test_circles_of_files_are_refused(copy):
    root, tidy = copy
    crate = "crates/zazen-match"
    source = root / crate / "src"
    (source / "one.rs").write_text("use crate::two::Two;\n\npub struct One(Two);\n")
    (source / "two.rs").write_text("pub struct Two;\n")
    assert tidy.circles(tidy.imports(crate)) == []
    (source / "two.rs").write_text("pub struct Two;\n\nfn back() -> crate::one::One {\n    todo\n}\n")
    assert tidy.circles(tidy.imports(crate)) == [[f"{crate}/src/one.rs", f"{crate}/src/two.rs"]]


def test_an_exception_that_nothing_needs_is_refused(copy, monkeypatch):
    _, tidy = copy
    what, pattern, where, instead, excepted = tidy.BANS[0]
    more = (what, pattern, where, instead, excepted | {"crates/zazen-match/src/": "no reason"})
    monkeypatch.setattr(tidy, "BANS", [more])
    assert any(
        line.startswith("crates/zazen-match/src/: is excepted from the ban")
        for line in said_by(tidy, tidy.check_bans)
    )


def test_arrows_between_crates_are_refused(copy, monkeypatch):
    """Each arrow of the table is needed by a crate, so without it tidy refuses that crate."""
    _, tidy = copy
    if shutil.which("cargo") is None:
        pytest.skip("no cargo: tidy asks it for the crates' dependencies")
    assert said_by(tidy, tidy.check_dependencies) == []
    monkeypatch.setitem(tidy.EDGES, "zazen-push", "")
    edges = {name: allowed for name, allowed in tidy.EDGES.items() if name != "zazen-match"}
    monkeypatch.setattr(tidy, "EDGES", edges)
    assert sorted(said_by(tidy, tidy.check_dependencies)) == [
        "zazen-match: is not in the table of crates in scripts/tidy.py; add its allowed edges",
        "zazen-push: must not depend on zazen-core (table in scripts/tidy.py)",
    ]
