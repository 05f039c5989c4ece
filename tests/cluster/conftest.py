"""The real `zazen` and `zazend`, on testbeds of their own."""

import subprocess
from pathlib import Path

import pytest
import zazen.testing

FRAMES = 12
FRAME_BYTES = 3000


def frame_bytes(number: int) -> bytes:
    """What frame `number` holds: its number, over and over."""
    return (number.to_bytes(4, "little") * FRAME_BYTES)[:FRAME_BYTES]


def frame_name(number: int) -> str:
    return f"frame-{number:05d}.bin"


def write_frame(folder: Path, number: int) -> Path:
    """Writes a frame as simulations do: under another name, then renamed into place."""
    hidden = folder / f".{frame_name(number)}.part"
    hidden.write_bytes(frame_bytes(number))
    return hidden.rename(folder / frame_name(number))


class Tool:
    """`zazen` with an environment of its own."""

    def __init__(self, **environment: str) -> None:
        daemon = {"ZAZEND": zazen.testing.program("zazend")}
        self.environment = zazen.testing.environment() | daemon | environment
        self.program = zazen.testing.program("zazen")

    def __call__(self, *arguments: object, status: int = 0, text: str | None = None):
        """Runs to the end; the exit code must be `status`."""
        words = [self.program, *map(str, arguments)]
        done = subprocess.run(
            words, env=self.environment, input=text, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *arguments: object) -> subprocess.Popen:
        words = [self.program, *map(str, arguments)]
        return subprocess.Popen(
            words, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


@pytest.fixture
def tool(tmp_path_factory):
    """The tool, away from any daemon of this machine."""
    return Tool(ZAZEN_SOCKET=str(tmp_path_factory.mktemp("nobody") / "no.sock"))


class Testbed:
    """A testbed of two nodes and the dataset on its file server."""

    __test__ = False

    def __init__(self, folder: Path, tool: Tool, *options: str) -> None:
        self.folder = folder
        self.tool = Tool(ZAZEN_TESTBED=str(folder), ZAZEN_KEY=str(folder / "key"))
        tool("testbed", "up", 2, "--dir", folder, *options)
        self.nodes = folder / "nodes.txt"
        self.dataset = folder / "server" / "sim1"
        self.dataset.mkdir(parents=True)

    def write(self, count: int = FRAMES) -> list[Path]:
        return [write_frame(self.dataset, number) for number in range(count)]

    def push(self, files: list[Path]) -> None:
        self.tool("push", *files, "--nodes", self.nodes)


@pytest.fixture
def testbed(tmp_path, tool):
    testbed = Testbed(tmp_path / "t", tool)
    yield testbed
    tool("testbed", "down", "--dir", testbed.folder)


@pytest.fixture
def pushed(testbed):
    """The same with all frames pushed."""
    testbed.push(testbed.write())
    return testbed
