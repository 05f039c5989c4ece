"""A dataset on the backing store, and nodes that may hold some of it."""

import time

import pytest
import zazen.testing
from torch_sample import PATTERN, content, numbers


@pytest.fixture
def images(backing):
    """The dataset."""
    path = backing / "images"
    path.mkdir()
    for number in numbers():
        (path / PATTERN.replace("{n:05}", f"{number:05}")).write_bytes(content(number))
    time.sleep(0.05)
    return path


@pytest.fixture
def cluster(folder, images):
    """Three nodes with empty caches."""
    with zazen.testing.Cluster(folder / "c", images.parent, nodes=3) as cluster:
        yield cluster
