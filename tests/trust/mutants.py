#!/usr/bin/env python3
"""Shows that attack tests can fail: takes one guard out of the code at a time and runs the tests
that need it.

    tests/trust/mutants.py [--together] [--target FOLDER] [NAME ...]

A test is a file and name of pytest, or `cargo`, its arguments and the name of a test in Rust.

Each entry of MUTANTS is a change that undoes one guard. A test that still passes then proves
nothing. The changes are made in a copy of the tracked files, never in this checkout. --together
builds once with all of them, which is quicker; then a test may also fail because of another entry's
change. Needs root, as most of the attacks do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """One guard that is taken out: `old` becomes `new` in `file`, and each of `tests` must fail."""

    name: str
    # The section of the list of attacks (docs/security.md tells of them in the same order).
    section: int
    changes: tuple[tuple[str, str, str], ...]
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "the daemon opens sources with its own rights",
        1,
        (
            (
                "crates/zazend/src/viewer.rs",
                "return Ok(Viewer::Other(Arc::new(Identity::of(who)?)));",
                "return Identity::of(who).map(|_| Viewer::Own);",
            ),
        ),
        (
            "test_openers.py::test_a_frame_that_is_a_link_into_a_closed_home",
            "test_openers.py::test_an_access_list_that_gives_and_one_that_takes",
        ),
    ),
    Mutant(
        "everybody gets the files that hold several frames",
        1,
        (
            (
                "crates/zazend/src/service_frames/places.rs",
                "if node.is_privileged(caller) && opened.viewer.is_own() {",
                "if ask.frames_max > 0 {",
            ),
        ),
        ("test_openers.py::test_files_of_several_frames_go_to_nobody_else",),
    ),
    Mutant(
        "a plug-in's process keeps a way back",
        2,
        (
            (
                "crates/zazen-plugins/src/identity.rs",
                "libc::setresuid(identity.uid, identity.uid, identity.uid)",
                "libc::setresuid(identity.uid, identity.uid, own.uid)",
            ),
            (
                "crates/zazen-plugins/src/identity.rs",
                "    prove(identity, own, keeps)\n",
                "    let _ = prove;\n    Ok(())\n",
            ),
        ),
        ("test_plugins.py::test_a_worker_is_its_caller_and_keeps_nothing",),
    ),
    Mutant(
        "forwarded paths leave the exports",
        2,
        (
            ("plugins/posix/src/reach.rs", "else { libc::RESOLVE_BENEATH };", "else { 0 };"),
            (
                "crates/zazen-plugins/src/confine.rs",
                'if exports.iter().any(|export| export.as_os_str() == "/") {',
                "if !exports.is_empty() {",
            ),
        ),
        ("test_plugins.py::test_links_lead_only_to_where_the_exports_are",),
    ),
    Mutant(
        "a copy counts whatever its source looks like",
        3,
        (
            (
                "crates/zazen-frames/src/stale.rs",
                "    same_look && may_be_of(meta, source, stat)\n",
                "    (same_look || true) && may_be_of(meta, source, stat)\n",
            ),
        ),
        ("test_sources.py::test_a_change_of_the_same_size_is_noticed",),
    ),
    Mutant(
        "a copy counts whoever owns its source",
        3,
        (
            (
                "crates/zazen-frames/src/stale.rs",
                "let same_owner = meta.uid == stat.uid;",
                "let same_owner = true;",
            ),
        ),
        ("test_sources.py::test_b_pushes_under_as_names",),
    ),
    Mutant(
        "every user's daemon is believed",
        4,
        (
            (
                "crates/zazen-call/src/belief.rs",
                "    Ok(configured()? == Some(uid))\n",
                "    configured().map(|_| true)\n",
            ),
        ),
        ("test_calls.py::test_another_users_daemon_is_not_believed",),
    ),
    Mutant(
        "a user may have any number of connections",
        5,
        (
            (
                "crates/zazen-call/src/carriers/account.rs",
                "Some(max) if before >= max =>",
                "Some(max) if before > max && before > usize::MAX / 2 =>",
            ),
        ),
        ("test_calls.py::test_one_users_connections_cost_nobody_else",),
    ),
    Mutant(
        "all users of a machine are one group",
        5,
        (
            (
                "crates/zazen-call/src/server/peer_group.rs",
                "let user = self.uid(peer, own);",
                "let user = self.uid(peer, own).and(None);",
            ),
        ),
        ("test_calls.py::test_a_flood_of_connections_keeps_no_key_holder_out",),
    ),
    Mutant(
        "the unit lets no daemon ask the kernel who connects",
        5,
        (("packaging/zazend.service", "AF_UNIX AF_INET AF_INET6 AF_NETLINK", "AF_UNIX AF_INET AF_INET6"),),
        ("test_unit.py::test_a_flood_keeps_no_writer_out",),
    ),
    Mutant(
        "a long copy goes on without its reader",
        5,
        (("crates/zazend/src/fetch.rs", "        (self.stops)()\n", "        (self.stops)() && false\n"),),
        ("cargo -p zazend --test joined a_long_copy_ends_with_its_reader",),
    ),
    Mutant(
        "a status takes no share of its user's heavy calls",
        5,
        (
            (
                "crates/zazend/src/service_control.rs",
                "control_fn::STATUS => Some(&shares.heavy),",
                "control_fn::STATUS => None,",
            ),
        ),
        ("cargo -p zazend --lib a_status_is_one_of_its_users_heavy_calls",),
    ),
    Mutant(
        "a report of a bad frame takes no share",
        5,
        (
            (
                "crates/zazend/src/service_frames/mod.rs",
                "        | frames_fn::REPORT_BAD\n        | frames_fn::RECORDS\n",
                "        | frames_fn::RECORDS\n",
            ),
        ),
        ("cargo -p zazend --lib calls_that_cost_memory_or_time_take_shares",),
    ),
    Mutant(
        "a name begins a line of the log",
        5,
        (
            (
                "crates/zazend/src/logging.rs",
                "b'\\n' => shown.extend_from_slice(b\"\\n    \"),",
                "b'\\n' => shown.extend_from_slice(b\"\\n\"),",
            ),
        ),
        ("test_told_files.py::test_names_forge_no_line_and_give_no_orders",),
    ),
    Mutant(
        "a name begins a line of what a command prints",
        5,
        (
            (
                "crates/zazen-cli/src/output.rs",
                "        self.0.push_str(&shown(text.as_ref()));\n",
                "        self.0.push_str(text.as_ref());\n",
            ),
        ),
        ("test_told_files.py::test_what_root_is_shown_of_names",),
    ),
    Mutant(
        "a name begins a line of an error",
        5,
        (("crates/zazen-cli/src/output.rs", 'lines.join("\\n    ")', 'lines.join("\\n")'),),
        ("test_told_files.py::test_what_root_is_shown_of_names",),
    ),
    Mutant(
        "a name gives the terminal orders in a dump",
        5,
        (
            (
                "crates/zazen-store/src/store.rs",
                "dataset.path.as_str().escape_debug(),",
                "dataset.path.as_str(),",
            ),
        ),
        ("test_told_files.py::test_what_root_is_shown_of_names",),
    ),
    Mutant(
        "a caller writes as many log lines as it likes",
        5,
        (
            (
                "crates/zazen-call/src/quiet.rs",
                "const EACH: Duration = Duration::from_secs(10);",
                "const EACH: Duration = Duration::ZERO;",
            ),
        ),
        ("test_calls.py::test_a_hostile_caller_does_not_fill_the_log",),
    ),
    Mutant(
        "a damaged state file is believed",
        6,
        (
            (
                "crates/zazen-store/src/own_file.rs",
                "        good.then_some(text)\n",
                "        (good || true).then_some(text)\n",
            ),
        ),
        ("test_disk.py::test_any_small_file_of_the_root_may_be_damaged",),
    ),
    Mutant(
        "the state is written through what lies in its place",
        8,
        (
            (
                "crates/zazend/src/told_files.rs",
                "OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;",
                "OFlags::CREATE | OFlags::CLOEXEC;",
            ),
            (
                "crates/zazend/src/told_files.rs",
                "let fresh = path.with_file_name(name);",
                "let fresh = path.with_file_name(name).with_file_name(path.file_name().unwrap_or_default());",
            ),
        ),
        ("test_told_files.py::test_planted_links_are_replaced_not_followed",),
    ),
    Mutant(
        "spans are added to anybody's file",
        8,
        (
            (
                "crates/zazend/src/told_files.rs",
                "if found.uid() != own || !found.is_file() || found.nlink() != 1 {",
                "if found.uid() != own && !found.is_file() && found.nlink() != 1 {",
            ),
        ),
        ("test_told_files.py::test_spans_go_into_no_file_of_another_user",),
    ),
    Mutant(
        "the mode of the socket goes to what took its place",
        8,
        (
            (
                "crates/zazen-call/src/carriers/unix.rs",
                "    if !is_socket || stat.st_uid",
                "    if !is_socket && stat.st_uid",
            ),
        ),
        ("cargo -p zazen-call --lib what_took_the_sockets_place_keeps_its_mode",),
    ),
    Mutant(
        "any member says what only a primary may",
        8,
        (
            (
                "crates/zazen-namespace/src/node/heard.rs",
                "self.is_primary(sender.node, unneeded.id.partition()),",
                "true || self.is_primary(sender.node, unneeded.id.partition()),",
            ),
        ),
        ("cargo -p zazen-namespace --lib a_member_says_what_is_its_own_part",),
    ),
    Mutant(
        "callers open chunks and take ranges as daemons do",
        8,
        (
            (
                "crates/zazen-namespace-node/src/session.rs",
                "            | Operation::OpenChunk(_)\n            | Operation::Append(_) => return",
                "            => return",
            ),
        ),
        (
            "cargo -p zazend --test joined "
            "numbers_of_chunks_and_handles_for_reading_lead_no_further_than_names",
        ),
    ),
    Mutant(
        "a write that a quota refuses leaves an empty chunk",
        8,
        (
            (
                "crates/zazen-namespace-node/src/chunked.rs",
                "        self.quotas.check(&bounds, bytes)?;\n",
                "        let _ = bytes;\n",
            ),
        ),
        (
            "cargo -p zazend --test joined "
            "what_a_quota_refuses_leaves_no_empty_chunks_and_chunks_are_inodes_of_their_user",
        ),
    ),
    Mutant(
        "open files count for each connection",
        8,
        (
            (
                "crates/zazen-namespace-node/src/session.rs",
                "self.of_users.files.take(asked.credentials.uid);",
                "Some(self.of_users.files.add(asked.credentials.uid));",
            ),
        ),
        ("cargo -p zazend --test joined a_user_has_so_many_open_files_at_a_node_and_others_do_not_notice",),
    ),
    Mutant(
        "nobody asks who owns a folder",
        8,
        (
            (
                "crates/zazen-env/src/ownership.rs",
                "    let mut left: VecDeque<OsString> = names(&absolute);\n",
                "    if absolute.is_absolute() {\n        return Ok(());\n    }\n"
                "    let mut left: VecDeque<OsString> = names(&absolute);\n",
            ),
        ),
        (
            "test_disk.py::test_a_root_that_others_may_write_to_is_refused",
            "test_plugins.py::test_a_plug_in_that_others_can_write_is_refused",
        ),
    ),
)


def run(words: list[object], **options: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in words], check=False, **options)


def copy_of_the_tree(folder: Path) -> Path:
    """The tracked files as they are in this checkout, changed ones too."""
    listed = run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE).stdout.decode().split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def mutate(tree: Path, mutants: list[Mutant]) -> None:
    for mutant in mutants:
        for file, old, new in mutant.changes:
            text = (tree / file).read_text()
            if text.count(old) != 1:
                sys.exit(f"{mutant.name}: {file} has {text.count(old)} times {old!r}; mend this list")
            (tree / file).write_text(text.replace(old, new))


def built(tree: Path, target: Path) -> dict[str, str]:
    """Builds `tree`; the environment in which tests use what was built."""
    crates = ["zazend", "zazen-cli", "zazen-posix", "zazen-python", "zazen-preload"]
    words = ["cargo", "build", "--locked", "--quiet", *(word for crate in crates for word in ("-p", crate))]
    if run(words, cwd=tree, env=os.environ | {"CARGO_TARGET_DIR": str(target)}).returncode != 0:
        sys.exit("a changed tree does not compile; mend the list of changes")
    import zazen

    overlay = tree / "overlay"
    shutil.copytree(Path(zazen.__file__).parent, overlay / "zazen")
    debug = target / "debug"
    for made, place in [
        (debug / "lib_zazen.so", overlay / "zazen" / "_zazen.abi3.so"),
        (debug / "libzazen_posix.so", overlay / "zazen" / "lib" / "libzazen_posix.so"),
        (debug / "libzazen_preload.so", overlay / "zazen" / "lib" / "libzazen_preload.so"),
    ]:
        shutil.copy2(made, place)
    return os.environ | {
        "PYTHONPATH": str(overlay),
        "ZAZEND": str(debug / "zazend"),
        "ZAZEN": str(debug / "zazen"),
    }


def cargo_test(test: str, tree: Path, target: Path) -> subprocess.CompletedProcess:
    """Runs one test in Rust. Not to be built is no failure of the test: that ends all."""
    words = ["cargo", "test", "--locked", "--quiet", *test.split()[1:-1]]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    if run([*words, "--no-run"], cwd=tree, env=environment).returncode != 0:
        sys.exit(f"{test}: does not compile; mend the list of changes")
    words += ["--", test.split()[-1]]
    done = run(words, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if "running 1 test" not in done.stdout:
        sys.exit(f"{test}: there is no such test; mend the list of tests\n{done.stdout}")
    return done


def failing(mutants: list[Mutant]) -> list[str]:
    """The tests that fail although all guards are there, with what is installed: they could show
    nothing. The tests in Rust run in `make test`."""
    tests = [test for mutant in mutants for test in mutant.tests if not test.startswith("cargo ")]
    if not tests:
        return []
    words = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", *tests]
    done = run(words, cwd=ROOT / "tests" / "trust", stdout=subprocess.PIPE, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return found or ([] if done.returncode == 0 else done.stdout.splitlines()[-1:])


def survivors(tree: Path, environment: dict[str, str], target: Path, mutants: list[Mutant]) -> list[str]:
    """The tests that pass although their guard is gone."""
    passed = []
    for mutant in mutants:
        for test in mutant.tests:
            if test.startswith("cargo "):
                done = cargo_test(test, tree, target)
                is_caught = done.returncode != 0
            else:
                words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
                place = tree / "tests" / "trust"
                done = run(words, cwd=place, env=environment, stdout=subprocess.PIPE, text=True)
                is_caught = done.returncode == 1
            marks = ("E ", "assertion", "thread ")
            why = [line for line in done.stdout.splitlines() if line.startswith(marks)]
            print(
                f"{'caught' if is_caught else 'NOT CAUGHT'}: §{mutant.section} {mutant.name}: {test}",
                flush=True,
            )
            print(f"    {why[0] if why else done.stdout.strip().splitlines()[-1]}"[:160], flush=True)
            if not is_caught:
                passed.append(f"{mutant.name}: {test}")
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", help="mutants whose names contain one of these words; default: all"
    )
    parser.add_argument("--together", action="store_true", help="build once, with all changes")
    parser.add_argument(
        "--target", type=Path, help="cargo's target folder, to build less; default: a new one"
    )
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("mutants.py: most attacks need two users, so this needs root")
        return 2
    chosen = [
        one for one in MUTANTS if not arguments.names or any(word in one.name for word in arguments.names)
    ]
    groups = [chosen] if arguments.together else [[one] for one in chosen]
    if wrong := failing(chosen):
        print(
            "mutants.py: these fail without any change; mend that first, or install this tree:",
            *wrong,
            sep="\n  ",
        )
        return 2
    left: list[str] = []
    with tempfile.TemporaryDirectory(prefix="zazen-mutants-") as folder:
        target = (arguments.target or Path(folder) / "target").resolve()
        for nth, group in enumerate(groups):
            tree = copy_of_the_tree(Path(folder) / str(nth))
            mutate(tree, group)
            left += survivors(tree, built(tree, target), target, group)
            shutil.rmtree(tree)
    print(f"{len(left)} of {sum(len(one.tests) for one in chosen)} tests passed without their guard")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
