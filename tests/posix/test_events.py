"""epoll of sockets on the far side, beside the kernel's own descriptors."""

import subprocess

import pytest
from harness import PREFIX, python

WATCHED = """
import errno, os, select, socket, sys
ET, ONE = select.EPOLLET, select.EPOLLONESHOT
IN, OUT, HUP, RDHUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP, select.EPOLLRDHUP
names = {}

def ready(seconds=60, most=-1):
    return sorted((names[fd], bits) for fd, bits in poll.poll(seconds, most))

def fails(call, *words):
    try:
        call(*words)
        return "works"
    except OSError as error:
        return errno.errorcode[error.errno]

poll = select.epoll()
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(8)
names[server.fileno()] = "server"
poll.register(server, IN)
print(fails(poll.register, server, IN), ready(0))
reader, writer = os.pipe()
names[reader] = "pipe"
poll.register(reader, IN)
client = socket.create_connection(server.getsockname())
names[client.fileno()] = "client"
print(ready())
os.write(writer, b"x")
while len(ready()) < 2:
    pass
print(ready(), len(ready(60, 1)))
one, _ = server.accept()
names[one.fileno()] = "one"
os.read(reader, 1)
print(ready(0))
# An edge is told once: there is room to write, until there is none.
poll.register(client, IN | OUT | ET | RDHUP)
print(ready(), ready(0))
client.setblocking(False)
sent = 0
while True:
    try:
        sent += client.send(b"y" * 65536)
    except BlockingIOError:
        break
got = 0
while got < sent:
    got += len(one.recv(1 << 20))
print(got == sent, ready())
# Told once, whatever comes, until it is asked for again.
poll.register(one, IN | ONE)
client.send(b"hello")
print(ready(), ready(0))
poll.modify(one, IN | ONE)
print(ready(), one.recv(10))
# Another thread adds what is waited for.
import threading
two = socket.create_connection(server.getsockname())
three, _ = server.accept()
names[three.fileno()] = "three"
two.send(b"z")
later = threading.Timer(0.2, lambda: poll.register(three, IN))
later.start()
print(ready())
later.join()
poll.unregister(three)
print(fails(poll.unregister, three), fails(poll.modify, three, IN), ready(0))
# The other end goes.
one.close()
while not (bits := dict(ready()).get("client", 0)) & RDHUP:
    pass
print(bool(bits & IN))
client.close()
print(ready(0))
file = open(sys.argv[1] + "/file", "w")
print(fails(poll.register, file, OUT))
poll.close()
"""

LOOP = """
import asyncio, hashlib

async def serve(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data.upper())
        await writer.drain()
    writer.close()

async def ask(port, number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = (b"%d words " % number) * 20000
    async def send():
        writer.write(text)
        await writer.drain()
        writer.write_eof()
    _, got = await asyncio.gather(send(), reader.read(-1))
    writer.close()
    return got == text.upper()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(await asyncio.gather(*(ask(port, number) for number in range(12))))
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    print((await process.communicate())[0])

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["relay", "direct", "node"])
@pytest.mark.parametrize("program", [WATCHED, LOOP], ids=["epoll", "asyncio"])
def test_events_of_far_sockets(request, mode, program):
    daemon = request.getfixturevalue("node" if mode == "node" else "daemon")
    daemon.empty()
    words = [python(), "-c", program]
    direct = subprocess.run([*words, daemon.direct], capture_output=True, text=True, timeout=120)
    assert direct.returncode == 0, direct.stderr
    options = ["--sockets", *(["--direct"] if mode == "direct" else [])]
    there = daemon.run(*words, PREFIX, options=options)
    assert (there.stdout, there.returncode) == (direct.stdout, 0), there.stderr
