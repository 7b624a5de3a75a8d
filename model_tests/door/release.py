"""Builds and checks the files of a release: `make release`. Publishing is manual (docs/releasing.md).

The sdist must build the same wheel as the tree, byte by byte. The wheel contains exactly the declared packages
(check-wheel-contents), installs into an empty environment and prints its version. A release also contains the client's
wheel (`packaging/client`) and the conformance vectors, which need no Python.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from longpoll_conform.export import files

ROOT: Final = Path(__file__).parents[2]
DIST: Final = "dist"
CLIENT: Final = ROOT / "packaging" / "client"
TIMEOUT_S: Final = 900


class ReleaseError(Exception):
    """A built file must not be released. The message gives the reason."""


def ran(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(kind: str, source: Path, target: Path) -> Path:
    """Return the file that `python -m build --wheel` or `--sdist` makes from a source tree."""
    # `--no-isolation` uses only the locked packages, because a build must download nothing.
    ran(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", target, source, cwd=source)
    name = tomllib.loads((source / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
    (made,) = target.glob(f"{name}-*" + (".whl" if kind == "wheel" else ".tar.gz"))
    return made


def unpacked(sdist: Path, target: Path) -> Path:
    with tarfile.open(sdist) as file:
        file.extractall(target, filter="data")
    (tree,) = target.iterdir()
    return tree


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of the files that differ between two wheels, or that only one of the wheels contains."""
    with zipfile.ZipFile(one) as left, zipfile.ZipFile(other) as right:
        names = {*left.namelist(), *right.namelist()}
        both = {*left.namelist()} & {*right.namelist()}
        return sorted(name for name in names if name not in both or left.read(name) != right.read(name))


def check_same(wheel: Path, sdist: Path, scratch: Path) -> None:
    """Check that the sdist builds this wheel; raises ReleaseError."""
    again = built("wheel", unpacked(sdist, scratch / "source"), scratch / "wheel")
    found = differences(wheel, again)
    if found or wheel.name != again.name:
        raise ReleaseError(f"{sdist.name} builds another wheel than the tree does: {', '.join(found) or again.name}")


def check_installs(wheel: Path, scratch: Path) -> str:
    """Return the output of `longpoll --version` with only the wheel installed; raises ReleaseError."""
    environment = scratch / "environment"
    venv.create(environment, with_pip=True)
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    ran(environment / "bin" / "python", *words, cwd=scratch)
    said = ran(environment / "bin" / "longpoll", "--version", cwd=scratch).strip()
    version = wheel.name.split("-")[1]
    if said != f"longpoll, version {version}":
        raise ReleaseError(f"the wheel of {version} says {said!r}")
    return said


def archive(version: str) -> tuple[str, bytes]:
    """Return the release archive's name and bytes, which are reproducible."""
    name = f"longpoll-vectors-{version}"
    whole = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=whole, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for file, text in files(version).items():
            content = text.encode()
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return f"{name}.tar.gz", whole.getvalue()


def release(root: Path, scratch: Path) -> Sequence[Path]:
    """Return the checked wheel and sdist of a tree, the client's wheel, and the vectors.

    Raises ReleaseError.
    """
    shutil.rmtree(root / DIST, ignore_errors=True)
    wheel, sdist = built("wheel", root, root / DIST), built("sdist", root, root / DIST)
    ran(Path(sys.executable).with_name("check-wheel-contents"), wheel, cwd=root)
    check_same(wheel, sdist, scratch)
    client = built("wheel", root / "packaging" / "client", root / DIST)
    name, content = archive(wheel.name.split("-")[1])
    (root / DIST / name).write_bytes(content)
    return wheel, sdist, client, root / DIST / name


def checklist(root: Path, version: str) -> list[str]:
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    entry = re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE) is not None
    citation = (root / "CITATION.cff").read_text("utf-8")
    cited = re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE) is not None
    client = tomllib.loads((root / "packaging" / "client" / "pyproject.toml").read_text())["project"]["version"]
    steps = (
        (
            client == version and cited,
            f"pyproject.toml, packaging/client/pyproject.toml and CITATION.cff say {version}",
        ),
        (entry, f"CHANGELOG.md has an entry '## {version}, YYYY-MM-DD'"),
        (True, "the sdist builds the wheel of the tree, and the wheel installs and reports its version"),
        (False, "make check, make test, make test-peers and make nightly MINUTES=240 pass"),
        (False, f"git tag -a v{version}, then push the tag: its workflow builds the files again and drafts a release"),
        (False, "upload the files to the package index, and publish the draft"),
    )
    return [f"[{'x' if done else ' '}] {step}" for done, step in steps]


def main() -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="longpoll-release-") as scratch:
            made = release(ROOT, Path(scratch))
            said = check_installs(made[0], Path(scratch))
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    files = ", ".join(str(path.relative_to(ROOT)) for path in made)
    print(f"{said}; built and checked: {files}", *checklist(ROOT, made[0].name.split("-")[1]), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
