"""Checks pages with axe-core for accessibility. npm fetches axe-core as `axe/package-lock.json` pins it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from model_tests.support.browser import Browser

PINNED: Final = Path(__file__).with_name("axe")
RUN: Final = """
axe.run(document, { resultTypes: ["violations"], iframes: false }).then((found) => found.violations.flatMap(
  (each) => each.nodes.map((node) => `${each.id}: ${node.html.slice(0, 120)} (${node.target.join(" ")})`)))
"""
"""Run all default rules of axe-core; pages in frames are checked separately."""


def fetched(directory: Path) -> str:
    """Return the script of axe-core; skips the test if npm is missing or cannot reach its registry."""
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
    browser.run(f"void ({{}}); {axe}; true")
    found: list[str] = browser.run(RUN)
    return found
