"""A visualization on the backing store, and nodes that may hold some of it."""

import subprocess
import time

import pytest
import zazen.testing

vtk = pytest.importorskip("vtkmodules", reason="no VTK: pip install 'zazen[viz]', or scripts/test-viz.sh")


@pytest.fixture
def ocean(backing):
    """A series of three steps with eight blocks each; its index."""
    from zazen.viz.generate import write

    index = write(backing / "ocean", steps=3, points=9)
    # Files that changed a moment ago are not cached.
    time.sleep(0.05)
    return index


@pytest.fixture
def cluster(folder, backing):
    """Four nodes with empty caches."""
    with zazen.testing.Cluster(folder / "c", backing, nodes=4) as cluster:
        yield cluster


def run(*words, **variables):
    """Runs `zazen`; fails the test if it fails."""
    command = [zazen.testing.program("zazen"), *map(str, words)]
    environment = zazen.testing.environment() | variables
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def load():
    """Loads the blocks of a series into the caches of some nodes."""

    def loaded(index, nodes, key, copies=1, kind="vti"):
        pattern = f"ts_{{t}}/ts_{{t}}_{{b}}.{kind}"
        listed = ",".join(nodes)
        return run(
            "load", index.parent, "--pattern", pattern, "--copies", copies, "--nodes", listed, "--key", key
        )

    return loaded
