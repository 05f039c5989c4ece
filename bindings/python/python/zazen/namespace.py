"""Files of the namespace, without a mount: through the daemon of this node.

    from zazen import namespace

    with namespace.open("/run1/step-17.bin", "wb") as file:
        file.write(data)
    namespace.listdir("/run1")
    namespace.create_many("/run1", [f"part-{n}" for n in range(10_000)])
    for place in namespace.locate(["/run1/step-17.bin"]):
        print(place.path, place.host)

The functions of this module use the daemon of this machine ($ZAZEN_SOCKET, or the default socket).
`Namespace` is the same for another daemon. `Path` is a path with pathlib's methods. Paths are those
of the namespace: its root is ``/``, and a relative path begins there too. They are str, bytes or
``os.PathLike``.

What is refused raises the OSError that ``os`` would raise, with its errno and the path; it is also
a ``zazen.Error``. If no daemon answers, it is UnavailableError.

Any thread may use a Namespace and an open file. A forked child is a caller of its own: the
Namespace connects again when the child first uses it, and an open file is opened again by its path.
A Namespace, a Path and a file that was opened with ``buffering=0`` can be pickled; such a file is
opened again by its path, without being emptied.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import stat as _stat
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

from zazen import _zazen
from zazen._namespace_file import ANY_PATH, BUFFER_BYTES, RawFile, to_bytes

__all__ = [
    "Entry",
    "Error",
    "Holder",
    "Namespace",
    "Path",
    "Place",
    "RawFile",
    "chmod",
    "chown",
    "connect",
    "create_many",
    "exists",
    "getxattr",
    "isdir",
    "isfile",
    "link",
    "listdir",
    "listxattr",
    "locate",
    "lstat",
    "makedirs",
    "mkdir",
    "nodes",
    "open",
    "read_bytes",
    "readlink",
    "remove_many",
    "removexattr",
    "rename",
    "rmdir",
    "rmtree",
    "scandir",
    "setxattr",
    "stat",
    "stat_many",
    "status",
    "symlink",
    "truncate",
    "unlink",
    "utime",
    "walk",
    "write_bytes",
]

#: What is refused: an OSError with the kernel's number, and a `zazen.Error`. IsADirectoryError and
#: the like are subclasses; what the package has already, such as `zazen.NotFoundError`, is none.
Error = _zazen.namespace_errors()[0]


class Holder(NamedTuple):
    """A node that holds bytes of a file."""

    #: The number of the node.
    node: int
    #: As in `Place`.
    name: str
    #: As in `Place`.
    host: str
    #: How many bytes of the file it holds.
    bytes: int


class Place(NamedTuple):
    """Where the bytes of a file are."""

    #: The path, as it was given.
    path: Any
    #: The number of the node that holds the bytes, or most of them if it is a file in chunks; None
    #: for a file that never had any.
    node: int | None
    #: The node's name; empty for a file without a node, and for a node that is down and whose name
    #: this machine's daemon never learned.
    name: str
    #: The host of its daemon.
    host: str
    #: How many bytes, as of the last close or sync.
    bytes: int
    #: All nodes that hold bytes of it, the one with the most first: several of a file in chunks.
    holders: tuple[Holder, ...]


def _stat_result(raw: tuple[int, ...]) -> os.stat_result:
    mode, inode, links, uid, gid, size, blocks, accessed, modified, changed, _holder = raw
    seconds = [ns // 10**9 for ns in (accessed, modified, changed)]
    exact = [ns / 10**9 for ns in (accessed, modified, changed)]
    rest = [*exact, accessed, modified, changed, 1 << 20, blocks, 0]
    return os.stat_result([mode, inode, 0, links, uid, gid, size, *seconds, *rest])


def _umask() -> int:
    # os.umask() would change it for other threads for a moment.
    with builtins.open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _several(given: Iterable[ANY_PATH], called: str, on_error: str) -> list[ANY_PATH]:
    """The arguments of `called`, looked at before it has any effect. One path alone would be taken
    apart into its characters.
    """
    if isinstance(given, str | bytes | os.PathLike):
        raise TypeError(f"{called} takes several paths; give a list")
    if on_error not in ("raise", "return"):
        raise ValueError(f'on_error is {on_error!r}; give "raise" or "return"')
    return list(given)


def _raise_first(results: list[Any], on_error: str) -> None:
    failed = [result for result in results if isinstance(result, Exception)]
    if on_error == "raise" and failed:
        failed[0].add_note(f"{len(failed)} of {len(results)} failed; on_error='return' gives each result")
        raise failed[0]


class Entry:
    """An entry of `scandir`, with the methods of os.DirEntry."""

    __slots__ = ("_namespace", "_raw", "name", "path")

    def __init__(self, namespace: Namespace, path: str, name: str, raw: tuple[int, ...]) -> None:
        self._namespace, self._raw = namespace, raw
        #: Its name.
        self.name = name
        #: The path of the directory, and the name.
        self.path = path

    def inode(self) -> int:
        """The number of its inode."""
        return self._raw[1]

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return _stat.S_ISLNK(self._raw[0])

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is, or leads to, a directory."""
        if follow_symlinks and self.is_symlink():
            return self._namespace.isdir(self.path)
        return _stat.S_ISDIR(self._raw[0])

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is, or leads to, a regular file."""
        if follow_symlinks and self.is_symlink():
            return self._namespace.isfile(self.path)
        return _stat.S_ISREG(self._raw[0])

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its attributes, as of the listing; of what it leads to, as of now."""
        if follow_symlinks and self.is_symlink():
            return self._namespace.stat(self.path)
        return _stat_result(self._raw)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<zazen.namespace.Entry {self.name!r}>"


class Namespace:
    """The namespace, through the daemon at ``socket`` (None: $ZAZEN_SOCKET, or the default of this
    machine).

    With ``node`` ("host:port") and ``key`` (the file of the cluster key), through another node's
    daemon. ``umask``: the bits that new files and directories do not get; None: this process's
    umask as of now. Raises UnavailableError if no daemon answers, UnsupportedError if it serves no
    namespace.

    Directories that a path leads through count as found for one second, as names do in a mount.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        node: str | None = None,
        key: str | os.PathLike[str] | None = None,
        umask: int | None = None,
    ) -> None:
        self._how = (socket, node, key)
        #: The bits that new files and directories do not get.
        self.umask = _umask() if umask is None else umask
        self._link = _zazen.NamespaceLink(socket, node, key)

    def __reduce__(self) -> Any:
        return _connected, (*self._how, self.umask)

    def __repr__(self) -> str:
        socket, node, _key = self._how
        return f"Namespace({str(node or socket or 'this machine')!r})"

    def open(
        self,
        path: ANY_PATH,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
    ) -> IO[Any]:
        """Opens a file, as builtins.open does. ``permissions`` are those of a new file, less the
        umask.

        ``buffering=0`` gives a `RawFile`. A file has no descriptor: ``fileno()`` raises
        io.UnsupportedOperation.
        """
        binary = "b" in mode
        if "t" in mode and binary:
            raise ValueError("can't have text and binary mode at once")
        if binary and (encoding or errors or newline):
            raise ValueError("binary mode takes no encoding, errors or newline argument")
        if buffering == 0 and not binary:
            raise ValueError("can't have unbuffered text I/O")
        raw = RawFile(self, path, mode.replace("t", ""), permissions)
        try:
            if buffering == 0:
                return raw  # type: ignore[return-value]
            size = buffering if buffering > 1 else BUFFER_BYTES
            if raw.readable() and raw.writable():
                buffered: Any = io.BufferedRandom(raw, size)
            else:
                buffered = io.BufferedReader(raw, size) if raw.readable() else io.BufferedWriter(raw, size)
            if binary:
                return buffered
            text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
            text.mode = mode  # type: ignore[misc]
            return text
        except BaseException:
            raw.close()
            raise

    def listdir(self, path: ANY_PATH = "/") -> list[Any]:
        """The names in a directory, without ``.`` and ``..``: str, or bytes if the path is
        bytes."""
        names = [name for name, _kind in self._link.names(to_bytes(path))]
        return names if isinstance(path, bytes) else [os.fsdecode(name) for name in names]

    def scandir(self, path: ANY_PATH = "/") -> list[Entry]:
        """The entries of a directory with their attributes, which cost no further call."""
        above = os.fsdecode(path)
        entries = []
        for raw_name, raw in self._link.list(to_bytes(path)):
            name = os.fsdecode(raw_name)
            if raw is not None:
                entries.append(Entry(self, f"{above.rstrip('/')}/{name}", name, raw))
        return entries

    def walk(
        self, top: ANY_PATH = "/", *, topdown: bool = True, onerror: Any = None, followlinks: bool = False
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """As os.walk: ``(directory, names of directories, names of the others)``."""
        above = os.fsdecode(top)
        try:
            found = [(os.fsdecode(name), kind << 12) for name, kind in self._link.names(to_bytes(top))]
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        path = "" if above == "/" else above.rstrip("/")

        def leads_down(name: str, mode: int) -> bool:
            return _stat.S_ISDIR(mode) or (_stat.S_ISLNK(mode) and self.isdir(f"{path}/{name}"))

        links = {name for name, mode in found if _stat.S_ISLNK(mode)}
        down = [name for name, mode in found if leads_down(name, mode)]
        others = [name for name, mode in found if name not in set(down)]
        if topdown:
            yield above, down, others
        for name in down:
            if followlinks or name not in links:
                yield from self.walk(
                    f"{path}/{name}", topdown=topdown, onerror=onerror, followlinks=followlinks
                )
        if not topdown:
            yield above, down, others

    def stat(self, path: ANY_PATH, *, follow_symlinks: bool = True) -> os.stat_result:
        """Attributes. The length of a file that is being written is asked of its holder."""
        return _stat_result(self._link.stat(to_bytes(path), follow_symlinks))

    def lstat(self, path: ANY_PATH) -> os.stat_result:
        """Attributes; of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def stat_many(
        self, paths: Iterable[ANY_PATH], *, follow_symlinks: bool = True, on_error: str = "raise"
    ) -> list[Any]:
        """Attributes of many paths, in order, in few calls: up to 1,024 names a call.

        ``on_error="return"`` puts the exception in the place of a path that cannot be had.
        """
        listed = _several(paths, "stat_many", on_error)
        results = self._link.stat_many([to_bytes(path) for path in listed], follow_symlinks)
        _raise_first(results, on_error)
        return [raw if isinstance(raw, Exception) else _stat_result(raw) for raw in results]

    def create_many(
        self, directory: ANY_PATH, names: Iterable[ANY_PATH], *, mode: int = 0o666, on_error: str = "raise"
    ) -> list[Any]:
        """Makes empty files in one directory, up to 1,024 a call; None for each.

        A name that exists is FileExistsError. With ``on_error="raise"`` the other files are made
        all the same; ``on_error="return"`` puts the exception in the name's place.
        """
        listed = [to_bytes(name) for name in _several(names, "create_many", on_error)]
        results = self._link.create_many(to_bytes(directory), listed, mode & ~self.umask)
        _raise_first(results, on_error)
        return results

    def remove_many(self, paths: Iterable[ANY_PATH], *, on_error: str = "raise") -> list[Any]:
        """Removes files, up to 1,024 a call; None for each. Errors as with `create_many`."""
        listed = _several(paths, "remove_many", on_error)
        results = self._link.remove_many([to_bytes(path) for path in listed])
        _raise_first(results, on_error)
        return results

    def locate(self, paths: Iterable[ANY_PATH], *, on_error: str = "raise") -> list[Any]:
        """For each file, the `Place` of its bytes. Errors as with `stat_many`."""
        given = _several(paths, "locate", on_error)
        results = self._link.locate([to_bytes(path) for path in given])
        _raise_first(results, on_error)
        return [
            found
            if isinstance(found, Exception)
            else Place(path, *found[:4], tuple(Holder(*one) for one in found[4]))
            for path, found in zip(given, results, strict=True)
        ]

    def exists(self, path: ANY_PATH) -> bool:
        """Whether the path leads to something that this user may reach."""
        return self._mode(path) is not None

    def isfile(self, path: ANY_PATH) -> bool:
        """Whether the path leads to a regular file."""
        return _stat.S_ISREG(self._mode(path) or 0)

    def isdir(self, path: ANY_PATH) -> bool:
        """Whether the path leads to a directory."""
        return _stat.S_ISDIR(self._mode(path) or 0)

    def _mode(self, path: ANY_PATH) -> int | None:
        try:
            return self._link.stat(to_bytes(path), True)[0]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG):
                return None
            raise

    def mkdir(self, path: ANY_PATH, mode: int = 0o777) -> None:
        """Makes a directory."""
        self._link.mkdir(to_bytes(path), mode & ~self.umask)

    def makedirs(self, path: ANY_PATH, mode: int = 0o777, exist_ok: bool = False) -> None:
        """Makes a directory and those above it."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
        self._link.mkdir_all(to_bytes(path), mode & ~self.umask)

    def unlink(self, path: ANY_PATH) -> None:
        """Removes a name that is not a directory's."""
        self._link.remove(to_bytes(path))

    def rmdir(self, path: ANY_PATH) -> None:
        """Removes an empty directory."""
        self._link.rmdir(to_bytes(path))

    def rmtree(self, path: ANY_PATH) -> None:
        """Removes a directory and all in it. The first error ends it."""
        if _stat.S_ISLNK(self.lstat(path).st_mode):
            raise OSError(errno.ENOTDIR, "a symbolic link: unlink() removes it", os.fsdecode(path))
        for above, down, others in list(self.walk(path, topdown=False, onerror=_raise)):
            links = [name for name in down if self._is_link(f"{above}/{name}")]
            self.remove_many([f"{above}/{name}" for name in [*others, *links]])
            for name in set(down) - set(links):
                self.rmdir(f"{above}/{name}")
        self.rmdir(path)

    def _is_link(self, path: str) -> bool:
        try:
            return _stat.S_ISLNK(self.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def rename(self, source: ANY_PATH, target: ANY_PATH) -> None:
        """Gives a file or directory another path, atomically. Replaces what is there, as os.rename
        does."""
        self._link.rename(to_bytes(source), to_bytes(target))

    def symlink(self, target: ANY_PATH, path: ANY_PATH) -> None:
        """Makes ``path`` a symbolic link to ``target``."""
        self._link.symlink(to_bytes(target), to_bytes(path))

    def link(self, source: ANY_PATH, path: ANY_PATH) -> None:
        """Gives a file a second name."""
        self._link.link(to_bytes(source), to_bytes(path))

    def readlink(self, path: ANY_PATH) -> Any:
        """The target of a symbolic link."""
        target = self._link.read_link(to_bytes(path))
        return target if isinstance(path, bytes) else os.fsdecode(target)

    def chmod(self, path: ANY_PATH, mode: int, *, follow_symlinks: bool = True) -> None:
        """Sets the permission bits."""
        self._link.set_attributes(to_bytes(path), follow_symlinks, mode=mode & 0o7777)

    def chown(self, path: ANY_PATH, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Sets owner and group; -1 leaves one as it is."""
        given = {name: value for name, value in (("uid", uid), ("gid", gid)) if value != -1}
        self._link.set_attributes(to_bytes(path), follow_symlinks, **given)

    def utime(
        self,
        path: ANY_PATH,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of the last read and the last change; without times, to now."""
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if times is not None:
            ns = (round(times[0] * 10**9), round(times[1] * 10**9))
        # The smallest number stands for the clock of the metadata.
        accessed, modified = ns if ns is not None else (-(2**63), -(2**63))
        self._link.set_attributes(to_bytes(path), follow_symlinks, accessed_ns=accessed, modified_ns=modified)

    def truncate(self, path: ANY_PATH, length: int) -> None:
        """Cuts or extends a file."""
        with self.open(path, "r+b", buffering=0) as file:
            file.truncate(length)

    def read_bytes(self, path: ANY_PATH) -> bytes:
        """All bytes of a file."""
        with self.open(path, "rb", buffering=0) as file:
            data: bytes = file.read()
            return data

    def write_bytes(self, path: ANY_PATH, data: Any) -> int:
        """Makes or replaces a file with these bytes; how many."""
        view = memoryview(data).cast("B")
        with self.open(path, "wb", buffering=0) as file:
            put = 0
            while put < len(view):
                put += file.write(view[put:])
        return put

    def getxattr(self, path: ANY_PATH, name: str) -> bytes:
        """The value of an extended attribute."""
        return self._link.get_xattr(to_bytes(path), os.fsencode(name))

    def setxattr(self, path: ANY_PATH, name: str, value: bytes) -> None:
        """Sets an extended attribute, such as ``user.origin``."""
        self._link.set_xattr(to_bytes(path), os.fsencode(name), value)

    def removexattr(self, path: ANY_PATH, name: str) -> None:
        """Removes an extended attribute."""
        self._link.set_xattr(to_bytes(path), os.fsencode(name), None)

    def listxattr(self, path: ANY_PATH) -> list[str]:
        """The names of the extended attributes."""
        return [os.fsdecode(name) for name in self._link.list_xattr(to_bytes(path))]

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes: ``node`` (its number), ``name``, ``address``, ``up``."""
        fields = ("node", "name", "address", "up")
        return [dict(zip(fields, found, strict=True)) for found in self._link.nodes()]

    def status(self) -> dict[str, Any]:
        """What `zazen namespace status --json` prints."""
        found: dict[str, Any] = json.loads(self._link.status_json())
        return found


def _raise(error: OSError) -> None:
    raise error


def _connected(socket: Any, node: Any, key: Any, umask: int) -> Namespace:
    return Namespace(socket, node=node, key=key, umask=umask)


_default: dict[str | None, Namespace] = {}


def connect() -> Namespace:
    """The namespace of this machine's daemon ($ZAZEN_SOCKET, or the default): one for the whole
    process."""
    socket = os.environ.get("ZAZEN_SOCKET")
    found = _default.get(socket)
    if found is None:
        # Two threads may both connect; one of the two stays.
        found = _default.setdefault(socket, Namespace())
    return found


class Path(PurePosixPath):
    """A path of the namespace of this machine's daemon, with the methods of pathlib.Path.

    Paths are absolute: a relative one begins at the root.
    """

    __slots__ = ()

    def __fspath__(self) -> str:
        return str(self)

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Opens the file."""
        return connect().open(self, mode, buffering, encoding, errors, newline)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its attributes."""
        return connect().stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        """Its attributes; of a symbolic link itself."""
        return connect().lstat(self)

    def exists(self) -> bool:
        """Whether it leads to something."""
        return connect().exists(self)

    def is_file(self) -> bool:
        """Whether it leads to a regular file."""
        return connect().isfile(self)

    def is_dir(self) -> bool:
        """Whether it leads to a directory."""
        return connect().isdir(self)

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return connect()._is_link(str(self))

    def iterdir(self) -> Iterator[Path]:
        """The paths in the directory."""
        for name in connect().listdir(str(self)):
            yield self / name

    def glob(self, pattern: str) -> Iterator[Path]:
        """The paths below that match; ``**`` stands for any number of directories."""
        parts = PurePosixPath(pattern).parts
        if not parts or parts[0] == "/":
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        yield from _glob(self, parts)

    def rglob(self, pattern: str) -> Iterator[Path]:
        """As `glob`, with ``**/`` in front."""
        return self.glob(f"**/{pattern}")

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes the directory."""
        try:
            if parents:
                connect().makedirs(self, mode, exist_ok)
            else:
                connect().mkdir(self, mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Makes the file, or sets its times to now."""
        try:
            connect().open(self, "xb", buffering=0, permissions=mode).close()
        except FileExistsError:
            if not exist_ok:
                raise
            connect().utime(self)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the name."""
        try:
            connect().unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Removes the empty directory."""
        connect().rmdir(self)

    def rename(self, target: ANY_PATH) -> Path:
        """Gives it another path; returns that."""
        connect().rename(self, target)
        return type(self)(os.fsdecode(target))

    replace = rename

    def symlink_to(self, target: ANY_PATH, target_is_directory: bool = False) -> None:
        """Makes it a symbolic link to ``target``."""
        connect().symlink(target, self)

    def hardlink_to(self, target: ANY_PATH) -> None:
        """Makes it a second name of ``target``."""
        connect().link(target, self)

    def readlink(self) -> Path:
        """Where the symbolic link leads."""
        return type(self)(connect().readlink(str(self)))

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        """Sets the permission bits."""
        connect().chmod(self, mode, follow_symlinks=follow_symlinks)

    def read_bytes(self) -> bytes:
        """All bytes."""
        return connect().read_bytes(self)

    def write_bytes(self, data: Any) -> int:
        """Makes or replaces the file."""
        return connect().write_bytes(self, data)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The file's text."""
        with self.open("r", encoding=encoding, errors=errors) as file:
            text: str = file.read()
            return text

    def write_text(self, data: str, encoding: str | None = None, errors: str | None = None) -> int:
        """Makes or replaces the file with this text."""
        with self.open("w", encoding=encoding, errors=errors) as file:
            return file.write(data)

    def locate(self) -> Place:
        """Which node holds the bytes."""
        place: Place = connect().locate([self])[0]
        return place


def _glob(above: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    first, rest = parts[0], parts[1:]
    if first == "**":
        for directory, _down, _others in connect().walk(str(above)):
            if rest:
                yield from _glob(type(above)(directory), rest)
            else:
                yield type(above)(directory)
        return
    matches = [path for path in above.iterdir() if PurePosixPath(path.name).match(first)]
    for path in matches:
        if not rest:
            yield path
        elif path.is_dir():
            yield from _glob(path, rest)


def _of_default(name: str) -> Any:
    method = getattr(Namespace, name)

    def function(*arguments: Any, **named: Any) -> Any:
        return getattr(connect(), name)(*arguments, **named)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{method.__doc__}\n\n`Namespace.{name}`, of this machine's daemon.\n"
    function.__wrapped__ = method.__get__(object())  # type: ignore[attr-defined]
    return function


chmod = _of_default("chmod")
chown = _of_default("chown")
create_many = _of_default("create_many")
exists = _of_default("exists")
getxattr = _of_default("getxattr")
isdir = _of_default("isdir")
isfile = _of_default("isfile")
link = _of_default("link")
listdir = _of_default("listdir")
listxattr = _of_default("listxattr")
locate = _of_default("locate")
lstat = _of_default("lstat")
makedirs = _of_default("makedirs")
mkdir = _of_default("mkdir")
nodes = _of_default("nodes")
open = _of_default("open")
read_bytes = _of_default("read_bytes")
readlink = _of_default("readlink")
remove_many = _of_default("remove_many")
removexattr = _of_default("removexattr")
rename = _of_default("rename")
rmdir = _of_default("rmdir")
rmtree = _of_default("rmtree")
scandir = _of_default("scandir")
setxattr = _of_default("setxattr")
stat = _of_default("stat")
stat_many = _of_default("stat_many")
status = _of_default("status")
symlink = _of_default("symlink")
truncate = _of_default("truncate")
unlink = _of_default("unlink")
utime = _of_default("utime")
walk = _of_default("walk")
write_bytes = _of_default("write_bytes")
