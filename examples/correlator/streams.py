"""Streams for Python: the functions of stream.h over numpy arrays, without copies of the samples.

    library = streams.Library("libstream.so")
    with library.connect() as host:
        stream = host.attach("observation", rank=3)
        for block in stream.blocks():
            ... block.samples, block.present ...
            stream.gather(block.number, 0, result)

``Library`` takes a shared library of the generated stream_client.c and a runtime: libzazen_stub,
whose calls go to a daemon, or the loopback, which runs the plug-in in this process. See
docs/streams.md.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from ctypes import c_char, c_double, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

import numpy as np

PLUGIN = 17
FIRST_SEEN = UNBOUNDED = 2**64 - 1
UDP, TCP_LISTEN, TCP_CONNECT = range(3)
TURNS, FREE = range(2)
DROP_OLDEST, WAIT = range(2)
ELEMENTS = {"f32": 0, "f64": 1, "i32": 2, "i64": 3}

COUNTERS = """block_first block_base block_next block_limit blocks_delivered blocks_incomplete blocks_dropped
blocks_redealt gaps_told gaps_forgotten foreign kernel_drops receives bytes_in bytes_scattered bytes_gathered
bytes_stored results results_added results_skipped results_duplicate results_late results_unfit groups
groups_incomplete groups_open groups_lost receiver_cpu_ns receive_bytes stations""".split()
STATION_COUNTERS = """arrived stored duplicate late refused outside strange delivered dropped missing
ended""".split()


class Config(ctypes.Structure):
    """struct stream_config."""

    _fields_ = [
        *((name, c_uint32) for name in """stations station_first subbands sample_bytes packet_samples
            block_packets slots buffer_ms""".split()),
        ("sample_rate", c_double),
        ("block_first", c_uint64),
        ("block_count", c_uint64),
        *((name, c_uint32) for name in """ranks deal pressure deadline_ms silence_ms tag input port ports
            receive_bytes integrate element groups_open reserved""".split()),
        ("address", c_char * 64),
    ]  # fmt: skip

    def __init__(self, **values):
        super().__init__(block_first=FIRST_SEEN, block_count=UNBOUNDED, ranks=1)
        for name, value in values.items():
            setattr(self, name, value)

    @property
    def block_bytes(self):
        samples = self.packet_samples * self.block_packets * self.stations
        return samples * self.subbands * self.sample_bytes


class BlockHead(ctypes.Structure):
    """struct stream_block."""

    _fields_ = [
        ("block", c_uint64),
        ("index", c_uint64),
        ("time", c_uint64),
        ("is_dropped", c_uint32),
        ("packets_missing", c_uint32),
        ("bytes", c_uint64),
    ]


class ConnectOptions(ctypes.Structure):
    """struct zazen_connect_options."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("carrier", c_uint32),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("connect_ms", c_uint32),
        ("call_ms", c_uint32),
        ("key_file", ctypes.c_char_p),
    ]


@dataclass
class Block:
    """What a rank got."""

    number: int
    index: int
    time: int
    # Nothing came of it, and there is nothing in it.
    is_dropped: bool
    missing: int
    # uint8, as many as the config says; None if dropped.
    samples: np.ndarray | None
    # bool, of the shape (stations, packets).
    present: np.ndarray


class CallError(OSError):
    """A call did not come through."""


class Library:
    """The generated client and its runtime."""

    def __init__(self, path):
        self.c = ctypes.CDLL(os.fspath(path), use_errno=True)
        self.is_loopback = hasattr(self.c, "zazen_loopback_load")
        for name in ("open", "attach"):
            getattr(self.c, f"stream_{name}").restype = c_int64
        self.c.zazen_stub_error.restype = c_int32

    def check(self, result):
        """The result of a call, or what went wrong."""
        status = self.c.zazen_stub_error()
        if status != 0:
            raise CallError(errno.EIO, f"the call did not come through (status {status}){self._words()}")
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def _words(self):
        if self.is_loopback:
            return ""
        self.c.zazen_connect_error.restype = ctypes.c_char_p
        words = self.c.zazen_connect_error()
        return f": {words.decode()}" if words else ""

    def connect(self, socket=None, plugin=None, rank=-1, ranks=0):
        """A connection to the daemon at ``socket`` (default: this machine's), or to ``plugin`` in
        here."""
        if self.is_loopback:
            return Loopback(self, plugin)
        return Daemon(self, socket, rank, ranks)


class Host:
    """A connection to where streams are; the one that all calls take."""

    def __init__(self, library):
        self.library, self.c = library, library.c

    def use(self, connection):
        self.c.zazen_stub_set_default(c_void_p(connection))

    def open(self, name, config):
        """Makes a stream; it lasts until its last handle is closed."""
        handle = self.library.check(self.c.stream_open(name.encode(), ctypes.byref(config)))
        return Stream(self, handle)

    def attach(self, name, rank=-1):
        """A handle on a stream that is open."""
        return Stream(self, self.library.check(self.c.stream_attach(name.encode(), c_int32(rank))))

    def allocate(self, size):
        return (c_uint8 * size)()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Loopback(Host):
    """The plug-in in this process."""

    def __init__(self, library, plugin):
        super().__init__(library)
        self.c.zazen_loopback_load.restype = c_void_p
        self.c.zazen_loopback_connect.restype = c_void_p
        why = ctypes.c_char_p()
        self.loopback = self.c.zazen_loopback_load(os.fsencode(plugin), None, ctypes.byref(why))
        if not self.loopback:
            raise OSError(f"{plugin}: {why.value.decode()}")
        self.connections = [self.c.zazen_loopback_connect(c_void_p(self.loopback))]
        self.use(self.connections[0])

    def another(self):
        """One more client, which is used from now on."""
        self.connections.append(self.c.zazen_loopback_connect(c_void_p(self.loopback)))
        self.use(self.connections[-1])
        return self.connections[-1]

    def disconnect(self, connection, reason=1):
        self.connections.remove(connection)
        self.c.zazen_loopback_disconnect(c_void_p(connection), c_int32(reason))

    def close(self):
        for connection in self.connections:
            self.c.zazen_loopback_disconnect(c_void_p(connection), 0)
        self.use(None)
        self.c.zazen_loopback_stop(c_void_p(self.loopback))
        self.connections = []


class Daemon(Host):
    """A daemon that hosts the plug-in."""

    def __init__(self, library, socket, rank, ranks):
        super().__init__(library)
        options = ConnectOptions(struct_size=ctypes.sizeof(ConnectOptions), rank=rank, ranks=ranks)
        connection = c_void_p()
        address = None if socket is None else os.fsencode(socket)
        status = self.c.zazen_connect(address, ctypes.byref(options), ctypes.byref(connection))
        if status != 0:
            raise CallError(errno.ECONNREFUSED, f"no daemon (status {status}){library._words()}")
        self.connection = connection.value
        self.c.zazen_alloc.restype = c_void_p
        self.use(self.connection)

    def allocate(self, size):
        """Memory that the daemon can write to, so that samples arrive without a copy. It stays."""
        at = self.c.zazen_alloc(c_void_p(self.connection), c_uint32(PLUGIN), c_uint64(size))
        return (c_uint8 * size).from_address(at) if at else super().allocate(size)

    def close(self):
        self.use(None)
        self.c.zazen_disconnect(c_void_p(self.connection))


class Stream:
    """A handle."""

    def __init__(self, host, handle):
        self.host, self.library, self.c = host, host.library, host.c
        self.handle = c_int64(handle)
        self.config = Config()
        self._call("describe", ctypes.byref(self.config))
        packets = self.config.stations * self.config.block_packets
        self._mask = (c_uint8 * (-(-packets // 8)))()
        self._samples = None
        self._memory = None

    def _call(self, name, *arguments):
        return self.library.check(getattr(self.c, f"stream_{name}")(self.handle, *arguments))

    def ports(self):
        """The ports that are listened on."""
        ports, count = (c_uint16 * 1024)(), c_uint32(1024)
        return ports[: self._call("ports", ports, ctypes.byref(count))]

    def scatter(self, timeout=-1.0):
        """The next block, or None at the end of the stream. TimeoutError after so many seconds. The
        samples are overwritten by the next one."""
        if self._samples is None:
            self._samples = self.host.allocate(self.config.block_bytes)
        size = c_uint64(len(self._samples))
        return self._take(
            "scatter", timeout, [self._samples, ctypes.byref(size)],
            lambda: np.frombuffer(self._samples, np.uint8),
        )  # fmt: skip

    def borrow(self, timeout=-1.0):
        """The same without a copy: the samples are read where the plug-in has them, until
        give_back()."""
        if self._memory is None:
            fd = self._call("memory")
            try:
                self._memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            finally:
                os.close(fd)
        offset = c_uint64()
        return self._take(
            "borrow", timeout, [ctypes.byref(offset)],
            lambda: np.frombuffer(self._memory, np.uint8, self.config.block_bytes, offset.value),
        )  # fmt: skip

    def _take(self, function, timeout, place, samples):
        head, mask_bytes = BlockHead(), c_uint32(len(self._mask))
        patience = c_int32(-1 if timeout < 0 else int(timeout * 1000))
        try:
            came = self._call(
                function, patience, ctypes.byref(head), self._mask, ctypes.byref(mask_bytes), *place
            )
        except BlockingIOError:
            raise TimeoutError(f"no block within {timeout} s") from None
        if not came:
            return None
        shape = (self.config.stations, self.config.block_packets)
        present = np.zeros(shape, bool)
        if not head.is_dropped:
            bits = np.unpackbits(np.frombuffer(self._mask, np.uint8), bitorder="little")
            present = bits[: shape[0] * shape[1]].reshape(shape).astype(bool)
        return Block(
            head.block, head.index, head.time, bool(head.is_dropped), head.packets_missing,
            None if head.is_dropped else samples(), present,
        )  # fmt: skip

    def give_back(self, block):
        """The borrowed block is not looked at any more."""
        if not block.is_dropped:
            self._call("return", c_uint64(block.number))

    def blocks(self, timeout=-1.0):
        """All blocks of this rank until the end of the stream, each overwritten by the next."""
        while (block := self.scatter(timeout)) is not None:
            yield block

    def borrowed(self, timeout=-1.0):
        """All blocks of this rank, where they lie; each is given back when the next one is asked
        for."""
        while (block := self.borrow(timeout)) is not None:
            yield block
            self.give_back(block)

    def gather(self, block, part, result, weight=0):
        """Adds a result. False if it came twice or too late."""
        result = np.ascontiguousarray(result)
        at = result.ctypes.data_as(c_void_p)
        return bool(
            self._call(
                "gather", c_uint64(block), c_uint32(part), c_uint64(weight), at, c_uint64(result.nbytes)
            )
        )

    def skip(self, block, part):
        """There will be no such result."""
        self._call("skip", c_uint64(block), c_uint32(part))

    def store(self, file):
        """Sums go to this file or socket from now on; None: nowhere."""
        self._call("store", c_int(-1 if file is None else file.fileno()))

    def store_at(self, where):
        """Sums go to this file of the host's, or to "tcp:ADDRESS:PORT"."""
        self._call("store_at", os.fsencode(where))

    def end(self):
        self._call("end")

    def flush(self):
        """What is summed leaves; returns when it is stored."""
        self._call("flush")

    def counters(self):
        """A dictionary of COUNTERS, and under "station" a list of dictionaries of
        STATION_COUNTERS."""
        values, count = (c_uint64 * 65536)(), c_uint32(65536)
        every = values[: self._call("counters", values, ctypes.byref(count))]
        found = dict(zip(COUNTERS, every, strict=False))
        rows = every[len(COUNTERS) :]
        width = len(STATION_COUNTERS)
        found["station"] = [
            dict(zip(STATION_COUNTERS, rows[at : at + width], strict=True))
            for at in range(0, len(rows), width)
        ]
        return found

    def close(self):
        self._call("close")
