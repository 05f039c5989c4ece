"""More random operations of differential.py: mappings, streams, signals, limits of descriptors, and
names of the working directory.

Each class is a part of `differential.Player`. What an operation gives must depend on nothing but
the operations before it: not on time, nor on addresses.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import stat

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fopen.restype = LIBC.fgets.restype = LIBC.fgetws.restype = ctypes.c_void_p
LIBC.ftell.restype = ctypes.c_long


def check(value: int) -> int:
    """What a function of libc gave; its error as an exception."""
    if value < 0:
        raise OSError(ctypes.get_errno(), "")
    return value


# So few, that later operations meet what earlier ones left.
KEPT = 2
FILES = ("a", "b", "c", "d/a", "l", "missing/x")


class Orders:
    """Files that are opened one after the other: over TCP, one brings others along."""

    def do_in_order(self, step):
        """In the middle, one of those that are next changes."""
        folder = os.path.join(self.root, "order")
        os.makedirs(folder, exist_ok=True)
        names = [f"{number:02}" for number in range(14)]
        for number, name in enumerate(names):
            with open(os.path.join(folder, name), "w") as file:
                file.write(f"{step['i']} {name}" * number)
        said = []
        for number, name in enumerate(names):
            path = os.path.join(folder, name)
            if number == 4 + step["pick"] % 8:
                self.change(step, os.path.join(folder, names[number + step["pick"] % 2]))
            try:
                fd = os.open(path, os.O_RDONLY)
            except OSError as error:
                said.append(error.errno)
                continue
            said.append([os.fstat(fd).st_size, os.read(fd, step["size"] + 1), os.lseek(fd, 0, os.SEEK_CUR)])
            os.close(fd)
        return said

    def change(self, step, path: str) -> None:
        what = step["t"] % 4
        if what == 0:
            with open(path, "a") as file:
                file.write("more")
        elif what == 1:
            os.truncate(path, 3)
        elif what == 2:
            os.rename(path, path + "-away")
        elif (pid := os.fork()) == 0:
            os.unlink(path)
            os._exit(0)
        else:
            os.waitpid(pid, 0)


class Mappings:
    def do_map(self, step):
        self.do_unmap(step)
        if step["pick"] % 3 == 0:
            return self.map(step, self.fd(step))
        fd = os.open(os.path.join(self.root, FILES[step["pick"] % 5]), os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(fd).st_size == 0:
                os.pwrite(fd, self.data(step), 0)
            return self.map(step, fd)
        finally:
            os.close(fd)

    def map(self, step, fd: int):
        kind = step["pick"] % 4
        # A mapping that shows later writes is not kept where it is a copy.
        how = [
            (mmap.MAP_PRIVATE, mmap.PROT_READ),
            (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE),
            (mmap.MAP_SHARED, mmap.PROT_READ),
            (mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        ][kind]
        copies = "shared-maps" in self.without
        if copies and kind == 3:
            how = (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size == 0:
            return "nothing to map"
        made = mmap.mmap(fd, 0, flags=how[0], prot=how[1])
        said = [len(made), made[:]]
        if copies:
            made.close()
        else:
            self.maps[step["s"] % KEPT] = (made, bool(how[1] & mmap.PROT_WRITE))
        return said

    def mapped(self, step) -> tuple[mmap.mmap, bool, int]:
        """A slot's mapping, whether it can be written, and how much of it there is."""
        if step["s"] % KEPT not in self.maps:
            self.do_map(step)
        made, writes = self.maps.get(step["s"] % KEPT, (None, False))
        if made is None:
            return None, False, 0
        return made, writes, min(len(made), made.size())

    def do_unmap(self, step):
        made, _ = self.maps.pop(step["s"] % KEPT, (None, False))
        if made is not None:
            made.close()

    def do_map_read(self, step):
        made, _, size = self.mapped(step)
        return None if made is None else made[:size]

    def do_map_write(self, step):
        made, writes, size = self.mapped(step)
        if made is None or not writes or size == 0:
            return None
        at = step["at"] % size
        data = self.data(step)[: size - at]
        made[at : at + len(data)] = data
        return made[:size]

    def do_map_sync(self, step):
        made, _, size = self.mapped(step)
        return None if made is None or size == 0 else made.flush(0, size)


class Streams:
    """libc's streams; by ctypes, as Python has streams of its own."""

    MODES = ("r", "w", "a", "r+", "w+", "a+")

    def do_stream(self, step):
        self.do_stream_close(step)
        stream = self.fopen(step, self.MODES[step["whence"] + 3 * (step["size"] % 2)])
        self.streams[step["s"] % KEPT] = stream
        return LIBC.fileno(stream)

    def fopen(self, step, mode: str) -> ctypes.c_void_p:
        name = self.path(FILES[step["pick"] % len(FILES)], step).encode()
        ctypes.set_errno(0)
        made = LIBC.fopen(name, mode.encode())
        if not made:
            raise OSError(ctypes.get_errno(), "")
        return ctypes.c_void_p(made)

    def stream(self, step):
        if step["s"] % KEPT not in self.streams:
            self.streams[step["s"] % KEPT] = self.fopen(step, "a+")
        return self.streams[step["s"] % KEPT]

    def do_stream_write(self, step):
        stream, data = self.stream(step), self.data(step)
        # Between reading and writing, C wants a seek.
        check(LIBC.fseek(stream, ctypes.c_long(0), os.SEEK_CUR))
        wrote = LIBC.fwrite(data, 1, len(data), stream)
        return [wrote, LIBC.ferror(stream) != 0]

    def do_stream_read(self, step):
        stream, room = self.stream(step), ctypes.create_string_buffer(step["size"] + 1)
        check(LIBC.fseek(stream, ctypes.c_long(0), os.SEEK_CUR))
        got = LIBC.fread(room, 1, step["size"], stream)
        return [room.raw[:got], LIBC.feof(stream) != 0, LIBC.ferror(stream) != 0]

    def do_stream_line(self, step):
        stream, room = self.stream(step), ctypes.create_string_buffer(100)
        check(LIBC.fseek(stream, ctypes.c_long(0), os.SEEK_CUR))
        return [bool(LIBC.fgets(room, 100, stream)), room.value, LIBC.ftell(stream)]

    def do_stream_seek(self, step):
        stream = self.stream(step)
        offset = step["at"] if step["whence"] == 0 else step["at"] - 600
        check(LIBC.fseek(stream, ctypes.c_long(offset), step["whence"]))
        return LIBC.ftell(stream)

    def do_stream_wide(self, step):
        """Wide characters, through a stream that ends here."""
        stream = self.fopen(step, "a+")
        room = ctypes.create_unicode_buffer(40)
        wrote = LIBC.fputws(ctypes.c_wchar_p(f"wide {step['i']}\n"), stream) >= 0
        LIBC.rewind(stream)
        read = [room.value for _ in range(3) if LIBC.fgetws(room, 40, stream)]
        return [wrote, read, check(LIBC.fclose(stream))]

    def do_stream_flush(self, step):
        return check(LIBC.fflush(self.stream(step)))

    def do_stream_close(self, step):
        made = self.streams.pop(step["s"] % KEPT, None)
        return None if made is None else check(LIBC.fclose(made))


class Interrupted(Exception):
    """Raised by the handler of a signal."""


def interrupted(wait) -> bool:
    """Whether signals end a call that waits for ever."""

    def handler(_number, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        try:
            # Again and again: the first may come before the call.
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


class Signals:
    def do_wait_lock(self, step):
        """Waits for a record lock that another process has."""
        kind = fcntl.F_WRLCK if step["pick"] & 1 else fcntl.F_RDLCK
        fd, lock = self.fd(step), self.lock(step, kind)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLK, lock)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return interrupted(lambda: fcntl.fcntl(fd, fcntl.F_SETLKW, lock))
        return "no need"

    def do_wait_flock(self, step):
        try:
            fcntl.flock(self.fd(step), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return interrupted(lambda: fcntl.flock(self.fd(step), fcntl.LOCK_EX))
        return "no need"

    def do_wait_fifo(self, step):
        """Waits for somebody to read a FIFO."""
        path = os.path.join(self.root, "fifo")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return interrupted(lambda: os.open(path, os.O_WRONLY))
        return "no need"

    def ended(self, work) -> list:
        """How a child ended that did this."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                status = work() or 0
            except OSError as error:
                status = error.errno
            finally:
                os._exit(status)
        status = os.waitpid(pid, 0)[1]
        return [os.WIFSIGNALED(status), os.WTERMSIG(status), os.WEXITSTATUS(status)]

    def do_broken_pipe(self, step):
        def work():
            path = os.path.join(self.root, "fifo")
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            writer = os.open(path, os.O_WRONLY)
            os.close(reader)
            if step["pick"] & 1:
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.write(writer, b"into nothing")

        return self.ended(work)

    def do_long_file(self, step):
        path = self.path(step["n"], step)

        def work():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL if step["pick"] & 1 else signal.SIG_IGN)
            fd = os.open(path, os.O_WRONLY)
            if os.pwrite(fd, self.data(step, 600), 800) != 200:
                return 100
            os.pwrite(fd, b"more", 1000)
            return 101

        return self.ended(work)


class Limits:
    def do_few_descriptors(self, step):
        """Opens and duplicates until there are no more numbers; then gives them back."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        flags = step["flags"] & ~self.left_out
        if "create-at-limit" in self.without:
            flags &= ~os.O_CREAT
        path, said, made = self.path(step["n"], step), [], []
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1 + step["pick"] % 3, before[1]))
        try:
            for turn in range(5):
                try:
                    fd = os.open(path, flags, step["mode"]) if turn % 2 == 0 else os.dup(self.fd(step))
                    said.append(fd)
                    made.append(fd)
                except OSError as error:
                    # Which of two errors comes first is another thing.
                    told = "create-at-limit" not in self.without
                    said.append(errno.errorcode[error.errno] if told else "none")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for fd in made:
                os.close(fd)
        return said


class Place:
    def do_cwd_name(self, step):
        return os.readlink("/proc/self/cwd")

    def do_by_cwd(self, step):
        return os.stat(os.path.join("/proc/self/cwd", step["n"]))

    def do_by_number(self, step):
        how = ["/proc/self/fd/%d", "/dev/fd/%d"][step["pick"] % 2]
        path = how % self.fd(step)
        with open(path, "rb") as file:
            return file.read(100)

    def do_gone_folder(self, step):
        """A working directory that somebody removes."""

        def where() -> list:
            said = []
            looks = [os.getcwd, lambda: os.open("x", os.O_CREAT), lambda: os.listdir(".")]
            for look in looks[: 2 if "list-gone" in self.without else 3]:
                try:
                    said.append(look())
                except OSError as error:
                    said.append(errno.errorcode[error.errno])
            return said

        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            path = os.path.join(self.root, f"gone{step['i']}")
            os.mkdir(path)
            os.chdir(path)
            os.rmdir(path)
            return where()
        finally:
            os.fchdir(here)
            os.close(here)
