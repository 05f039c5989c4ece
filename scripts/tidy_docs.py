"""Claims of the documentation that a machine can check; scripts/tidy.py runs them.

- links between pages lead somewhere, to a heading too;
- files, `make` targets, settings, environment variables, C names and metrics that a page names
  exist;
- prose has at most 100 columns; tables and code may be wider.

tests/docs/test_claims.py checks what needs the built programs: commands and flags.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator

from tidy_lines import PROSE_MAX

MAP_LINES_MAX = 300
# Folders of this repository that pages name files in.
FOLDERS = "bench|bindings|crates|demo|docs|examples|fuzz|packaging|plugins|requirements|scripts|sdk|tests"
# What programs write there when they run, so that no clone has it.
WRITTEN = re.compile(r"bench/results/|examples/correlator/(alone|build)")
# C names and metrics, environment variables, enumerators.
NAMES = re.compile(r"\$?((?:zazen|stream)_[a-z][a-z0-9_]*|(?:ZAZEN|STREAM)_[A-Z][A-Z0-9_]*)(?:\(\))?$")
# Python modules and template names that only look like C names.
NOT_NAMES = {"zazen_plugin_v1.schema"}

Report = Callable[[str, str], None]


def blocks(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Each line with its number and the language of the fenced block that it is in; None in
    prose."""
    language = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            language = line.strip()[3:] if language is None else None
            continue
        yield number, line, language


def check_columns(path: str, text: str, report: Report) -> None:
    for number, line, language in blocks(text):
        is_prose = language is None and not line.lstrip().startswith("|")
        if is_prose and len(line) > PROSE_MAX:
            report(f"{path}:{number}", f"{len(line)} columns; prose has at most {PROSE_MAX}")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for _, line, language in blocks(text):
        if language is None and re.match(r"#+ ", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip().lower())
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def check_links(root: pathlib.Path, path: str, text: str, report: Report) -> None:
    for number, line, language in blocks(text):
        if language is not None:
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            page = (root / path).parent / file if file else root / path
            if not page.exists():
                report(f"{path}:{number}", f"link {target}: no such file")
            elif anchor and anchor not in anchors(page.read_text()):
                report(f"{path}:{number}", f"link {target}: no such heading")


def check_paths(root: pathlib.Path, path: str, text: str, report: Report) -> None:
    """Files named by their path in the repository, or in `crates/`; `*` stands for any name. In
    commands `sdk/` is the reader's own folder, which `zazen plugin sdk` made."""
    named = re.compile(rf"(?:(?:{FOLDERS})|zazen(?:d|-[a-z-]+)/(?:src|tests|examples))/[\w.*/-]*")
    for number, line, language in blocks(text):
        words = re.findall(r"`([^`]+)`", line) if language is None else line.split()
        for word in words:
            for name in re.findall(r"[^\s'\"=,()]+", word):
                if not named.fullmatch(name) or WRITTEN.match(name) or (language and name.startswith("sdk/")):
                    continue
                pattern = name.rstrip("./")
                if not any(next(base.glob(pattern), None) for base in (root, root / "crates")):
                    report(f"{path}:{number}", f"{name}: no such file")


def check_map(root: pathlib.Path, tracked: Callable[..., list[str]], report: Report) -> None:
    """ARCHITECTURE.md is short, names every crate, and each file that it names without a folder
    exists."""
    text = (root / "ARCHITECTURE.md").read_text()
    lines = text.count("\n")
    if lines > MAP_LINES_MAX:
        report("ARCHITECTURE.md", f"{lines} lines; the map has at most {MAP_LINES_MAX}")
    for crate in sorted(path.name for path in (root / "crates").iterdir() if (path / "Cargo.toml").exists()):
        if f"**{crate}**" not in text:
            report("ARCHITECTURE.md", f"crate {crate} is not described")
    files = {path.rsplit("/", 1)[-1] for path in tracked("*.rs", "*.py", "*.c", "*.h")}
    for number, line, language in blocks(text):
        for name in re.findall(r"`([a-z_0-9]+\.(?:rs|py|c|h))`", line) if language is None else []:
            if name not in files:
                report(f"ARCHITECTURE.md:{number}", f"{name}: no such file")


def check_make(root: pathlib.Path, path: str, text: str, report: Report) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (root / "Makefile").read_text(), flags=re.MULTILINE))
    for number, line, language in blocks(text):
        for word in re.findall(r"`([^`]+)`", line) if language is None else [line]:
            wanted = re.match(r"(?:\$ )?make ([a-z][a-z-]*)(?:\s|$)", word.strip())
            if wanted and wanted[1] not in targets and not path.startswith("sdk/"):
                report(f"{path}:{number}", f"make {wanted[1]}: the Makefile has no such target")


def check_names(path: str, text: str, words: set[str], report: Report) -> None:
    """Names are words of the sources; a metric is written there as a string or a counter's name,
    without its first part and without `_total`."""
    for number, line, language in blocks(text):
        if language is not None:
            continue
        for word in re.findall(r"`([^`]+)`", line):
            name = NAMES.match(word)
            if not name or word in NOT_NAMES:
                continue
            metric = name[1].removeprefix("zazen_").removesuffix("_total")
            is_metric = metric != name[1] and (metric in words or f'"{metric}"' in words)
            if name[1] not in words and not is_metric:
                report(f"{path}:{number}", f"{name[1]}: no source names it")


def fields(root: pathlib.Path, folder: str, struct: str) -> set[str]:
    """The fields of a Rust struct, the keys of the TOML that it is read from."""
    for file in sorted((root / folder).rglob("*.rs")):
        body = re.search(rf"struct {struct} \{{(.*?)\n\}}", file.read_text(), flags=re.DOTALL)
        if body:
            return set(re.findall(r"^    (?:pub(?:\([a-z]+\))? )?([a-z_]+):", body[1], flags=re.MULTILINE))
    return set()


def check_settings(root: pathlib.Path, paths: list[str], report: Report) -> None:
    """Keys in TOML blocks and `key = value` in prose are keys of zazend, of a plug-in or of a
    manifest; and packaging/zazend.toml shows every key."""
    daemon = fields(root, "crates/zazend/src", "File")
    plugin = fields(root, "crates/zazend/src", "PluginTable")
    plugin |= fields(root, "crates/zazend/src", "NamespaceTable")
    manifest = fields(root, "crates/zazen-backing/src", "Manifest")
    piece = fields(root, "crates/zazen-backing/src", "ManifestPiece")
    for name, found in (("daemon", daemon), ("plug-in", plugin), ("manifest", manifest), ("piece", piece)):
        if not found:
            report("scripts/tidy_docs.py", f"the struct with the {name}'s settings was not found")
    known = daemon | plugin | manifest | piece
    for path in paths:
        for number, line, language in blocks((root / path).read_text()):
            key = None
            if language == "toml":
                key = re.match(r"#?([a-z_]+) ?= ?", line)
            elif language is None:
                key = re.search(r"`([a-z_]{2,}) = [^`]+`", line)
            if key and key[1] not in known:
                report(f"{path}:{number}", f"{key[1]}: no setting of zazend, of a plug-in or of a manifest")
    example = (root / "packaging/zazend.toml").read_text()
    shown = set(re.findall(r"^#?([a-z_]+) = ", example, flags=re.MULTILINE))
    shown |= set(re.findall(r"^#?\[\[?([a-z_]+)", example, flags=re.MULTILINE))
    shown |= set(re.findall(r"^#\[plugin\.([a-z_]+)", example, flags=re.MULTILINE))
    for key in sorted((daemon | plugin) - shown):
        report("packaging/zazend.toml", f"{key}: zazend has this setting, and the example does not show it")
    for key in sorted(shown - daemon - plugin):
        report("packaging/zazend.toml", f"{key}: zazend has no such setting")


def check_docs(root: pathlib.Path, tracked: Callable[..., list[str]], report: Report) -> None:
    """All checks, over all pages."""
    pages = [path for path in tracked("*.md") if "/golden/" not in path]
    code = tracked("*.rs", "*.h", "*.c", "*.py", "*.pyi", "Makefile", "*.sh")
    sources: set[str] = set()
    for path in code:
        if "tidy_docs" not in path:
            text = (root / path).read_text()
            sources.update(re.findall(r"\w+", text), re.findall(r'"\w+"', text))
    for path in pages:
        text = (root / path).read_text()
        check_columns(path, text, report)
        check_links(root, path, text, report)
        check_paths(root, path, text, report)
        check_make(root, path, text, report)
        check_names(path, text, sources, report)
    check_map(root, tracked, report)
    check_settings(root, pages, report)
