"""A unix socket in front of a daemon's, which cuts all connections after so many bytes of
answers."""

import array
import contextlib
import os
import select
import socket
import threading

#: More descriptors than any message carries.
FDS_MAX = 253


class Cutter:
    """Passes bytes and descriptors both ways; a context manager.

    ``after``: how many bytes of answers get through, over all connections together, before every
    connection is closed and none is taken any more. None: all.
    """

    def __init__(self, path, daemon, after=None):
        self.path, self.daemon, self.left = str(path), str(daemon), after
        self.passed = 0
        self._lock = threading.Lock()
        self._pairs = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._threads = []

    @property
    def has_cut(self):
        return self.left == 0

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self._cut()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, body, *arguments):
        thread = threading.Thread(target=body, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                server.connect(self.daemon)
            except OSError:
                client.close()
                server.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            self._start(self._pass, client, server)

    def _pass(self, client, server):
        """Both directions of one connection, until either side ends."""
        try:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    if not self._pass_some(source, server if source is client else client, source is server):
                        return
        except (OSError, ValueError):
            return
        finally:
            for end in (client, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _pass_some(self, source, target, answers):
        data, fds, _, _ = socket.recv_fds(source, 1 << 16, FDS_MAX, socket.MSG_CMSG_CLOEXEC)
        try:
            if not data:
                return False
            if answers:
                with self._lock:
                    through = data if self.left is None else data[: self.left]
                    if self.left is not None:
                        self.left -= len(through)
                    self.passed += len(through)
                if through:
                    self._send(target, through, fds)
                if self.has_cut:
                    self._cut()
                    return False
            else:
                self._send(target, data, fds)
            return True
        finally:
            for fd in fds:
                os.close(fd)

    @staticmethod
    def _send(target, data, fds):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = target.sendmsg([data], ancillary)
        target.sendall(data[sent:])

    def _cut(self):
        with self._lock:
            pairs, self._pairs = self._pairs, []
        # Closing alone would not wake the thread that waits in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
