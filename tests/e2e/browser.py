"""A headless Chromium that is asked over its DevTools protocol: open a page, look at it, take its
picture."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect
from websockets.sync.connection import Connection

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DEADLINE_S = 240
WIDTH, HEIGHT = 1440, 1000


class Browser:
    """One page of a running Chromium."""

    def __init__(self, socket: Connection) -> None:
        self._socket, self._numbers = socket, count(1)
        self.errors: list[str] = []
        """What the console said of the open page: errors, and exceptions that nothing caught."""
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, url: str, shows: str) -> None:
        """Go to a page and wait until the JavaScript expression `shows` is true there."""
        self._ask("Page.navigate", url="about:blank")
        self.errors.clear()
        self._ask("Page.navigate", url=url)
        self.wait_for(shows)

    def wait_for(self, shows: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + DEADLINE_S
        while not self.value(f"Boolean({shows})"):
            assert time.monotonic() < end, (
                f"waited {DEADLINE_S} s for {shows}; the page shows:\n{self.text()[:3000]}"
            )
            time.sleep(0.5)

    def text(self) -> str:
        """What a reader could read."""
        return self.value("document.body ? document.body.innerText : ''")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to; None where it fails."""
        return self._ask("Runtime.evaluate", expression=expression, returnByValue=True)[
            "result"
        ].get("value")

    def resize(self, width: int) -> None:
        """Make the page as wide as this, in CSS pixels."""
        metrics = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", **metrics)

    def point_at(self, element: str) -> None:
        """Move the pointer to the middle of the element that a JavaScript expression gives."""
        box = self.value(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"({element}.getBoundingClientRect())"
        )
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def picture(self, path: Path) -> bytes:
        """A PNG of what is in view."""
        data = base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(DEADLINE_S))).get("id") != number:
            self._hear(answer.get("method"), answer.get("params", {}))
        assert "error" not in answer, answer
        return answer["result"]

    def _hear(self, event: str | None, said: dict[str, Any]) -> None:
        """Keep an event if it is an error."""
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["exceptionDetails"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
            self.errors.append(json.dumps(said["args"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start a browser of its own, in `profile`, and end it with the block. WebGL is drawn by the
    processor."""
    assert CHROMIUM is not None
    options = [
        "--headless=new",
        "--no-first-run",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ]
    options += [
        "--enable-unsafe-swiftshader",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
    ]
    options += [f"--window-size={WIDTH},{HEIGHT}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [CHROMIUM, *options, "about:blank"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        with connect(
            _page_address(profile, process), max_size=None, open_timeout=DEADLINE_S
        ) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(30)


def _page_address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """The socket of the first page, once the browser has written down its port."""
    file, end = profile / "DevToolsActivePort", time.monotonic() + DEADLINE_S
    while not (file.is_file() and file.read_text()):
        assert process.poll() is None and time.monotonic() < end, "Chromium did not start"
        time.sleep(0.2)
    port = file.read_text().splitlines()[0]
    pages = httpx.get(f"http://127.0.0.1:{port}/json/list", timeout=DEADLINE_S).json()
    return next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
