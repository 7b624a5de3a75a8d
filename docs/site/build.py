"""Runs Sphinx over the pages that `tree` has collected; a warning is an error."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from docs.site.accessible import mend
from docs.site.tree import ROOT, TreeError, assemble

SITE: Final = ROOT / "build" / "site"
SOURCE: Final = ROOT / "build" / "site-source"
OWN_PAGES: Final = frozenset({"explorer", "slides"})
"""Folders of pages that Sphinx does not generate."""
DATED: Final = "SOURCE_DATE_EPOCH"


def build(site: Path, source: Path) -> subprocess.CompletedProcess[str]:
    """Build the website; the result has the output of Sphinx. Raises TreeError."""
    if importlib.util.find_spec("sphinx") is None:
        raise TreeError("Sphinx is not installed: python -m pip install --require-hashes -r requirements/docs.lock")
    assemble(source)
    environment = os.environ | {DATED: os.environ.get(DATED) or _moment_of_commit()}
    words = ["-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-E", "-j", "2", str(source), str(site)]
    ran = subprocess.run(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if not ran.returncode:
        mend(site, OWN_PAGES)
    return ran


def _moment_of_commit() -> str:
    """Return the time of the current commit in seconds since 1970, or 1 January 1980 if git is not available."""
    ran = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "315532800"


def main(site: Path = SITE, source: Path = SOURCE) -> None:
    """Build the website, by default in `build/site`."""
    try:
        ran = build(site, source)
    except TreeError as error:
        sys.exit(f"docs: {error}")
    sys.stderr.write(ran.stdout)
    if ran.returncode:
        sys.exit("docs: Sphinx reported warnings: fix them, because each warning is an error")
    sys.stdout.write(f"{site / 'index.html'}\n")


if __name__ == "__main__":
    main()
