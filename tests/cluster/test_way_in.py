"""Completions, man pages, $ZAZEN_NODES, and frames by number."""

import json
import re
import shutil
import subprocess

import pytest
import zazen

from conftest import FRAMES, Tool, frame_bytes, frame_name, write_frame

COMMANDS = ("status", "explain", "push", "load", "testbed", "completions", "man")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_every_command(tool, shell, tmp_path):
    text = tool("completions", shell).stdout
    assert all(command in text for command in COMMANDS)
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} to read them")
    script = tmp_path / "completions"
    script.write_text(text)
    subprocess.run([program, "-n", script], check=True)
    if shell == "bash":
        typed = "source {}; COMP_WORDS=(zazen expl); COMP_CWORD=1; "
        typed += "_zazen zazen expl zazen; echo ${{COMPREPLY[@]}}"
        said = subprocess.run(
            [program, "-c", typed.format(script)], capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == "explain", said


def test_unknown_shells_are_refused(tool):
    assert "possible values" in tool("completions", "tcsh", status=2).stderr


def test_man_pages(tool, tmp_path):
    tool("man", tmp_path / "man" / "man1")
    pages = {page.name for page in (tmp_path / "man" / "man1").iterdir()}
    assert {"zazen.1", *(f"zazen-{command}.1" for command in COMMANDS)} <= pages
    mandoc = shutil.which("man")
    if mandoc:
        page = tmp_path / "man" / "man1" / "zazen-explain.1"
        shown = subprocess.run([mandoc, "-l", page], capture_output=True, text=True, check=True)
        assert "DATASET" in shown.stdout and not shown.stderr
    (tmp_path / "file").write_text("")
    assert "man pages in" in tool("man", tmp_path / "file", status=1).stderr


def test_nodes_of_the_environment(testbed, tmp_path):
    """Every command that takes nodes takes them from $ZAZEN_NODES; flags win."""
    files = testbed.write()
    elsewhere = Tool(
        ZAZEN_NODES=str(testbed.nodes), ZAZEN_KEY=str(testbed.folder / "key"), HOME=str(tmp_path)
    )
    elsewhere("push", *files)
    nodes = json.loads(elsewhere("status", "--json").stdout)["nodes"]
    assert [node["state"] for node in nodes] == ["up", "up"]
    assert all(node["target"].startswith("daemon at 127.0.0.1:") for node in nodes), nodes
    for command in ("ls", "verify", "pin", "load"):
        elsewhere(command, testbed.dataset)
    assert str(FRAMES) in elsewhere("datasets").stdout
    one = next(line for line in testbed.nodes.read_text().split() if ":" in line)
    assert len(json.loads(elsewhere("status", "--nodes", one, "--json").stdout)["nodes"]) == 1
    (tmp_path / "empty").write_text("")
    bad = Tool(ZAZEN_NODES=str(tmp_path / "empty"), ZAZEN_KEY=str(testbed.folder / "key"))
    assert "nodes" in bad("status", status=1).stderr


#: Arguments of each command that takes nodes; DIR is a folder with a frame, an index and a list.
TAKES_NODES = {
    "dash": "",
    "datasets": "",
    "doctor": "",
    "evict": "DIR",
    "explain": "DIR",
    "load": "DIR",
    "locate": "DIR/f-1.bin",
    "ls": "DIR",
    "namespace-archive": "",
    "namespace-balance": "",
    "namespace-leave": "n0",
    "namespace-locate": "/x",
    "namespace-quota": "",
    "namespace-scrub": "",
    "namespace-set": "--copies 2 /x",
    "namespace-status": "",
    "pin": "DIR",
    "plugin-list": "",
    "plugin-ping": "x",
    "plugin-stats": "x",
    "push": "DIR/f-1.bin",
    "stat": "DIR 1",
    "status": "",
    "verify": "DIR",
    "viz-plan": "DIR/x.vtm --ranks DIR/ranks",
}


def test_every_command_that_takes_nodes_asks_the_environment(tool, tmp_path):
    tool("man", tmp_path / "man")
    pages = {page.stem: page.read_text().replace("\\", "") for page in (tmp_path / "man").iterdir()}
    taking = {name for name, page in pages.items() if re.search(r"--nodes\S* .*FILE\|LIST", page)}
    assert taking == {f"zazen-{command}" for command in TAKES_NODES}
    assert all("$ZAZEN_NODES" in pages[name] for name in taking)
    for name, text in {"empty": "", "f-1.bin": "x", "ranks": "a\n", "b.vti": "x"}.items():
        (tmp_path / name).write_text(text)
    blocks = '<vtkMultiBlockDataSet><DataSet index="0" file="b.vti"/></vtkMultiBlockDataSet>'
    (tmp_path / "x.vtm").write_text(f'<VTKFile type="vtkMultiBlockDataSet" version="1.0">{blocks}</VTKFile>')
    tool("key", "new", tmp_path / "key")
    lonely = Tool(
        ZAZEN_NODES=str(tmp_path / "empty"),
        ZAZEN_KEY=str(tmp_path / "key"),
        ZAZEN_SOCKET=tool.environment["ZAZEN_SOCKET"],
    )
    for command, arguments in TAKES_NODES.items():
        words = [word.replace("DIR", str(tmp_path)) for word in arguments.split()]
        said = lonely(*command.split("-"), *words, status=1).stderr
        assert f"node file {tmp_path}/empty: names no node" in said, command


def opened(testbed):
    state = json.loads((testbed.folder / "testbed.json").read_text())
    return zazen.open(testbed.dataset, socket=state["nodes"][0]["socket"])


@pytest.mark.parametrize("memory", [1, 20_000, 268_435_456])
def test_frames_by_number(testbed, memory):
    """Cached ones, misses and gaps: each frame once, ascending, whatever the memory."""
    files = testbed.write(60)
    files.pop(17).unlink()
    testbed.push(files[::3])
    expected = [number for number in range(60) if number != 17]
    with opened(testbed) as dataset:
        frames = dataset.frames(ordered=True, memory=memory)
        assert len(frames) == frames.remaining == len(expected)
        seen = [(number, bytes(data)) for number, data, _ in frames]
        assert seen == [(number, frame_bytes(number)) for number in expected]
        assert frames.remaining == 0
        stats = frames.stats
        assert stats.native + stats.alien + stats.backing_reads == len(expected)
        assert [number for number, *_ in dataset.frames(10, 50, 20, ordered=True)] == [10, 30, 50]
    with zazen.open(testbed.dataset, direct=True) as dataset:
        assert [number for number, *_ in dataset.frames(ordered=True, memory=memory)] == expected


def test_a_frame_that_fails_keeps_its_place(testbed):
    testbed.write()
    with opened(testbed) as dataset:
        frames = dataset.frames(0, FRAMES - 1, ordered=True)
        (testbed.dataset / frame_name(5)).unlink()
        seen = []
        while True:
            try:
                seen.append(next(frames)[0])
            except StopIteration:
                break
            except zazen.NotFoundError as error:
                assert "frame 5" in str(error)
                seen.append(-5)
        assert seen in ([*range(5), -5, *range(6, FRAMES)], list(range(FRAMES)))


def test_ordered_survives_its_daemon(testbed):
    for number in range(3000):
        write_frame(testbed.dataset, number)
    with opened(testbed) as dataset, pytest.warns(zazen.ZazenWarning, match="stopped answering"):
        frames = dataset.frames(ordered=True, memory=100_000)
        seen = [next(frames)[0] for _ in range(100)]
        testbed.tool("testbed", "kill", "n0")
        seen += [number for number, *_ in frames]
        assert seen == list(range(3000))
