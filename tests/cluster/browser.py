"""A real browser for tests: Debian's Chromium without a window, steered over a pipe by its own
DevTools protocol (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

# A browser on a loaded machine takes its time.
PATIENCE_S = 120
KEYS = {"Tab": 9, "Enter": 13, " ": 32}


class NotNow(AssertionError):
    """The browser could not do it: the page is being loaded, or the script failed."""


class Browser:
    """One browser with one page. ``flags``: more of Chromium's."""

    def __init__(self, folder: Path, *flags: str) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            pytest.skip("no chromium; it comes with Debian's package chromium")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        words = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-extensions", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--remote-debugging-pipe", f"--user-data-dir={folder}", *flags,
            "about:blank",
        ]  # fmt: skip
        # The browser reads orders from descriptor 3 and answers on descriptor 4.
        bridge = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._log = open(folder.with_suffix(".log"), "wb")
        self._process = subprocess.Popen(
            ["bash", "-c", bridge, "bash", *words],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=self._log, env=os.environ | {"HOME": str(folder)}, start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._heard = b""
        self._number = 0
        target = self._order("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._order("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.order("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._order("Browser.close")
            self._process.wait(30)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, 9)
            self._process.wait()
        for descriptor in (self._in, self._out):
            os.close(descriptor)
        self._log.close()

    def _order(self, method: str, session: str | None = None, **parameters: Any) -> dict:
        self._number += 1
        order = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            order["sessionId"] = session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self._message(deadline, method)
            if message.get("id") == self._number:
                if "error" in message:
                    raise NotNow(f"{method}: {message['error']}")
                return message["result"]

    def _message(self, deadline: float, why: str) -> dict:
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser does not answer {why} within {PATIENCE_S} s"
            more = os.read(self._in, 1 << 16)
            assert more, f"the browser ended at {why}; see {self._log.name}"
            self._heard += more
        message, _, self._heard = self._heard.partition(b"\0")
        return json.loads(message)

    def order(self, method: str, **parameters: Any) -> dict:
        """Has the page do something."""
        return self._order(method, self._session, **parameters)

    def go(self, url: str) -> None:
        """Begins to load a page; `wait_for` what it should show."""
        self.order("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """What an expression of JavaScript gives on the page, after its promise is kept."""
        done = self.order("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise NotNow(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of the first element that a CSS selector names; empty if there is none."""
        return self.value(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")

    def wait_for(self, script: str, seconds: float = PATIENCE_S) -> Any:
        """Returns what an expression gives once that is true. Until then it may fail, too: while a
        page is loaded, the old one is gone and the new one is not whole."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(NotNow):
                if value := self.value(script):
                    return value
            if time.monotonic() > deadline:
                page = self.value("document.body.innerText")
                raise AssertionError(f"waited {seconds} s for {script}; the page shows:\n{page}")
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Presses a key and lets it go."""
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        code = {"key": key, "code": {" ": "Space"}.get(key, key), "windowsVirtualKeyCode": KEYS[key]}
        self.order("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.order("Input.dispatchKeyEvent", type="keyUp", **code)
