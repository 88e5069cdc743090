"""Headless Chromium, driven over the DevTools protocol, for tests of HTML pages."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-port=0", "--remote-allow-origins=*", "--force-device-scale-factor=1", "--hide-scrollbars",
)  # fmt: skip
_KEYS: Final = {
    "ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Home": 36, "End": 35, "Tab": 9,
    "Escape": 27, "Backspace": 8,
}  # fmt: skip
_PATIENCE: Final = 30.0  # seconds; pages answer within a fraction of one


class Page:
    """Page in the browser. Keeps its log messages and network requests.

    Args:
        url: DevTools URL of the page.
    """

    def __init__(self, url: str) -> None:
        import websocket

        self._socket = websocket.create_connection(url, timeout=_PATIENCE, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._loaded = 0
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a DevTools command and return its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", params)))
        elif (method == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error")) or (
            method == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error", "assert")
        ):
            self.problems.append(json.dumps(params))

    def open(self, path: Path, view: str = "", *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Open a file at `#view` and wait until its scripts have drawn it."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")
        self.requests.clear()
        self.send("Page.navigate", url=path.as_uri() + (f"#{view}" if view else ""))
        self.wait("location.protocol === 'file:' && document.querySelector('main h1, main [role=alert]') !== null")
        return self

    def go(self, view: str) -> Page:
        """Show another view of the page."""
        self.run(f"location.hash = {json.dumps('#' + view)}")
        self.wait(f"document.querySelector('main').dataset.view === {json.dumps(view.partition('/')[0])}")
        return self

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, after awaiting a promise."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true. The page evaluates it in every frame."""
        script = f"""new Promise(done => {{
            const until = performance.now() + {1000 * _PATIENCE / 2};
            const look = () => {{
                let found = false;
                try {{ found = Boolean({condition}); }} catch (error) {{ found = false; }}
                if (found || performance.now() > until) done(found); else setTimeout(look, 10);
            }};
            look();
        }})"""
        for _ in range(3):  # a page that is being replaced does not answer
            found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
            if "exceptionDetails" not in found:
                break
        assert found["result"].get("value"), f"still false: {condition}; problems: {self.problems}"

    def text(self, selector: str) -> str:
        """Return the text of the first element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements."""
        found = self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.innerText)")
        return [str(one) for one in found]

    def click(self, selector: str) -> None:
        """Click the middle of the first element with mouse events."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll to the first element and return the position of its middle."""
        box = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center'});"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return box[0], box[1]

    def press(self, *keys: str) -> None:
        """Press keys in order."""
        for key in keys:
            code = _KEYS.get(key) or (ord(key.upper()) if key.isalnum() else 0)
            text = {} if key in _KEYS else {"text": key}
            for kind in ("keyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def type(self, text: str) -> None:
        """Type a text at the cursor."""
        self.send("Input.insertText", text=text)

    def wheel(self, x: float, y: float, down: float, right: float = 0) -> None:
        """Turn the mouse wheel at a position."""
        self.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=right, deltaY=down)

    def drag(self, x: float, y: float, to: float, *, shift: bool = False) -> None:
        """Drag horizontally from a position."""
        kinds = [("mousePressed", x), ("mouseMoved", (x + to) / 2), ("mouseMoved", to), ("mouseReleased", to)]
        for kind, at in kinds:
            held = {"button": "left", "buttons": 1, "clickCount": 1, "modifiers": 8 * shift}
            self.send("Input.dispatchMouseEvent", type=kind, x=at, y=y, **held)

    def hover(self, x: float, y: float) -> None:
        """Move the mouse to a position, and wait until the page knows: it learns of moves once per frame."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def picture(self, path: Path, *, full: bool = False) -> Path:
        """Write the visible part, or the whole page, as a PNG file."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def close(self) -> None:
        """Close the browser."""
        self._socket.send(json.dumps({"id": next(self._numbers), "method": "Browser.close"}))
        self._socket.close()


@contextmanager
def browser() -> Iterator[Page]:
    """Yield a page of a new browser. Skip the test if Chromium is not installed."""
    pytest.importorskip("websocket", reason="needs websocket-client to drive Chromium")
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs Chromium to look at pages: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [program, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            page = Page(_page_url(process))
            yield page
            page.close()
        finally:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stderr is not None
            process.stderr.close()


def _page_url(process: subprocess.Popen[str]) -> str:
    """Return the DevTools URL of the first page. Chromium prints its port on stderr when it is ready."""
    import urllib.request

    assert process.stderr is not None
    output = []
    for line in process.stderr:
        output.append(line)
        if match := re.search(r"DevTools listening on ws://([^/]+)/", line):
            with urllib.request.urlopen(f"http://{match[1]}/json/list", timeout=_PATIENCE) as answer:
                pages = json.load(answer)
            return next(str(page["webSocketDebuggerUrl"]) for page in pages if page["type"] == "page")
    pytest.skip(f"Chromium does not start here: {''.join(output)[-500:]}")
