"""Checks pages with axe-core for accessibility, and measures their time to interactive.

npm fetches axe-core as `axe/package-lock.json` pins it. Run as a program on a built site, this module prints how long
each page takes in Chromium until it is drawn and interactive, and compares that with a limit. Tests assert none of
these times. A second argument slows the processor by that factor and uses a phone's screen; Lighthouse uses 4:

    python -m model_tests.docs_site.axe_core build/site
    python -m model_tests.docs_site.axe_core build/site 4
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from model_tests.judge.browser import Browser, open_browser

PINNED: Final = Path(__file__).with_name("axe")
LIMIT_MS: Final = 1_000
RUN: Final = """
axe.run(document, { resultTypes: ["violations"], iframes: false }).then((found) => found.violations.flatMap(
  (each) => each.nodes.map((node) => `${each.id}: ${node.html.slice(0, 120)} (${node.target.join(" ")})`)))
"""
"""All default rules of axe-core; pages in frames are checked separately."""
INTERACTIVE: Final = """
new Promise((done) => {
  const answered = () => setTimeout(() => done(performance.now()));
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame(answered));
  if (document.readyState === "complete") drawn(); else addEventListener("load", drawn) })
"""
"""Milliseconds from the start of the navigation until the page is loaded, drawn and interactive."""


def fetched(directory: Path) -> str:
    """The script of axe-core; skips the test if npm is missing or cannot reach its registry."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NO AXE: install npm to check the site's pages with axe-core")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINNED / name, directory / name)
    words = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    ran = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"NO AXE: npm could not fetch axe-core: {ran.stderr[-300:]}")
    return (directory / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


def violations(browser: Browser, axe: str) -> list[str]:
    """axe-core's violations in the current page: rule, element and location."""
    browser.run(f"void ({{}}); {axe}; true")
    found: list[str] = browser.run(RUN)
    return found


def times(browser: Browser, site: Path, pages: Iterable[str], *, slower: int) -> Iterable[tuple[str, float]]:
    """(page, milliseconds until it is interactive). With `slower` above 1, a slower processor and a phone's screen."""
    if slower > 1:
        browser.call("Emulation.setCPUThrottlingRate", rate=slower)
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    for page in pages:
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=(site / page).as_uri())
        yield page, float(browser.run(INTERACTIVE))


def main() -> int:
    """Print the times of every page of a built site; returns 1 if one exceeds the limit."""
    if len(sys.argv) not in {2, 3} or not (site := Path(sys.argv[1])).is_dir():
        sys.stderr.write("name the folder of a built site: python -m model_tests.docs_site.axe_core build/site\n")
        return 2
    slower = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    with tempfile.TemporaryDirectory() as home, open_browser(Path(home)) as browser:
        found = sorted(times(browser, site.resolve(), pages, slower=slower), key=lambda each: -each[1])
    for page, took_ms in found:
        sys.stdout.write(f"{took_ms:8.0f} ms  {took_ms / LIMIT_MS:5.2f} of the limit  {page}\n")
    middle = found[len(found) // 2][1] if found else 0.0
    over = sum(took_ms > LIMIT_MS for _, took_ms in found)
    sys.stdout.write(f"{len(found)} pages, {middle:.0f} ms in the middle, {over} over {LIMIT_MS} ms\n")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
