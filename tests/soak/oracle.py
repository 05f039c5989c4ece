"""What a namespace may answer, by what programs were told: the oracle of `namespace_kills.py`.

It is plain Python and knows nothing of Zazen. A program notes each operation before it asks for it,
and its outcome afterwards. An operation that failed may have happened, in part or as a whole, and
may still happen; so a program changes the bytes of a file no more after one of its changes failed.
"""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The last lines of a name that a problem shows.
LINES_SHOWN = 12


class Journal:
    """The operations of all programs, in a file: a JSON line when one begins, one when it ends."""

    def __init__(self, path: Path) -> None:
        self.path, self._began = path, time.monotonic()
        self._lock, self._file, self._number = threading.Lock(), path.open("w"), 0

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def now(self) -> float:
        """Seconds since it was begun."""
        return round(time.monotonic() - self._began, 3)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def begin(self, who: str, what: str, *names: str, **more: Any) -> int:
        """Notes that `who` asks for `what`.

        Returns the operation's number.
        """
        with self._lock:
            self._number += 1
            line = {"at": self.now(), "number": self._number, "who": who, "what": what}
            self._write(line | {"names": list(names)} | more)
            return self._number

    def end(self, number: int, outcome: str) -> None:
        """Notes how an operation ended: `done`, or an error."""
        with self._lock:
            self._write({"at": self.now(), "number": number, "outcome": outcome})

    def event(self, what: str) -> None:
        """Notes what happened to a node."""
        with self._lock:
            self._write({"at": self.now(), "event": what})

    def about(self, name: str) -> list[str]:
        """The last lines about a name, and how these operations ended."""
        numbers, found = set(), []
        for text in self.path.read_text().splitlines():
            line = json.loads(text)
            if name in line.get("names", ()):
                numbers.add(line["number"])
            if line.get("number") in numbers:
                found.append(text)
        return found[-LINES_SHOWN:]


@dataclass
class File:
    """The bytes that a file must have, and those that it may have since a change of it failed."""

    data: bytes = b""
    #: Bytes that a change which failed may have put at an offset.
    maybe: list[tuple[int, bytes]] = field(default_factory=list)
    #: Bounds of the length, if a change failed.
    lengths: tuple[int, int] | None = None
    #: Nodes that hold bytes of it.
    holders: set[int] = field(default_factory=set)
    #: It need not be readable: the disk with the only copy of its bytes was lost.
    is_lost: bool = False
    #: When it was changed last, on the monotonic clock.
    changed: float = field(default_factory=time.monotonic)

    @property
    def is_sure(self) -> bool:
        """Whether all changes were acknowledged."""
        return self.lengths is None

    def put(self, offset: int, data: bytes) -> None:
        """A write was acknowledged; a gap before it is zeros."""
        before = self.data[:offset].ljust(offset, b"\0")
        self.data = before + data + self.data[offset + len(data) :]

    def cut(self, length: int) -> None:
        """A truncate was acknowledged."""
        self.data = self.data[:length].ljust(length, b"\0")

    def replace(self, data: bytes) -> None:
        """All bytes were replaced, which was acknowledged."""
        self.data = data

    def may_have_put(self, offset: int, data: bytes) -> None:
        """A write failed."""
        self.maybe.append((offset, data))
        self.lengths = (len(self.data), max(len(self.data), offset + len(data)))

    def may_have_cut(self, length: int) -> None:
        """A truncate failed."""
        self.lengths = (min(length, len(self.data)), max(length, len(self.data)))

    def may_have_replaced(self, data: bytes) -> None:
        """A replacement failed, which cuts the file to nothing before it writes."""
        self.maybe.append((0, data))
        self.lengths = (0, max(len(self.data), len(data)))

    def judge(self, found: bytes) -> str | None:
        """What is wrong with bytes that were read; None if they may be the file's."""
        if found == self.data:
            return None
        least, most = self.lengths or (len(self.data), len(self.data))
        if not least <= len(found) <= most:
            expected = f"{least}" if least == most else f"{least} to {most}"
            return f"{len(found)} bytes, not {expected}"
        for at, byte in enumerate(found):
            if at < len(self.data) and byte == self.data[at]:
                continue
            tried = [data[at - offset] for offset, data in self.maybe if 0 <= at - offset < len(data)]
            # A hole of a change that failed: behind the bytes that are sure.
            is_hole = self.lengths is not None and at >= least and byte == 0
            if byte not in tried and not is_hole:
                was = f"{self.data[at]:#04x}" if at < len(self.data) else "nothing"
                return f"byte {at} of {len(found)} is {byte:#04x}, not {was}"
        return None


#: What names lead to: an outcome of an operation that failed. None: the name is not there.
Outcome = dict[str, File | None]


class Folder:
    """The names in one directory that one program changes."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        #: For each operation on names that failed: its possible outcomes.
        self.doubts: list[list[Outcome]] = []

    def doubt(self, *outcomes: Outcome) -> None:
        """An operation on names failed. Its names are used no more."""
        for name in outcomes[0]:
            self.files.pop(name, None)
        self.doubts.append(list(outcomes))

    def judge(self, names: set[str]) -> tuple[Outcome, dict[str, str]]:
        """What each of the names that were listed must lead to, and what is wrong by name."""
        expected: Outcome = dict(self.files)
        problems = {}
        for outcomes in self.doubts:
            there = names & outcomes[0].keys()
            like = [one for one in outcomes if {name for name, file in one.items() if file} == there]
            if like:
                expected |= {name: file for name, file in like[0].items() if file}
            else:
                for name in outcomes[0]:
                    problems[name] = f"an operation that failed left {sorted(there)} of {sorted(outcomes[0])}"
        doubtful = {name for outcomes in self.doubts for name in outcomes[0]}
        problems |= {name: "is lost" for name in self.files.keys() - names}
        problems |= {name: "came back, or was never made" for name in names - self.files.keys() - doubtful}
        return {name: file for name, file in expected.items() if name in names}, problems


def spread(values: list[float]) -> dict[str, float | int | None]:
    """Median, 99th percentile and maximum, rounded to milliseconds."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "median": None, "p99": None, "max": None}

    def at(part: float) -> float:
        return round(ordered[max(math.ceil(part * len(ordered)) - 1, 0)], 3)

    return {"count": len(ordered), "median": at(0.5), "p99": at(0.99), "max": round(ordered[-1], 3)}
