"""Mutants of the code, by cosmic-ray: `make mutants [MODULE=GLOB]` prints the mutants that no test kills.

Each module is mutated in a copy of the tree. Its mutants are tested by the test files that import the module or, if no
test file imports it, any module of its package. Several modules are tested in parallel.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from os import cpu_count, environ, pathsep
from pathlib import Path
from typing import Final

import click
from attrs import asdict, astuple, frozen
from model_tests.mutants.patches import ROOT, copy_tree

from longpoll.output import Exit, emit_json, err, fail, json_option, out, table, user_mistakes
from longpoll_spec.errors import UserError

TOOL: Final = Path(sys.executable).with_name("cosmic-ray")
FOLDERS: Final = ("spec", "reference")
LIMIT_S: Final = 120.0
"""Time limit for the tests of one mutant, in seconds; a mutant that exceeds it counts as killed."""
CONFIG: Final = """
[cosmic-ray]
module-path = {module}
timeout = {limit_s}
excluded-modules = []
test-command = {command}
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = ["core/ReplaceBinaryOperator_BitOr_.*", "core/RemoveDecorator"]
"""
"""The configuration of cosmic-ray. Mutations of `|` are left out, because `|` is nearly always part of a type."""


@frozen
class Survivor:
    module: str
    line: int
    operator: str


def modules() -> dict[str, Path]:
    paths = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {".".join(path.with_suffix("").parts[1:]): path for path in paths if path.stem != "__init__"}


def tests_of(module: str) -> list[str]:
    """Return the test files that import a module, or if there are none, those that import any module of its package."""
    package, _, name = module.rpartition(".")
    exact = rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
    texts = {path: path.read_text("utf-8") for path in sorted((ROOT / "model_tests").rglob("test_*.py"))}
    for pattern in (exact, rf"\b{re.escape(package)}\b", rf"\b{package.partition('.')[0]}\b"):
        found = [str(path.relative_to(ROOT)) for path, text in texts.items() if re.search(pattern, text)]
        if found:
            return found
    return []


def changed_since(base: str) -> set[Path]:
    words = ["git", "diff", "--name-only", "--relative", base, "--", *FOLDERS]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git cannot compare with {base!r}: name a revision with BASE=, or a module with MODULE=")
    return {Path(line) for line in done.stdout.splitlines()}


def tried(module: str, tests: Sequence[str]) -> tuple[int, list[Survivor]]:
    """Return the number of a module's mutants, and those that survive the tests.

    Raises UserError if the tests fail without a mutant.
    """
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory, "tree")
        copy_tree(tree)
        paths = pathsep.join(str(tree / each) for each in ("", *FOLDERS))
        environment = {**environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        run = partial(subprocess.run, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        if run(pytest).returncode:
            raise UserError(f"the tests of {module} fail without a mutant: {shlex.join(tests)}")
        config, session = Path(directory, "config.toml"), Path(directory, "session.sqlite")
        named, command = json.dumps([str(modules()[module])]), json.dumps(shlex.join(pytest))
        config.write_text(CONFIG.format(module=named, limit_s=LIMIT_S, command=command))
        for words in (
            [TOOL, "init", config, session],
            [TOOL.with_name("cr-filter-operators"), session, config],
            [TOOL, "exec", config, session],
        ):
            run(words, check=True)
        rows = [json.loads(line) for line in run([TOOL, "dump", session], check=True).stdout.splitlines()]
    done = [(item, result) for item, result in rows if result and result["worker_outcome"] == "normal"]
    survivors = [
        Survivor(module, item["mutations"][0]["start_pos"][0], item["mutations"][0]["operator_name"])
        for item, result in done
        if result["test_outcome"] == "survived"
    ]
    return len(done), sorted(survivors, key=lambda each: each.line)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--module", "glob", default="*", metavar="GLOB", help="Only modules whose dotted name this matches.")
@click.option("--changed-since", "base", metavar="REVISION", help="Only modules that differ from this git revision.")
@json_option
@user_mistakes
def main(*, glob: str, base: str | None, as_json: bool) -> None:
    """Mutate modules of the project, and report the mutants that no test kills.

    Exit codes: 0 every mutant is killed, 1 one survives, 2 a mistake in the call, 3 there was nothing to try.
    """
    if not shutil.which(TOOL):
        fail("cosmic-ray is not installed: python -m pip install --require-hashes -r requirements/mutants.lock")
    changed = None if base is None else changed_since(base)
    names = [
        name for name, path in modules().items() if fnmatchcase(name, glob) and (changed is None or path in changed)
    ]
    if not names:
        err.tell(f"no module that is called {glob!r} and differs from {base}; use MODULE= or BASE=")
        sys.exit(Exit.UNKNOWN)
    with ThreadPoolExecutor(cpu_count()) as pool:
        results = list(pool.map(lambda name: tried(name, tests_of(name)), names))
    survivors = [each for _count, alive in results for each in alive]
    if as_json:
        emit_json({"mutants": sum(count for count, _ in results), "survivors": [asdict(each) for each in survivors]})
    else:
        table("Mutants that no test kills", ("module", "line", "operator"), map(astuple, survivors), right=("line",))
        out.tell(f"{len(survivors)} of {sum(count for count, _ in results)} mutants survive")
    sys.exit(Exit.VIOLATED if survivors else Exit.OK)


if __name__ == "__main__":
    main()
