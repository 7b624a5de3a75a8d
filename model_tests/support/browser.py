"""A headless Chromium for tests, which is controlled over two pipes (DevTools protocol), so no port is opened."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pytest
from attrs import define, field

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
IN_TESTS: Final = 'exec "$@" 3<&"$ASKED" 4>&"$TOLD"'
"""A shell command whose process reads requests from file descriptor 3 and writes answers to 4, as Chromium does."""

SCREENS: Final = [(width, dark) for width in (1_400, 390) for dark in (False, True)]
WATCH_CANVAS: Final = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  window.written.push([text, x, x + this.measureText(text).width, this.canvas.clientWidth]);
  return write.call(this, text, x, y);
};
"""
"""A script that records each drawn text with its start and end, and the width of its canvas, in px."""
MEASURE: Final = r"""
(() => {
  const bad = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) bad.push(`the page is ${wide} px too wide`);
  for (const element of document.querySelectorAll("body *")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const name = element.tagName + " " + element.textContent.slice(0, 40);
    const scrolls = element.parentElement.closest(".scroller");
    if (!scrolls && (box.right > innerWidth + 1 || box.left < -1)) bad.push(`${name} lies outside`);
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const range = document.createRange();
    range.selectNodeContents(element);
    const text = range.getBoundingClientRect();
    const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size;
    if (["TD", "TH"].includes(element.tagName) && lines > element.textContent.trim().split(/\s+/).length) {
      bad.push(`${name} is broken within a word`);
    }
    for (let up = element; up !== document.body; up = up.parentElement) {
      const style = getComputedStyle(up), around = up.getBoundingClientRect();
      if (style.overflowX !== "visible" && text.right > around.right + 1) bad.push(`${name} is cut off at its right`);
      if (["hidden", "clip"].includes(style.overflowY) && text.bottom > around.bottom + 1) {
        bad.push(`${name} is cut off below`);
      }
    }
  }
  for (const [text, left, right, width] of window.written) {
    if (width && (left < 0 || right > width)) bad.push(`the drawn text ${text} is cut off`);
  }
  return bad;
})()
"""
"""A script that lists elements that are too wide, outside the page or truncated, and table cells with broken words."""


@define
class Browser:
    _asked: BinaryIO
    _told: BinaryIO
    _session: str = ""
    _number: int = 0
    addresses: list[str] = field(factory=list)
    """Every address that the page requested."""
    complaints: list[str] = field(factory=list)
    """The browser's messages about errors in the page's script and violations of the page's content security policy."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        question = {"id": self._number, "method": method, "params": parameters}
        question |= {"sessionId": self._session} if self._session else {}
        self._asked.write(msgspec.json.encode(question) + b"\0")
        self._asked.flush()
        while True:
            told = msgspec.json.decode(self._read())
            if told.get("id") == self._number:
                assert "error" not in told, f"{method}: {told['error']}"
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def _read(self) -> bytes:
        text = bytearray()
        while (letter := self._told.read(1)) != b"\0":
            assert letter, "the browser has ended"
            text += letter
        return bytes(text)

    def _note(self, told: dict[str, Any]) -> None:
        match told["method"]:
            case "Network.requestWillBeSent":
                self.addresses.append(told["params"]["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))
            case "Log.entryAdded":
                self.complaints.append(str(told["params"]["entry"]["text"]))

    def begin(self) -> None:
        """Open the page that all other calls use."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for name in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{name}.enable")

    def show(self, page: Path, *, width: int, dark: bool) -> None:
        """Load a page at this width, and wait until it is drawn."""
        height = 844 if width < 500 else 900
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.addresses.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.run(
            "new Promise(done => { const drawn = () => requestAnimationFrame(() => requestAnimationFrame(done));"
            " if (document.readyState === 'complete') drawn(); else addEventListener('load', drawn) })"
        )

    def run(self, script: str) -> Any:
        """Returns the value of an expression in the page, as soon as the page gives one."""
        told = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def holds(self, condition: str) -> bool:
        """Whether a condition holds in the current page; false while the page is being replaced."""
        try:
            return bool(self.run(condition))
        except AssertionError as error:
            if "navigated" in str(error) or "context" in str(error):
                return False
            raise

    def until(self, condition: str) -> None:
        """Wait until a condition holds in the current page, even if the page is replaced meanwhile."""
        while not self.holds(condition):
            pass  # If the page was replaced, the next page answers the request.

    def picture(self) -> bytes:
        """Returns the visible part of the page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@contextmanager
def open_browser(directory: Path) -> Iterator[Browser]:
    """Open a browser with a new profile in the directory; skips the test if no browser is installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("NO BROWSER: install Debian's chromium to have the page looked at")
    asked_here, asked = os.pipe()
    told, told_here = os.pipe()
    running = subprocess.Popen(
        ["bash", "-c", IN_TESTS, "bash", program, *FLAGS, f"--user-data-dir={directory / 'profile'}"],
        pass_fds=(asked_here, told_here),
        env={**os.environ, "ASKED": str(asked_here), "TOLD": str(told_here)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(asked_here)
    os.close(told_here)
    try:
        with os.fdopen(asked, "wb") as questions, os.fdopen(told, "rb") as answers:
            browser = Browser(questions, answers)
            browser.begin()
            yield browser
    finally:
        running.terminate()
        running.wait(timeout=30)
