"""The wire between clients and a node, for tests: it passes on what they say, and keeps answers
back until something has happened at the client."""

import contextlib
import socket
import threading
from collections.abc import Callable


class Wire:
    """Listens at `address` in place of a node."""

    def __init__(self, node: str) -> None:
        host, _, port = node.rpartition(":")
        self.node = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.changed = threading.Condition()
        self.marker, self.least = None, 0
        # An answer is kept back; it may go on.
        self.kept, self.goes_on = threading.Event(), threading.Event()
        self.counted, self.counts, self.holds = None, 0, lambda: False
        self.all = []
        threading.Thread(target=self._accept, daemon=True).start()

    def keep_back(self, marker: bytes, least: int = 1) -> None:
        """The answer to the next call that has these bytes in it; the answer has so many at
        least. It is kept back until `goes_on` is set."""
        self.kept.clear()
        self.goes_on.clear()
        self.marker, self.least = marker, least

    def count(self, marker: bytes) -> Callable[[], int]:
        """How often these bytes were asked with, from now on."""
        self.counted, self.counts = marker, 0
        return lambda: self.counts

    def hold_while(self, holds: Callable[[], bool]) -> None:
        """No answer goes on while that is so, which is looked at after each message to the node."""
        self.holds = holds

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                far = socket.create_connection(self.node)
                self.all += [client, far]
                for each in (client, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                is_kept = threading.Event()
                threading.Thread(target=self._ask, args=(client, far, is_kept), daemon=True).start()
                threading.Thread(target=self._answer, args=(far, client, is_kept), daemon=True).start()

    def _ask(self, client: socket.socket, far: socket.socket, is_kept: threading.Event) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                with self.changed:
                    if self.marker and self.marker in data:
                        self.marker = None
                        is_kept.set()
                    if self.counted:
                        # What is cut in two counts, too.
                        *before, rest = (rest + data).split(self.counted)
                        self.counts += len(before)
                        rest = rest[1 - len(self.counted) :]
                    self.changed.notify_all()
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def _answer(self, far: socket.socket, client: socket.socket, is_kept: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                if is_kept.is_set():
                    # Shorter answers may come before, to closes that nobody waits for.
                    while len(data) < self.least:
                        data += far.recv(1 << 16)
                    is_kept.clear()
                    self.kept.set()
                    self.goes_on.wait(120)
                with self.changed:
                    self.changed.wait_for(lambda: not self.holds(), 120)
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.goes_on.set()
        for each in [self.listener, *self.all]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
