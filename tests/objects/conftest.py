"""An S3 server on the loopback interface, and daemons that have it as backing store."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import signed
import zazen
import zazen.testing

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "target/objects/debug/zazen-objects"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def helper() -> str:
    """The program that reads object stores. `make test` builds it."""
    beside = Path(sys.executable).parent / "zazen-objects"
    named = os.environ.get("ZAZEN_OBJECTS")
    found = [path for path in (named, str(BUILT), str(beside)) if path and Path(path).is_file()]
    if not found:
        pytest.skip("no zazen-objects: `make objects` builds it")
    return found[0]


class Store:
    """One bucket of an S3 server that can be killed and started again (it is empty then)."""

    bucket = "data"
    #: What the server's clients have in their environment.
    keys = KEYS

    def __init__(self) -> None:
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("s3_server.py")), str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        told = self.process.stdout.readline()
        assert told.strip(), "the S3 server did not start"
        self.port = int(told)
        self.request("PUT", "")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def request(self, method: str, key: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            path = f"/{self.bucket}/{urllib.parse.quote(key)}"
            headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20261124/us-east-1/s3/aws4_request"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status in (200, 204), (answer.status, text)
            return text

    def put(self, key: str, data: bytes) -> None:
        self.request("PUT", key, data)

    def delete(self, key: str) -> None:
        self.request("DELETE", key)


@pytest.fixture(scope="session")
def _server() -> Iterator[Store]:
    if find_spec("moto") is None or find_spec("flask_cors") is None:
        pytest.skip("no S3 server: pip install -r requirements/test.txt brings moto")
    store = Store()
    yield store
    store.kill()


@pytest.fixture
def store(_server: Store, tmp_path: Path) -> Store:
    """The server, with an empty prefix of this test's own: `store.prefix`."""
    _server.prefix = tmp_path.name
    return _server


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[signed.Gateway]:
    """A server that checks signatures, in place of moto, which believes all of them."""
    program = signed.program()
    if program is None:
        pytest.skip("no versitygw: scripts/install-versitygw.sh builds it")
    with signed.Gateway(program, tmp_path) as running:
        running.prefix = "p"
        yield running


@pytest.fixture
def own_store() -> Iterator[Store]:
    """A server for one test, which may kill it."""
    if find_spec("moto") is None or find_spec("flask_cors") is None:
        pytest.skip("no S3 server: pip install -r requirements/test.txt brings moto")
    store = Store()
    store.prefix = "p"
    yield store
    store.kill()


@contextlib.contextmanager
def daemon(
    folder: Path,
    helper: str,
    location: str,
    *arguments: object,
    keys: dict[str, str] = KEYS,
    **options: object,
) -> Iterator[zazen.testing.Daemon]:
    """A daemon whose second backing store is `location`. `options`: of `zazen.testing.Daemon`."""
    (folder / "empty").mkdir(exist_ok=True)
    told = ["--backing", location, *arguments]
    variables = keys | {"ZAZEN_OBJECTS": helper}
    with zazen.testing.Daemon(folder, folder / "empty", told, variables=variables, **options) as running:
        yield running


def location(store: Store, **settings: object) -> str:
    """The store of this test, with its settings."""
    told = "&".join(f"{name}={value}" for name, value in {"endpoint": store.endpoint, **settings}.items())
    return f"s3://{store.bucket}/{store.prefix}?{told}"


def read(path: str, socket: object, **options: object) -> dict[int, bytes]:
    """All frames of the dataset, through the daemon."""
    with zazen.open(path, socket=str(socket), **options) as dataset:
        return {frame.number: bytes(frame.data) for frame in dataset.frames()}
