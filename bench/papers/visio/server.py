"""Sends pieces of files from memory, as fast as its link allows: a stand-in for a file server, or
for one server of a parallel file system. It has no locks, no metadata and no disk, so it is no
slower than either.

python server.py ADDRESS    A request is a line: OFFSET, LENGTH and PATH; the answer is the bytes.
"""

import os
import socketserver
import sys

PORT = 7000


class Handler(socketserver.StreamRequestHandler):
    """A connection."""

    def handle(self) -> None:
        for line in self.rfile:
            offset, length, path = line.decode().rstrip("\n").split(" ", 2)
            at, end = int(offset), int(offset) + int(length)
            with open(path, "rb") as file:
                while at < end and (
                    sent := os.sendfile(self.connection.fileno(), file.fileno(), at, end - at)
                ):
                    at += sent


class Server(socketserver.ThreadingTCPServer):
    """A thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True


def main() -> None:
    with Server((sys.argv[1], PORT), Handler) as server:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
