"""The locks, the make targets, the wheel's metadata and the command line match the docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from longpoll.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
TARGETS = {"setup", "run", "test", "test-peers", "nightly", "mutants", "bench", "docs", "check", "release", "help"}


def unpinned(lock: str) -> list[str]:
    """Return the requirements of a lock file that lack an exact version or a hash, and its lines with an address."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + re.sub(r"(?m)^\s*#.*\n?", "", lock))
    bad = [e.split()[0] for e in entries if e.strip() and ("==" not in e.split("\\")[0] or "--hash=sha256:" not in e)]
    return bad + re.findall(r"https?://\S+|--(?:index-url|find-links)\S*", lock)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_pin_everything_and_name_no_address(lock: Path) -> None:
    assert unpinned(lock.read_text()) == []


@pytest.mark.parametrize(
    "planted",
    ["attrs>=24\n", "attrs==24.2.0\n", "--index-url https://example.org\n", "attrs @ https://example.org/a\n"],
)
def test_an_unpinned_lock_is_reported(planted: str) -> None:
    assert unpinned(LOCKS[0].read_text() + planted) != []


def test_make_help_lists_every_promised_target() -> None:
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert set(re.findall(r"make ([a-z-]+)", text)) >= TARGETS


def test_readme_gives_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()

    assert "make run" in text
    assert "make test" in text


def test_wheel_is_named_as_the_contents_check_expects() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        tool = tomllib.load(file)["tool"]
    packages = [Path(package).name for package in tool["hatch"]["build"]["targets"]["wheel"]["packages"]]

    assert packages == tool["check-wheel-contents"]["toplevel"]
    for package in tool["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").is_file()


def test_the_citation_workflow_and_hooks_match_the_tree() -> None:
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


GITHUB = ROOT / ".github"


def unknown_references(workflow: dict[str, Any]) -> list[str]:
    jobs, targets = workflow["jobs"], re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    steps = [step for job in jobs.values() for step in job["steps"]]
    needed = set(re.findall(r"\w+", str([job.get("needs", "") for job in jobs.values()])))
    made = {word for step in steps for word in re.findall(r"^make ([a-z-]+)", step.get("run", ""))}
    found = [*sorted(needed - set(jobs)), *sorted(made - set(targets))]
    for step in steps:
        if step.get("uses", "").startswith("./"):
            file = ROOT / step["uses"] / "action.yml"
            inputs = yaml.safe_load(file.read_text())["inputs"] if file.is_file() else {}
            found += [each for each in step["with"] if each not in inputs]
    return found


def test_the_workflows_name_only_existing_things() -> None:
    for path in sorted((GITHUB / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text())
        versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
        assert unknown_references(workflow) == [], path.name
        assert versions == ["3.11", "3.12", "3.13", "3.14"]
        workflow["jobs"]["test"] |= {"needs": "nothing", "steps": [{"run": "make tea"}]}
        workflow["jobs"]["test"]["steps"] += [{"uses": "./.github/actions/conform", "with": {"brokr": "HOST:PORT"}}]
        assert unknown_references(workflow) == ["nothing", "tea", "brokr"]


def test_the_action_calls_conform_with_its_inputs(tmp_path: Path) -> None:
    action = yaml.safe_load((GITHUB / "actions" / "conform" / "action.yml").read_text())
    script = action["runs"]["steps"][-1]
    program = tmp_path / "longpoll" / "bin" / "longpoll"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)

    def called(**inputs: str) -> list[str]:
        own = {"RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output")}
        environment = os.environ | dict.fromkeys(script["env"], "") | own | inputs
        words = ["bash", "-eo", "pipefail", "-c", script["run"]]
        return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()

    every = called(BROKER="h:1", NAME_SERVER="h:2", POLICY="strict", KNOWN="a file", ONLY="PULL-*", JUNIT="c.xml")
    conform = main.get_command(click.Context(main), "conform")
    options = {option for each in conform.params for option in each.opts} if conform else set()
    assert every[0] == "conform"
    assert set(every[1::2]) == {f"--{name}" for name in action["inputs"] if name != "python"} <= options
    assert every[-5:] == ["strict", "--known", "a file", "--only", "PULL-*"]
    assert called(BROKER="h:1", JUNIT="c.xml") == ["conform", "--broker", "h:1", "--junit", "c.xml"]
    assert (tmp_path / "output").read_text() == "report=c.xml\n" * 2


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_examples(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])

    assert result.exit_code == 0, result.output
    assert "Example" in result.output


def test_an_unknown_command_is_one_clear_line() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("longpoll"), "chekc"], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 2
    assert "No such command 'chekc'; did you mean 'check'?" in done.stderr
    assert "Traceback" not in done.stderr


STRAY = re.compile(r"(?:^|/)(?:abort|lock|.*\.(?:orig|rej|bak|tmp|log|pyc))$")
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
    """Return tracked files with an unknown name at the top, and files that a program left behind."""
    return [path for path in tracked if path.split("/")[0] not in KNOWN_AT_TOP or STRAY.search(path)]


def test_no_stray_file_is_tracked() -> None:
    """Every file is below a known folder or has a known name."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert strays(done.stdout.splitlines()) == []


@pytest.mark.parametrize(
    "path", ["None/abort", "store/commitlog/0", "docs/page.md.orig", "reference/lock", "nohup.out"]
)
def test_a_stray_file_is_reported(path: str) -> None:
    assert strays(["README.md", path]) == [path]
