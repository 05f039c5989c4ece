"""versitygw, an S3 server that checks signatures, and a proxy that signs for those who cannot.

`scripts/install-versitygw.sh` builds the server. $ZAZEN_VERSITYGW names another one.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "the reader's secret", "AWS_REGION": REGION}


def program() -> str | None:
    """The server's program, if it is here."""
    named = os.environ.get("ZAZEN_VERSITYGW", str(ROOT / "target/versitygw/versitygw"))
    return named if os.access(named, os.X_OK) else None


def signed(method: str, url: str, body: bytes) -> dict[str, str]:
    """The headers of a request with its signature."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(method, url, data=body)
    who = Credentials(KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"])
    S3SigV4Auth(who, "s3", REGION).add_auth(request)
    return dict(request.headers.items())


class Signer(BaseHTTPRequestHandler):
    """Hands a request on, signed."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, text = self.server.gateway.ask(self.command, self.path, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)

    do_DELETE = do_PUT


class Gateway:
    """The server over a folder of its own, and the proxy; a context manager."""

    bucket = "data"
    keys = KEYS

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder
        for name in ("objects", "properties"):
            (folder / name).mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.signer = ThreadingHTTPServer(("127.0.0.1", 0), Signer)
        self.signer.daemon_threads = True
        self.signer.gateway = self

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Gateway:
        threading.Thread(target=self.signer.serve_forever, daemon=True).start()
        # Properties of objects in files: not every file system has room for them beside the data.
        command = [self.program, "--port", f"127.0.0.1:{self.port}", "--region", REGION, "--quiet"]
        command += ["posix", "--sidecar", str(self.folder / "properties"), str(self.folder / "objects")]
        owner = {
            "ROOT_ACCESS_KEY_ID": KEYS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_ACCESS_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        }
        log = open(self.folder / "gateway.log", "wb")
        with log:
            self.process = subprocess.Popen(command, env=os.environ | owner, stdout=log, stderr=log)
        for _ in range(600):
            with contextlib.suppress(OSError):
                self.request("PUT", "")
                return self
            assert self.process.poll() is None, (self.folder / "gateway.log").read_text()
            time.sleep(0.1)
        self.__exit__()
        raise AssertionError("versitygw does not answer")

    def __exit__(self, *_: object) -> None:
        self.signer.shutdown()
        self.signer.server_close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to a signed request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, signed(method, self.endpoint + path, body))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def request(self, method: str, key: str, body: bytes = b"") -> bytes:
        status, text = self.ask(method, f"/{self.bucket}/{urllib.parse.quote(key)}".rstrip("/"), body)
        assert status in (200, 204), (status, text)
        return text

    def put(self, key: str, data: bytes) -> None:
        self.request("PUT", key, data)

    def delete(self, key: str) -> None:
        self.request("DELETE", key)
