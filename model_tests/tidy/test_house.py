"""The locks, the make targets, the wheel's metadata and the command line match the docs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from longpoll.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
TARGETS = {"setup", "run", "test", "test-peers", "nightly", "mutants", "bench", "docs", "check", "release", "help"}


def unpinned(lock: str) -> list[str]:
    """Requirements of a lock that lack an exact version or a hash, and lines that name an address."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + re.sub(r"(?m)^\s*#.*\n?", "", lock))
    bad = [e.split()[0] for e in entries if e.strip() and ("==" not in e.split("\\")[0] or "--hash=sha256:" not in e)]
    return bad + re.findall(r"https?://\S+|--(?:index-url|find-links)\S*", lock)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_pin_everything_and_name_no_address(lock: Path) -> None:
    """Every package of a lock has an exact version and a hash, and no line says where from."""
    assert unpinned(lock.read_text()) == []


@pytest.mark.parametrize(
    "planted",
    ["attrs>=24\n", "attrs==24.2.0\n", "--index-url https://example.org\n", "attrs @ https://example.org/a\n"],
)
def test_an_unpinned_lock_is_seen(planted: str) -> None:
    """A missing hash, a range or an address is found."""
    assert unpinned(LOCKS[0].read_text() + planted) != []


def test_make_help_lists_every_promised_target() -> None:
    """`make help` names each target of the contract."""
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert set(re.findall(r"make ([a-z-]+)", text)) >= TARGETS


def test_readme_gives_the_two_commands() -> None:
    """A reader of the README finds `make run` and `make test`."""
    text = (ROOT / "README.md").read_text()

    assert "make run" in text
    assert "make test" in text


def test_wheel_is_named_as_the_contents_check_expects() -> None:
    """The packages of the wheel are those that check-wheel-contents allows at top level."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        tool = tomllib.load(file)["tool"]
    packages = [Path(package).name for package in tool["hatch"]["build"]["targets"]["wheel"]["packages"]]

    assert packages == tool["check-wheel-contents"]["toplevel"]
    for package in tool["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").is_file()


def test_what_a_host_of_repositories_reads_is_true() -> None:
    """The version to cite is the project's, and the workflow and the hooks run what this tree has."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    run = {step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step}
    checked = (ROOT / "Makefile").read_text()

    assert cited["version"] == version
    image = ".venv/bin/python -m pytest -m long model_tests/door/test_release.py"
    assert run == {"make check", "make test", "make docs", ".ci/run", "make release", "make setup", image}
    assert (ROOT / image.rsplit(maxsplit=1)[-1]).is_file()
    assert (ROOT / ".ci" / "run").is_file()
    for hook in hooks["repos"][0]["hooks"]:
        assert hook["entry"].removeprefix(".venv/bin/").split()[0] in checked


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_examples(name: str) -> None:
    """`longpoll NAME --help` works and shows how to call it."""
    result = CliRunner().invoke(main, [name, "--help"])

    assert result.exit_code == 0, result.output
    assert "Example" in result.output


def test_an_unknown_command_is_one_clear_line() -> None:
    """A mistyped command exits 2 without a traceback."""
    done = subprocess.run(
        [Path(sys.executable).with_name("longpoll"), "chekc"], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 2
    assert "No such command 'chekc'; did you mean 'check'?" in done.stderr
    assert "Traceback" not in done.stderr


STRAY = re.compile(r"(?:^|/)(?:abort|lock|.*\.(?:orig|rej|bak|tmp|log|pyc))$")
"""What a broker, an editor or Python leaves behind."""
KNOWN_AT_TOP = {
    *(".ci", ".devcontainer", ".github", "docs", "model_tests", "packaging", "reference", "requirements", "spec"),
    *(".dockerignore", ".gitignore", ".importlinter", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff"),
    *(
        "CONTRIBUTING.md",
        "Dockerfile",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "pyproject.toml",
        "ruff.toml",
    ),
}


def strays(tracked: Sequence[str]) -> list[str]:
    """Tracked files that belong nowhere: an unknown name at the top, or a file that a program left behind."""
    return [path for path in tracked if path.split("/")[0] not in KNOWN_AT_TOP or STRAY.search(path)]


def test_no_stray_file_is_tracked() -> None:
    """Every file is below a known folder or has a known name."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert strays(done.stdout.splitlines()) == []


@pytest.mark.parametrize(
    "path", ["None/abort", "store/commitlog/0", "docs/page.md.orig", "reference/lock", "nohup.out"]
)
def test_a_stray_file_is_seen(path: str) -> None:
    """A broker's files, an editor's copy, an unknown name."""
    assert strays(["README.md", path]) == [path]
