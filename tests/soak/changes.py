"""The work of `namespace_kills.py`: programs that change files of a namespace through one node, and
compare what they read through all of them."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oracle import File, Folder, Journal
from zazen import namespace

NODES = 4
WORKERS = 8
FILES_MAX = 30
SIZES = [10, 3000, 40_000]
LARGE_BYTES = 1 << 20
#: Each program's part of a file in chunks of 1 MiB: parts and chunks do not end together.
SLOT_BYTES = 700_001
#: Files in chunks that all programs write to. A program leaves one where a write failed.
SHARED_FILES = 24
#: What another node changed may be seen late by so much while daemons die.
SETTLED_S = 5.0
#: All nodes are back: from then on no call may fail any more after this time.
BACK_S = 120.0
#: A call waits at most 30 s for nodes, and a program's operation is a few calls.
OPERATION_S = 150.0
#: Files without a readable copy that are tried: each takes long to fail.
LOST_TRIED = 1


def within(seconds: float, work):
    """What `work` returns; it may fail for so long with an error of the system."""
    until = time.monotonic() + seconds
    while True:
        try:
            return work()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


class Tree:
    """The namespace as one node sees it: through its mount, or through the library."""

    def __init__(self, node: int, mount: Path, socket: str | None) -> None:
        self.node, self.mount = node, mount
        self.library = namespace.Namespace(socket, umask=0o022) if socket else None

    def write(self, path: str, data: bytes, mode: str, offset: int | None = None, sync: bool = False) -> None:
        """Modes as for `open`; with an offset in place of the end or the beginning."""
        if self.library is not None:
            with self.library.open(f"/{path}", mode, buffering=0) as file:
                if offset is not None:
                    file.seek(offset)
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                if sync:
                    file.sync()
            return
        flags = {
            "xb": os.O_CREAT | os.O_EXCL,
            "wb": os.O_CREAT | os.O_TRUNC,
            "ab": os.O_APPEND,
            "r+b": 0,
        }[mode]
        with self.opened(path, flags | os.O_WRONLY) as descriptor:
            if offset is not None:
                os.lseek(descriptor, offset, os.SEEK_SET)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if sync:
                os.fsync(descriptor)

    @contextlib.contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """A descriptor of a mounted file; an error of closing is an error."""
        descriptor = os.open(self.mount / path, flags, 0o644)
        try:
            yield descriptor
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        os.close(descriptor)

    def cut(self, path: str, length: int) -> None:
        if self.library is not None:
            self.library.truncate(f"/{path}", length)
            return
        with self.opened(path, os.O_WRONLY) as descriptor:
            os.ftruncate(descriptor, length)

    def read(self, path: str) -> bytes:
        if self.library is not None:
            return self.library.read_bytes(f"/{path}")
        return (self.mount / path).read_bytes()

    def rename(self, old: str, new: str) -> None:
        if self.library is None:
            os.rename(self.mount / old, self.mount / new)
        else:
            self.library.rename(f"/{old}", f"/{new}")

    def link(self, old: str, new: str) -> None:
        if self.library is None:
            os.link(self.mount / old, self.mount / new)
        else:
            self.library.link(f"/{old}", f"/{new}")

    def remove(self, path: str) -> None:
        if self.library is None:
            os.unlink(self.mount / path)
        else:
            self.library.unlink(f"/{path}")

    def names(self, folder: str) -> set[str]:
        return set(
            os.listdir(self.mount / folder) if self.library is None else self.library.listdir(f"/{folder}")
        )


class Program(threading.Thread):
    """Changes files of its own, and remembers what it was told."""

    def __init__(self, number: int, trees: list[Tree], seed: int, journal: Journal) -> None:
        super().__init__(name=f"p{number}", daemon=True)
        self.number, self.trees, self.journal = number, trees, journal
        self.chance = random.Random(f"{seed} {number}")
        self.tree = trees[number % NODES + (NODES if number >= WORKERS // 2 else 0)]
        self.halt, self.rest, self.rests = threading.Event(), threading.Event(), threading.Event()
        #: One whose files have two copies, and one whose files have one.
        self.folders = {f"{kind}/p{number}": Folder() for kind in ("copies", "plain")}
        #: This program's part of each shared file.
        self.slots: dict[str, File] = {}
        self.made = 0
        #: What it does just now, and since when.
        self.busy: tuple[float, str] | None = None
        self.longest: tuple[float, str] = (0.0, "")
        self.acknowledged: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.problems: list[dict[str, Any]] = []

    def wrong(self, what: str, path: str = "") -> None:
        about = self.journal.about(path) if path else []
        self.problems.append(
            {"at": self.journal.now(), "who": self.name, "path": path, "what": what, "journal": about}
        )

    def run(self) -> None:
        actions = [self.make, self.make, self.make_large, self.append, self.append, self.overwrite]
        actions += [self.put, self.cut, self.move, self.move, self.replace, self.link, self.remove]
        actions += [self.share, self.share, self.look, self.look, self.look_shared]
        while not self.halt.is_set():
            if self.rest.is_set():
                self.rests.set()
                time.sleep(0.01)
                continue
            self.rests.clear()
            path, folder = self.chance.choice(list(self.folders.items()))
            action = self.remove if len(folder.files) > FILES_MAX else self.chance.choice(actions)
            try:
                action(path, folder)
            except Exception as error:
                # A program would end here; the check of all files would then say little.
                self.wrong(f"{action.__name__}: {error!r}")
                break
            time.sleep(self.chance.uniform(0, 0.02))
        self.rests.set()

    def fresh(self) -> str:
        self.made += 1
        return f"f{self.made}"

    def bytes(self) -> bytes:
        return self.chance.randbytes(self.chance.choice(SIZES))

    def pick(self, folder: Folder) -> tuple[str, File] | None:
        """A file, and one of its names."""
        return self.chance.choice(list(folder.files.items())) if folder.files else None

    def changeable(self, folder: Folder) -> tuple[str, File] | None:
        found = self.pick(folder)
        return found if found and found[1].is_sure else None

    def did(self, what: str, paths: list[str], work: Callable[[], object], **more: Any) -> bool:
        """Whether `work` was acknowledged."""
        number = self.journal.begin(self.name, what, *paths, **more)
        begin = time.monotonic()
        self.busy = (begin, f"{what} {' '.join(paths)} (number {number})")
        try:
            work()
            outcome = "done"
        except OSError as error:
            outcome = os.strerror(error.errno) if error.errno else str(error)
        finally:
            took = time.monotonic() - begin
            self.longest = max(self.longest, (round(took, 3), self.busy[1]))
            self.busy = None
        self.journal.end(number, outcome)
        if took > OPERATION_S:
            self.wrong(f"{what} took {took:.0f} s", paths[0])
        if outcome == "done":
            self.acknowledged[what] += 1
        else:
            self.failed[f"{what}: {outcome}"] += 1
        return outcome == "done"

    # Operations. What fails leaves a doubt.

    def make(self, path: str, folder: Folder) -> None:
        name, data, sync = self.fresh(), self.bytes(), self.chance.random() < 0.2
        full = f"{path}/{name}"
        file = File(data, holders={self.tree.node})
        work = lambda: self.tree.write(full, data, "xb", sync=sync)  # noqa: E731
        if self.did("make", [full], work, bytes=len(data), sync=sync):
            folder.files[name] = file
        else:
            file.data = b""
            file.may_have_put(0, data)
            folder.doubt({name: None}, {name: file})

    def make_large(self, path: str, folder: Folder) -> None:
        """A file of several MiB, in pieces; seldom."""
        if self.chance.random() > 0.2:
            return
        self.make(path, folder)
        name = f"f{self.made}"
        for _ in range(self.chance.randrange(1, 4)):
            file = folder.files.get(name)
            if file is None or not file.is_sure:
                return
            self.add(f"{path}/{name}", file, self.chance.randbytes(LARGE_BYTES), self.tree)

    def add(self, full: str, file: File, data: bytes, tree: Tree) -> None:
        sync = self.chance.random() < 0.3
        file.changed = time.monotonic()
        work = lambda: tree.write(full, data, "ab", sync=sync)  # noqa: E731
        if self.did("append", [full], work, bytes=len(data), sync=sync, node=tree.node):
            file.put(len(file.data), data)
        else:
            file.may_have_put(len(file.data), data)
        file.changed = time.monotonic()

    def append(self, path: str, folder: Folder) -> None:
        found = self.changeable(folder)
        if found is not None:
            name, file = found
            self.add(f"{path}/{name}", file, self.bytes(), self.near(file))

    def near(self, file: File) -> Tree:
        """Any node, if the file has been as it is for a while; else the program's own."""
        settled = time.monotonic() - file.changed > SETTLED_S
        return self.chance.choice(self.trees) if settled else self.tree

    def overwrite(self, path: str, folder: Folder) -> None:
        found, data = self.changeable(folder), self.bytes()
        if found is None:
            return
        name, file = found
        full = f"{path}/{name}"
        if self.did("overwrite", [full], lambda: self.tree.write(full, data, "wb"), bytes=len(data)):
            file.replace(data)
        else:
            file.may_have_replaced(data)
        file.changed = time.monotonic()

    def put(self, path: str, folder: Folder) -> None:
        found, data = self.changeable(folder), self.bytes()
        if found is None:
            return
        name, file = found
        full, offset = f"{path}/{name}", self.chance.randrange(len(file.data) + 5000)
        work = lambda: self.tree.write(full, data, "r+b", offset)  # noqa: E731
        if self.did("write", [full], work, bytes=len(data), offset=offset):
            file.put(offset, data)
        else:
            file.may_have_put(offset, data)
        file.changed = time.monotonic()

    def cut(self, path: str, folder: Folder) -> None:
        found = self.changeable(folder)
        if found is None:
            return
        name, file = found
        full, length = f"{path}/{name}", self.chance.randrange(len(file.data) + 5000)
        if self.did("truncate", [full], lambda: self.tree.cut(full, length), length=length):
            file.cut(length)
        else:
            file.may_have_cut(length)
        file.changed = time.monotonic()

    def move(self, path: str, folder: Folder) -> None:
        found, new = self.pick(folder), self.fresh()
        if found is None:
            return
        old, file = found
        full = [f"{path}/{old}", f"{path}/{new}"]
        if self.did("rename", full, lambda: self.tree.rename(*full)):
            del folder.files[old]
            folder.files[new] = file
        else:
            folder.doubt({old: file, new: None}, {old: None, new: file})
        file.changed = time.monotonic()

    def replace(self, path: str, folder: Folder) -> None:
        """Renames one file over another."""
        source, target = self.pick(folder), self.pick(folder)
        if source is None or target is None or source[1] is target[1]:
            return
        (old, file), (new, replaced) = source, target
        full = [f"{path}/{old}", f"{path}/{new}"]
        if self.did("replace", full, lambda: self.tree.rename(*full)):
            del folder.files[old]
            folder.files[new] = file
        else:
            folder.doubt({old: file, new: replaced}, {old: None, new: file})
        file.changed = time.monotonic()

    def link(self, path: str, folder: Folder) -> None:
        found, new = self.pick(folder), self.fresh()
        if found is None:
            return
        old, file = found
        full = [f"{path}/{old}", f"{path}/{new}"]
        if self.did("link", full, lambda: self.tree.link(*full)):
            folder.files[new] = file
        else:
            folder.doubt({new: None}, {new: file})

    def remove(self, path: str, folder: Folder) -> None:
        found = self.pick(folder)
        if found is None:
            return
        name, file = found
        full = f"{path}/{name}"
        if self.did("remove", [full], lambda: self.tree.remove(full)):
            del folder.files[name]
        else:
            folder.doubt({name: file}, {name: None})

    def share(self, _path: str, _folder: Folder) -> None:
        """Writes somewhere into this program's part of a file in chunks."""
        sure = [number for number in range(SHARED_FILES) if self.slot_is_sure(number)]
        if not sure:
            return
        full = f"chunks/s{self.chance.choice(sure[:4])}"
        slot = self.slots.setdefault(full, File(bytes(SLOT_BYTES)))
        data = self.chance.randbytes(self.chance.choice([100, 200_000]))
        offset = self.chance.randrange(SLOT_BYTES - len(data))
        at = self.number * SLOT_BYTES + offset
        sync = self.chance.random() < 0.3
        work = lambda: self.tree.write(full, data, "r+b", at, sync)  # noqa: E731
        if self.did("share", [full], work, bytes=len(data), offset=at, sync=sync):
            slot.put(offset, data)
        else:
            slot.may_have_put(offset, data)
        slot.changed = time.monotonic()

    def slot_is_sure(self, number: int) -> bool:
        slot = self.slots.get(f"chunks/s{number}")
        return slot is None or slot.is_sure

    # Comparisons.

    def read(self, full: str, tree: Tree) -> bytes | None:
        """The bytes of a file; None if an error was answered that may be."""
        found: list[bytes] = []
        if self.did("read", [full], lambda: found.append(tree.read(full)), node=tree.node):
            return found[0]
        return None

    def look(self, path: str, folder: Folder) -> None:
        found = self.pick(folder)
        if found is None:
            return
        name, file = found
        if file.is_lost:
            return
        data = self.read(f"{path}/{name}", self.near(file))
        if data is not None:
            self.compare(f"{path}/{name}", file, data)

    def look_shared(self, _path: str, _folder: Folder) -> None:
        if self.slots:
            full, slot = self.chance.choice(list(self.slots.items()))
            data = self.read(full, self.near(slot))
            if data is not None:
                self.compare_slot(full, slot, data)

    def compare(self, full: str, file: File, data: bytes) -> None:
        said = file.judge(data)
        if said is not None:
            self.wrong(said, full)

    def compare_slot(self, full: str, slot: File, data: bytes) -> None:
        start = self.number * SLOT_BYTES
        said = slot.judge(data[start : start + SLOT_BYTES].ljust(SLOT_BYTES, b"\0"))
        if said is not None:
            self.wrong(f"in the part from {start} on: {said}", full)

    def lose_disk(self, node: int) -> None:
        """The disk of a node is about to be lost, while this program rests."""
        for path, folder in self.folders.items():
            if path.startswith("plain"):
                files = [*folder.files.values()]
                files += [f for doubt in folder.doubts for one in doubt for f in one.values() if f]
                for file in files:
                    file.is_lost |= node in file.holders

    def check(self) -> int:
        """All nodes are back: compares everything.

        Returns how many bytes were compared.
        """
        count, tried = 0, 0
        for path, folder in self.folders.items():
            names = within(BACK_S, lambda path=path: self.chance.choice(self.trees).names(path))
            expected, problems = folder.judge(names)
            for name, said in sorted(problems.items()):
                self.wrong(said, f"{path}/{name}")
            for name, file in expected.items():
                full, tree = f"{path}/{name}", self.chance.choice(self.trees)
                if file is None or name in problems:
                    continue
                if file.is_lost:
                    tried += 1
                    if tried > LOST_TRIED:
                        continue
                data = self.whole(full, tree, file.is_lost)
                if data is not None:
                    self.compare(full, file, data)
                    count += len(data)
        for full, slot in self.slots.items():
            data = self.whole(full, self.chance.choice(self.trees), False)
            if data is not None:
                self.compare_slot(full, slot, data)
                count += SLOT_BYTES
        return count

    def whole(self, full: str, tree: Tree, is_lost: bool) -> bytes | None:
        try:
            return within(0 if is_lost else BACK_S, lambda: tree.read(full))
        except OSError as error:
            if not is_lost or isinstance(error, FileNotFoundError):
                self.wrong(f"cannot be read through n{tree.node}: {error}", full)
        return None
