"""Run forwarded: calls that wait, and what ends them. Prints one line for each; all must say what
is expected."""

import fcntl
import os
import select
import signal
import socket
import sys
import threading
import time

ROOT = sys.argv[1]


class Hit(Exception):
    pass


def hit(*_):
    raise Hit


def interrupted(call) -> bool:
    signal.signal(signal.SIGALRM, hit)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        call()
    except Hit:
        return True
    return False


def echo() -> int:
    def serve():
        peer, _ = server.accept()
        while data := peer.recv(65536):
            peer.sendall(data)
        peer.close()

    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(5)
    thread = threading.Thread(target=serve)
    thread.start()
    client = socket.create_connection(server.getsockname())
    client.sendall(b"x" * 300000)
    got = 0
    while got < 300000:
        got += len(client.recv(65536))
    ready = select.select([client], [client], [], 0.1)
    print("select", ready[0] == [], ready[1] == [client], select.select([client], [], [], 0.05)[0] == [])
    client.settimeout(0.2)
    try:
        client.recv(1)
    except TimeoutError:
        print("timeout True")
    client.shutdown(socket.SHUT_WR)
    print("end", client.recv(1) == b"")
    thread.join()
    print("accept interrupted", interrupted(server.accept))
    return got


def child(body) -> int:
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    return pid


def fifo() -> None:
    path = ROOT + "/fifo"
    os.mkfifo(path)
    print("open interrupted", interrupted(lambda: open(path)))

    def write():
        os.write(os.open(path, os.O_WRONLY), b"through")

    pid = child(write)
    reader = os.open(path, os.O_RDONLY)
    print("fifo", os.read(reader, 100) == b"through", os.read(reader, 100) == b"")
    os.waitpid(pid, 0)


def locks() -> None:
    file = open(ROOT + "/lock", "w+")
    reader, writer = os.pipe()
    told, tell = os.pipe()

    def hold(seconds: float):
        def body():
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(writer, b"1")
            os.read(told, 1)
            time.sleep(seconds)

        return body

    pid = child(hold(0.3))
    os.read(reader, 1)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        print("conflict", error.errno in (11, 13))
    os.write(tell, b"1")
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("waited True")
    os.waitpid(pid, 0)

    other = open(ROOT + "/other", "w+")

    def cross():
        fcntl.lockf(other, fcntl.LOCK_EX)
        os.write(writer, b"1")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError as error:
            os._exit(error.errno)

    pid = child(cross)
    os.read(reader, 1)
    # Whoever waits second is told.
    found = 0
    try:
        fcntl.lockf(other, fcntl.LOCK_EX)
    except OSError as error:
        found = error.errno
    fcntl.lockf(file, fcntl.LOCK_UN)
    _, status = os.waitpid(pid, 0)
    print("deadlock", sorted([found, os.waitstatus_to_exitcode(status)]) == [0, 35])

    pid = child(hold(100))
    os.read(reader, 1)
    os.write(tell, b"1")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("released by death True")
    pid = child(hold(0))
    print("lock interrupted", interrupted(lambda: os.read(reader, 1)))
    os.kill(pid, signal.SIGKILL)


def pipe_signal() -> None:
    here, there = socket.socket(), socket.socket()
    here.bind(("127.0.0.1", 0))
    here.listen(1)
    there.connect(here.getsockname())
    here.accept()[0].close()
    try:
        for _ in range(1200):
            os.write(there.fileno(), b"x")
            time.sleep(0.05)
    except (BrokenPipeError, ConnectionResetError):
        print("broken pipe True")


print("echo", echo() == 300000)
fifo()
locks()
pipe_signal()
