"""A headless Chromium, driven over its DevTools protocol: pages are opened in it as a reader opens them.

Model: one browser per test module, a tab per page. Commands and events are JSON objects, each ended by a zero byte, on
two pipes (`--remote-debugging-pipe`). A tab keeps what went wrong in it (exceptions, errors and warnings on the
console) and what it asked the network for; whatever it asks of anything but files and its own text is refused. No test
without the browser is a pass where `SK_REQUIRE_CHROMIUM=1` is set.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import F_DUPFD, fcntl
from pathlib import Path
from typing import Any

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
needs_browser = pytest.mark.skipif(
    shutil.which(PROGRAM) is None and os.environ.get("SK_REQUIRE_CHROMIUM") != "1",
    reason=f"{PROGRAM} is not installed (SK_REQUIRE_CHROMIUM=1 makes this a failure)",
)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
COMMANDS_FD, ANSWERS_FD = 3, 4  # where the browser reads and writes
LOCAL = ("file:", "data:", "about:", "blob:")


@dataclass
class Tab:
    """An open page. `errors`: what its scripts and the console complained of; `requests`: all that it asked for."""

    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    loaded: bool = False

    @property
    def fetched(self) -> list[str]:
        """What it asked others for than this machine's files."""
        return [url for url in self.requests if not url.startswith(LOCAL)]

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol, and its answer."""
        return self.browser.send(method, self.session, **params)

    def open(self, url: str) -> None:
        """Go there, and wait until it is loaded."""
        self.loaded = False
        self.send("Page.navigate", url=url)
        while not self.loaded:
            self.browser.receive()

    def run(self, script: str) -> Any:
        """The value of a script in the page's own scope: of its last expression, awaited where it is a promise."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> Any:
        """The value of a script as soon as it is true, or an error."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.02)
        return found

    def key(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key and let it go."""
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page, all of it or what is seen first."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=whole, **(self._whole() if whole else {}))
        path.write_bytes(base64.b64decode(found["data"]))

    def _whole(self) -> dict[str, Any]:
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def happened(self, method: str, params: dict[str, Any]) -> None:
        """An event of this tab."""
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


class Browser:
    """The process, and the two pipes. Used as a context."""

    def __init__(self, folder: Path) -> None:
        self._tabs: dict[str, Tab] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._number, self._rest = 0, b""
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()

        def ends() -> None:  # in the child: by way of high numbers, for one of the ends may be 3 or 4 itself
            high = [fcntl(fd, F_DUPFD, 10) for fd in (commands, answers)]
            for fd, place in zip(high, (COMMANDS_FD, ANSWERS_FD), strict=True):
                os.dup2(fd, place)
                os.close(fd)

        words = [PROGRAM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        with (folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False, preexec_fn=ends
            )
        os.close(commands)
        os.close(answers)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.send("Browser.close")
        for fd in (self._to, self._from):
            os.close(fd)
        self._process.wait(60)

    @contextmanager
    def tab(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Tab]:
        """An empty page of a size in pixels, in the light or the dark theme."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        tab = Tab(self, self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        self._tabs[tab.session] = tab
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.send(f"{domain}.enable")
        tab.send("Network.setBlockedURLs", urls=["http://*", "https://*", "ws://*", "wss://*"])
        tab.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.send("Emulation.setEmulatedMedia", features=[theme])
        yield tab
        self.send("Target.closeTarget", targetId=target)

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """A command, and its answer; events that come before it go to their tabs."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        data = json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while self._number not in self._answers:
            self.receive()
        found = self._answers.pop(self._number)
        assert "error" not in found, (method, found["error"])
        result: dict[str, Any] = found["result"]
        return result

    def receive(self) -> None:
        """Take in what has come, at least one message."""
        while b"\0" not in self._rest:
            data = os.read(self._from, 1 << 20)
            assert data, "the browser is gone: see chromium.log"
            self._rest += data
        *whole, self._rest = self._rest.split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif tab := self._tabs.get(message.get("sessionId", "")):
                tab.happened(message["method"], message["params"])
