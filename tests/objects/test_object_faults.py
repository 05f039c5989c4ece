"""A store that goes, comes back, or lies: never a wrong byte, and an error in time."""

import os
import signal
import subprocess
import threading
import time

import pytest
import zazen
from hostile import DATE, Hostile
from launching import wait_for

from conftest import daemon, location, read

pytestmark = pytest.mark.filterwarnings("ignore::zazen.ZazenWarning")

# More than two of the largest parts that are fetched at once.
DATA = (bytes(range(251)) * 40_000)[:9_000_000]
# Each call of the daemon to its store ends within 20 s; a busy machine needs longer for the rest.
BOUND_SECONDS = 400


@pytest.fixture
def hostile(helper, tmp_path):
    with Hostile({"p/run1/frame0": DATA, "p/run1/frame1": b"small"}) as server:
        with daemon(tmp_path, helper, f"s3://b/p?endpoint={server.endpoint}") as running:
            server.socket = running.socket
            server.log = running.log
            yield server


def attempt(server, seconds=BOUND_SECONDS, **options):
    """The frames, or the error. Fails if neither comes within the bound."""
    result = []

    def run():
        try:
            result.append(read("s3://b/p/run1", server.socket, **options))
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert result, "neither frames nor an error came within the bound"
    return result[0]


def is_right(answer):
    """Whether all bytes are right, if there are any."""
    return isinstance(answer, Exception) or answer == {0: DATA, 1: b"small"}


def check_lie(server, behave, may_succeed=False):
    """With this behaviour there is an error and no wrong byte; without it all is well again."""
    server.behave = behave
    answer = attempt(server)
    assert is_right(answer), "wrong bytes were handed out"
    assert may_succeed or isinstance(answer, Exception), "a lie was believed"
    server.behave = None
    # The daemon leaves a store alone for a while after it failed.
    wait_for(lambda: attempt(server) == {0: DATA, 1: b"small"}, "the store to be used again", 120)
    return answer


def is_read(request, key="p/run1/frame0"):
    return request.command == "GET" and request.key == key


def test_fewer_bytes_than_announced(hostile):
    def behave(request):
        if not is_read(request):
            return False
        request.send_response(206)
        request.send_header("ETag", '"a"')
        request.send_header("Last-Modified", DATE)
        first, last = request.headers["Range"].removeprefix("bytes=").split("-")
        end = min(int(last) + 1, len(DATA))
        request.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(DATA)}")
        request.send_header("Content-Length", str((end - int(first)) // 2))
        request.end_headers()
        request.wfile.write(b"?" * ((end - int(first)) // 2))
        return True

    check_lie(hostile, behave)


def test_more_bytes_than_asked_for(hostile):
    def behave(request):
        if not is_read(request):
            return False
        headers = {"ETag": '"a"', "Last-Modified": DATE, "Content-Range": f"bytes 0-99/{len(DATA)}"}
        request.give(206, b"?" * 20_000_000, headers)
        return True

    check_lie(hostile, behave)


def test_another_range_than_asked_for(hostile):
    def behave(request):
        if not is_read(request):
            return False
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        size = min(last + 1, len(DATA)) - first
        headers = {"ETag": '"a"', "Last-Modified": DATE}
        headers["Content-Range"] = f"bytes {first + 1}-{first + size}/{len(DATA) + 1}"
        request.give(206, b"?" * size, headers)
        return True

    check_lie(hostile, behave)


def test_the_whole_object_where_a_range_was_asked_for(hostile):
    def behave(request):
        if not is_read(request):
            return False
        request.give(200, b"?" * len(DATA), {"ETag": '"a"', "Last-Modified": DATE})
        return True

    check_lie(hostile, behave)


def test_another_version_in_the_middle_of_a_read(hostile):
    # The first read has the object's tag, and each later one another tag and other bytes.
    def behave(request):
        if not is_read(request) or request.headers["Range"].startswith("bytes=0-"):
            return False
        request.give_object(b"?" * len(DATA), tag="other")
        return True

    check_lie(hostile, behave)


def test_redirects_are_not_followed(hostile):
    with Hostile({"b/p/run1/frame0": b"?" * len(DATA), "p/run1/frame0": b"?" * len(DATA)}) as elsewhere:

        def behave(request):
            request.give(307, b"", {"Location": elsewhere.endpoint + request.path})
            return True

        check_lie(hostile, behave)
        assert not elsewhere.requests, "the redirect was followed"


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_storm_of_errors(hostile, status):
    def behave(request):
        request.give(status, b"busy", {})
        return True

    answer = check_lie(hostile, behave)
    assert isinstance(answer, (ConnectionError, TimeoutError)), repr(answer)


def test_some_errors_are_overcome(hostile):
    count = 0

    def behave(request):
        nonlocal count
        with hostile.lock:
            count += 1
            fails = count % 3 == 0
        if fails:
            request.give(503, b"slow down", {})
        return fails

    assert check_lie(hostile, behave, may_succeed=True) == {0: DATA, 1: b"small"}


def test_a_server_that_never_answers(hostile):
    end = threading.Event()

    def behave(request):
        end.wait(300)
        return False

    hostile.behave = behave
    begin = time.monotonic()
    answer = attempt(hostile)
    assert isinstance(answer, (ConnectionError, TimeoutError)), repr(answer)
    print(f"an error after {time.monotonic() - begin:.1f} s: {answer}")
    end.set()


def test_a_listing_without_an_end(hostile):
    def behave(request):
        if "list-type" not in request.query or request.query.get("max-keys") == "1":
            return False
        at = int(request.query.get("continuation-token", "0"))
        keys = [f"p/run1/frame{number}" for number in range(at, at + 1000)]
        request.give_list(keys, token=str(at if at == 3000 else at + 1000))
        return True

    check_lie(hostile, behave)


def test_an_answer_without_an_end(hostile):
    def behave(request):
        if "list-type" not in request.query:
            return False
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        piece = b"10000\r\n" + b"<" * 0x10000 + b"\r\n"
        try:
            for _ in range(2000):
                request.wfile.write(piece)
        except OSError:
            request.close_connection = True
        return True

    check_lie(hostile, behave)
    pids = subprocess.run(["pgrep", "-f", hostile.endpoint], capture_output=True, text=True).stdout.split()
    peaks = []
    for pid in pids:
        with open(f"/proc/{pid}/status") as status:
            text = status.read()
        if "zazen-objects" in text:
            peaks += [int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")]
    assert peaks and max(peaks) < 200_000, f"{peaks} KiB"


def test_huge_and_strange_names(hostile):
    hostile.objects |= {f"p/run1/{'n' * 900}": b"x", "p/run1/.zazen/x": b"x", "p/run1/y" + "é" * 200: b"x"}
    assert attempt(hostile) == {0: DATA, 1: b"small"}
    # A key that no path can name makes its folder an error: nobody knows what is not shown.
    hostile.objects["p/run1//x"] = b"x"
    answer = attempt(hostile)
    assert isinstance(answer, Exception) and "rename that object" in str(answer), repr(answer)


def test_answers_that_are_no_answers(hostile):
    def behave(request):
        if "list-type" in request.query:
            request.give(200, b"<html>hello</html>" + b"\0" * 1000, {})
        else:
            request.give(200, b"", {"Last-Modified": "never", "ETag": "\xff"})
        return True

    check_lie(hostile, behave)


def test_a_server_that_is_killed_costs_only_what_is_not_cached(own_store, helper, tmp_path):
    for number in range(6):
        own_store.put(f"p/run1/frame{number}.bin", b"%d" % number * 1000)
    path = f"s3://{own_store.bucket}/p/run1"
    with daemon(tmp_path, helper, location(own_store)) as running:
        with zazen.open(path, socket=str(running.socket)) as dataset:
            assert bytes(dataset[1].data) == b"1" * 1000 and bytes(dataset[4].data) == b"4" * 1000
            own_store.kill()
            assert bytes(dataset[1].data) == b"1" * 1000 and bytes(dataset[4].data) == b"4" * 1000
            begin = time.monotonic()
            with pytest.raises((ConnectionError, TimeoutError), match="s3://data/p"):
                dataset[2]
            print(f"a miss failed after {time.monotonic() - begin:.1f} s")
        own_store.start()
        for number in range(6):
            own_store.put(f"p/run1/frame{number}.bin", b"%d" % number * 1000)
        expected = {number: b"%d" % number * 1000 for number in range(6)}

        def is_back():
            try:
                return read(path, running.socket) == expected
            except (ConnectionError, TimeoutError):
                return False

        wait_for(is_back, "the store to be used again", 120)


def test_a_helper_that_is_killed_is_started_again(store, helper, tmp_path):
    store.put(f"{store.prefix}/run1/frame0.bin", b"zero")
    path = f"s3://{store.bucket}/{store.prefix}/run1"
    with daemon(tmp_path, helper, location(store)) as running:
        assert read(path, running.socket) == {0: b"zero"}
        told = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True)
        children = [int(pid) for pid in told.stdout.split()]
        assert len(children) == 1
        os.kill(children[0], signal.SIGKILL)
        store.put(f"{store.prefix}/run1/frame0.bin", b"one!")

        def is_back():
            try:
                return read(path, running.socket) == {0: b"one!"}
            except (ConnectionError, TimeoutError):
                return False

        wait_for(is_back, "the helper to be started again", 120)
    wait_for(lambda: not os.path.exists(f"/proc/{children[0]}"), "the helper to end")


def test_a_helper_ends_with_its_daemon(store, helper, tmp_path):
    store.put(f"{store.prefix}/run1/frame0.bin", b"zero")
    with daemon(tmp_path, helper, location(store)) as running:
        assert read(f"s3://{store.bucket}/{store.prefix}/run1", running.socket) == {0: b"zero"}
        told = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True)
        children = told.stdout.split()
        assert len(children) == 1
        running.kill()

    def is_gone():
        try:
            with open(f"/proc/{children[0]}/stat") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    wait_for(is_gone, "the helper to end")
