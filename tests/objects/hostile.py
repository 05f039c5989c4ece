"""An S3 server that lies as a test tells it to. It answers HEAD, GET with a range, and listings of
objects that it has in memory, and takes objects, in parts too; `behave` may answer in its place."""

from __future__ import annotations

import functools
import hashlib
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

DATE = "Tue, 24 Nov 2026 00:00:00 GMT"
ISO = "2026-11-24T00:00:00.000Z"


@functools.lru_cache(maxsize=4096)
def tag_of(data: bytes) -> str:
    """The ETag of these bytes."""
    return hashlib.md5(data).hexdigest()


class Request(BaseHTTPRequestHandler):
    """One connection. `self.server.store` has the objects."""

    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: the second must not wait until the first is acknowledged.
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def answer(self) -> None:
        server: Hostile = self.server.owner
        path, _, query = self.path.partition("?")
        self.key = urllib.parse.unquote(path).removeprefix("/").partition("/")[2]
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with server.lock:
            server.requests.append((self.command, self.key, self.headers.get("Range")))
        if server.behave is not None and server.behave(self):
            return
        self.be_honest()

    def be_honest(self) -> None:
        objects = self.server.owner.objects
        if self.command in ("PUT", "POST", "DELETE"):
            self.take()
        elif "list-type" in self.query:
            self.give_list(
                [name for name in sorted(objects) if name.startswith(self.query.get("prefix", ""))]
            )
        elif self.key not in objects:
            self.give(404, b"", {})
        else:
            self.give_object(objects[self.key])

    def take(self) -> None:
        """Takes an object, or a step of one in parts, which is an object after its last step."""
        server, upload = self.server.owner, self.query.get("uploadId")
        told = {name: value for name, value in self.headers.items() if name.startswith("x-amz-meta-")}
        with server.lock:
            if "uploads" in self.query:
                upload = f"{server.began}"
                server.began += 1
                server.uploads[upload] = ({}, told)
                body = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                self.give(200, f"{body}</InitiateMultipartUploadResult>".encode(), {})
            elif self.command == "DELETE":
                server.uploads.pop(upload, None)
                self.give(204, b"", {})
            elif self.command == "POST":
                parts, server.properties[self.key] = server.uploads.pop(upload)
                server.objects[self.key] = b"".join(data for _, data in sorted(parts.items()))
                server.tags[self.key] = f"whole-{len(parts)}"
                body = f'<CompleteMultipartUploadResult><ETag>"{server.tags[self.key]}"</ETag>'
                self.give(200, f"{body}</CompleteMultipartUploadResult>".encode(), {})
            elif upload is not None and upload not in server.uploads:
                self.give(404, b"<Error><Code>NoSuchUpload</Code></Error>", {})
            elif upload is not None:
                server.uploads[upload][0][int(self.query["partNumber"])] = self.body
                self.give(200, b"", {"ETag": f'"{tag_of(self.body)}"'})
            else:
                server.objects[self.key], server.properties[self.key] = self.body, told
                server.tags.pop(self.key, None)
                self.give(200, b"", {"ETag": f'"{tag_of(self.body)}"'})

    def give_object(self, data: bytes, tag: str | None = None) -> None:
        if tag is None:
            tag = self.server.owner.tags.get(self.key) or tag_of(data)
        headers = {"ETag": f'"{tag}"', "Last-Modified": DATE}
        headers |= self.server.owner.properties.get(self.key, {})
        told = self.headers.get("Range")
        if told is None:
            self.give(200, data, headers)
            return
        first, last = told.removeprefix("bytes=").split("-")
        if int(first) >= len(data):
            self.give(416, b"", {})
            return
        end = min(int(last) + 1, len(data))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
        self.give(206, data[int(first) : end], headers)

    def give(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(b"" if self.command == "HEAD" else body)
        except OSError:
            # The reader has seen enough.
            self.close_connection = True

    def give_list(self, keys: list[str], token: str | None = None) -> None:
        objects, prefix = self.server.owner.objects, self.query.get("prefix", "")
        tags = self.server.owner.tags
        folders = {prefix + rest.split("/")[0] + "/" for key in keys if "/" in (rest := key[len(prefix) :])}
        plain = [key for key in keys if "/" not in key[len(prefix) :]]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{ISO}</LastModified>"
            f'<ETag>"{tags.get(key) or tag_of(objects.get(key, b""))}"</ETag>'
            f"<Size>{len(objects.get(key, b''))}</Size></Contents>"
            for key in plain
        )
        contents += "".join(
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in sorted(folders)
        )
        more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        text = f"<ListBucketResult>{contents}{more}</ListBucketResult>"
        self.give(200, text.encode(), {"Content-Type": "application/xml"})


class Hostile:
    """The server, while the `with` lasts. `behave(request)` answers and returns True, or returns
    False: then the answer is an honest one."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.behave = objects, None
        self.behave: Callable[[Request], bool] | None = None
        self.requests: list[tuple[str, str, str | None]] = []
        #: Of objects that were put: headers that come back. Of uploads: parts, and these headers.
        self.properties: dict[str, dict[str, str]] = {}
        self.uploads: dict[str, tuple[dict[int, bytes], dict[str, str]]] = {}
        #: How many uploads began.
        self.began = 0
        #: ETags of objects that came in parts; the others' are digests of their bytes.
        self.tags: dict[str, str] = {}
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self._server.daemon_threads = True
        self._server.owner = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hostile:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
