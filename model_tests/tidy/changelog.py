"""Makes `CHANGELOG.md` of the fragments in `changelog.d`: `make changelog`.

A fragment is `NAME.change.md` or `NAME.fix.md`; each of its lines is one entry. Those that lie in `changelog.d` itself
are not yet released; a release moves its own into a folder of the version's name, and they stay there. Leaves out the
version, which `pyproject.toml` has, and when it was released, which the tag tells.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MADE: Final = "<!-- Made of `changelog.d` by `make changelog`: add a fragment there, and change nothing here. -->"
KINDS: Final = {"change": "Changed", "fix": "Mended"}
"""The ending of a fragment's name -> the heading that its entries stand under."""
FRAGMENT: Final = re.compile(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md")
VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


class FragmentError(Exception):
    """Something in `changelog.d` is no fragment; the text says what."""


def entries(folder: Path) -> dict[str, list[str]]:
    """Kind -> the entries of the fragments that lie in a folder itself, in the order of their names."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.iterdir()):
        if path.is_dir() or path.name == "README.md":
            continue
        matched = FRAGMENT.fullmatch(path.name)
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        if matched is None or not lines:
            raise FragmentError(f"{path.name} is no NAME.change.md or NAME.fix.md with a line in it")
        for line in lines:
            if not line.endswith("."):
                raise FragmentError(f"{path.name}: no sentence ends in {line[-20:]!r}")
        found[matched[1]] += lines
    return found


def releases(folder: Path) -> list[Path]:
    """The folders of released versions, the newest first."""
    found = [path for path in folder.iterdir() if path.is_dir()]
    odd = [path.name for path in found if not VERSION.fullmatch(path.name)]
    if odd:
        raise FragmentError(f"{odd[0]} is no folder of a version, such as 0.1.0")
    return sorted(found, key=lambda path: tuple(map(int, path.name.split("."))), reverse=True)


def _section(heading: str, found: dict[str, list[str]]) -> Iterator[str]:
    yield f"## {heading}\n"
    for kind, title in KINDS.items():
        if found[kind]:
            yield f"### {title}\n"
            yield "\n".join(f"- {entry}" for entry in found[kind]) + "\n"


def changelog(folder: Path, version: str) -> str:
    """The whole file; `version` is that of the tree."""
    released = releases(folder)
    parts = ["# Changelog\n", f"{MADE}\n"]
    coming = entries(folder)
    if any(coming.values()):
        is_next = all(path.name != version for path in released)
        parts += _section(f"{version}, not yet released" if is_next else "Not yet released", coming)
    for path in released:
        parts += _section(path.name, entries(path))
    return "\n".join(parts)


def version_of(root: Path) -> str:
    """The version of a tree."""
    with (root / "pyproject.toml").open("rb") as file:
        version: str = tomllib.load(file)["project"]["version"]
    return version


def main() -> None:
    """Write the file."""
    try:
        text = changelog(ROOT / "changelog.d", version_of(ROOT))
    except FragmentError as error:
        sys.exit(f"changelog: {error}")
    (ROOT / "CHANGELOG.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
