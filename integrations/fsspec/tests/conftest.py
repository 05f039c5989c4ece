"""File systems over a daemon of the test's own."""

import time

import pytest

#: Until then a later change of a file may leave no trace in its times (docs/operating.md).
SETTLED_SECONDS = 0.05


@pytest.fixture
def fs(node):
    """The file system, with small blocks and little read-ahead."""
    from block_size import BLOCK_BYTES
    from zazen.fsspec import ZazenFileSystem

    sizes = {"block_bytes": BLOCK_BYTES, "ahead_bytes": 2 * BLOCK_BYTES}
    return ZazenFileSystem(socket=str(node.socket), **sizes, skip_instance_cache=True)


@pytest.fixture
def settle():
    """Waits until files written so far count as settled."""
    return lambda: time.sleep(SETTLED_SECONDS)
