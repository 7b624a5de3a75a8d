"""Release files: sdist, wheel, image, and the client's own wheel."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.door.release import CLIENT, ROOT, ReleaseError, built, check_same, checklist, differences
from model_tests.door.test_wheel import size_mb

import longpoll
import longpoll_client


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def test_different_wheels_are_reported(tmp_path: Path) -> None:
    one = zipped(tmp_path / "one.whl", {"a": "1", "b": "2", "c": "3"})

    assert differences(one, zipped(tmp_path / "same.whl", {"c": "3", "a": "1", "b": "2"})) == []
    assert differences(one, zipped(tmp_path / "other.whl", {"a": "1", "b": "3", "d": "3"})) == ["b", "c", "d"]


def test_the_checklist_marks_what_the_tree_shows(tmp_path: Path) -> None:
    """The items that this tree fulfils are marked; an undated changelog and a citation of another version are not."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert [line[1] for line in checklist(ROOT, version)] == list("xxx   ")

    (tmp_path / "packaging" / "client").mkdir(parents=True)
    for name in ("CITATION.cff", "packaging/client/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"## {version}, not yet released\n")
    assert [line[1] for line in checklist(tmp_path, version)] == list("x x   ")
    assert [line[1] for line in checklist(tmp_path, "9.9.9")] == list("  x   ")


@pytest.mark.long
def test_the_sdist_builds_the_wheel_of_the_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "dist", "model_tests", "__pycache__"))
    sdist = built("sdist", tree, tmp_path / "sdist")
    check_same(built("wheel", tree, tmp_path / "whole"), sdist, tmp_path / "scratch")

    (tree / "reference" / "longpoll" / "planted.py").write_text('"""Only in the tree."""\n')
    with pytest.raises(ReleaseError, match=r"builds another wheel than the tree does: .*longpoll/planted\.py"):
        check_same(built("wheel", tree, tmp_path / "more"), sdist, tmp_path / "again")


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200)


@pytest.mark.long
def test_the_image_serves_and_is_healthy() -> None:
    """If Docker is available, the image is built and run; its health check passes, and its user is not root."""
    if shutil.which("docker") is None or docker("info").returncode:
        pytest.skip("no Docker answers here: the image is built by the workflow")
    name = "longpoll-test"
    assert docker("build", "--quiet", "--tag", name, ".").returncode == 0
    started = docker("run", "--detach", "--rm", name)
    assert started.returncode == 0, started.stderr
    container = started.stdout.strip()
    try:
        with subprocess.Popen(["docker", "logs", "--follow", container], stdout=subprocess.PIPE, text=True) as logs:
            assert logs.stdout is not None
            ready = next((line for line in logs.stdout if line.startswith("ready ")), "")
            logs.terminate()
        assert "broker=0.0.0.0:10911" in ready
        asked = json.loads(
            (ROOT / "Dockerfile").read_text().partition("HEALTHCHECK ")[2].partition(" CMD ")[2].split("\n")[0]
        )
        assert docker("exec", container, *asked).returncode == 0
        assert docker("exec", container, "id", "-u").stdout.strip() == "10911"
    finally:
        docker("stop", container)


IMPORT_NAMES: Final = {"attrs": {"attr", "attrs"}, "msgspec": {"msgspec"}, "opentelemetry-api": {"opentelemetry"}}
OPTIONAL: Final = {"opentelemetry-api"}
"""Dependencies of extras, which the client's modules may import too."""
SIZE_MAX_MB: Final = 4
"""Maximum installed size, half of which is Python's compiled files."""
TOLD: Final = """
import asyncio
import sys
from longpoll_client import AsyncProducer, AsyncPushConsumer, Producer, PullConsumer
with Producer(sys.argv[1]) as producer:
    sent = [producer.send("Alone", b"%d" % number).msg_id for number in range(20)]
with PullConsumer(sys.argv[1], group="alone", topics="Alone") as consumer:
    got = []
    while len(got) < 20:
        got += [message.msg_id for message in consumer.poll(timeout_s=30.0)]
assert sorted(got) == sorted(sent), (got, sent)


async def on_a_loop():
    heard, all_heard = [], asyncio.Event()

    async def listen(messages):
        heard.extend(message.msg_id for message in messages)
        if len(heard) >= 40:
            all_heard.set()

    consumer = AsyncPushConsumer(sys.argv[1], group="loop", topics="Alone", listener=listen)
    async with AsyncProducer(sys.argv[1]) as producer, consumer:
        more = await asyncio.gather(*(producer.send("Alone", b"%d" % number) for number in range(20)))
        await asyncio.wait_for(all_heard.wait(), 30.0)
    assert sorted(heard) == sorted([*sent, *(result.msg_id for result in more)]), heard


asyncio.run(on_a_loop())
print("alone")
"""


def declared() -> dict[str, Any]:
    return tomllib.loads((CLIENT / "pyproject.toml").read_text())


def held(project: dict[str, Any]) -> dict[Path, str]:
    modules = {}
    for source, target in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
        start = (CLIENT / source).resolve()
        for path in start.rglob("*.py") if start.is_dir() else [start]:
            modules[path] = str(Path(target) / path.relative_to(start))
    return modules


def imported(path: Path) -> set[str]:
    """Return the dotted names that a module imports, at its top or inside of functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text() if path.suffix == ".py" else "")):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def missing(modules: Iterable[Path], names: set[str], dependencies: set[str]) -> set[str]:
    """Return the imports of these modules that are in neither Python, nor the wheel, nor a dependency."""
    wanted = {name for path in modules for name in imported(path)}
    there = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names}
    known = sys.stdlib_module_names | set().union(*(IMPORT_NAMES[name] for name in dependencies))
    return {name for name in wanted if name not in there and name.partition(".")[0] not in known}


def test_the_wheel_contains_all_its_imports() -> None:
    project = declared()
    modules = held(project)
    dependencies = {each.partition(">")[0] for each in project["project"]["dependencies"]}

    assert len(modules) > 70
    assert dependencies == {"attrs", "msgspec"}
    assert missing(modules, {*modules.values()}, dependencies | OPTIONAL) == set()
    lacking = {*modules.values()} - {"longpoll_spec/tables.py"}
    assert missing(modules, lacking, dependencies | OPTIONAL) == {"longpoll_spec.tables"}
    assert missing(modules, {*modules.values()}, {"msgspec"} | OPTIONAL) == {"attrs"}


def test_the_client_has_the_same_version() -> None:
    whole, alone = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"], declared()["project"]

    assert alone["version"] == whole["version"] == longpoll.__version__ == longpoll_client.__version__
    assert {*alone["dependencies"]} <= {each.partition(";")[0].strip() for each in whole["dependencies"]}
    assert alone["requires-python"] == whole["requires-python"]
    extras = alone["optional-dependencies"]
    assert {name: whole["optional-dependencies"][name] for name in extras} == extras


@pytest.mark.long
@pytest.mark.xdist_group("wheel")
def test_the_client_works_if_nothing_else_is_installed(tmp_path: Path) -> None:
    """A new environment with only the wheel and its dependencies sends to and consumes from a broker elsewhere."""
    wheel = built("wheel", CLIENT, tmp_path / "wheel")
    venv.create(tmp_path / "environment", with_pip=True)
    python = tmp_path / "environment" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "--quiet", str(wheel)], capture_output=True, text=True, check=False, timeout=600
    )
    if "from versions: none" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [*pip, "list", "--format", "freeze"], capture_output=True, text=True, check=True, timeout=60
    )
    names = {line.partition("==")[0] for line in listed.stdout.splitlines()} - {"pip", "setuptools"}

    assert names == {"attrs", "msgspec", "longpoll-client"}
    assert size_mb(python) <= SIZE_MAX_MB
    with longpoll.Broker() as broker:
        said = subprocess.run(
            [python, "-I", "-c", TOLD, broker.name_server], cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
    assert (said.stdout, said.returncode) == ("alone\n", 0), said.stderr
