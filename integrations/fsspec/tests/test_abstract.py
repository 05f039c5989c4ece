"""fsspec's own suite for reading: https://filesystem-spec.readthedocs.io, fsspec.tests.abstract."""

import os
import shutil

import pytest

pytest.importorskip("fsspec.spec", reason="fsspec is not installed: pip install 'zazen[fsspec]'")

import fsspec.implementations.local
import fsspec.tests.abstract as abstract
from zazen.fsspec import ZazenFileSystem


class Seeded(ZazenFileSystem):
    """The suite makes its files through the file system under test: here beside it, on the backing
    store."""

    def _make(self, path):
        path = self._strip_protocol(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        with self._make(path) as file:
            file.write(value)

    def touch(self, path, truncate=True, **kwargs):
        self._make(path).close()

    def mkdir(self, path, create_parents=True, **kwargs):
        os.makedirs(self._strip_protocol(path), exist_ok=True)

    makedirs = mkdir

    def _open(self, path, mode="rb", **kwargs):
        return super()._open(path, mode, **kwargs) if mode == "rb" else self._make(path)

    def rm(self, path, recursive=False, maxdepth=None):
        for one in path if isinstance(path, list) else [path]:
            one = self._strip_protocol(one)
            shutil.rmtree(one) if os.path.isdir(one) else os.remove(one)


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, node):
        return Seeded(socket=str(node.socket), skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, backing):
        return str(backing)

    @pytest.fixture
    def local_fs(self):
        return fsspec.implementations.local.LocalFileSystem(auto_mkdir=True)


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass
