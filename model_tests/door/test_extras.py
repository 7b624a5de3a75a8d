"""With only one extra installed, every command works or names the missing extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from longpoll.cli import COMMANDS
from longpoll.extras import COMMANDS as WITH_EXTRA
from longpoll.extras import PACKAGES, lacking, missing

ROOT = Path(__file__).parents[2]
BLOCK: Final = """
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {gone!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)


sys.meta_path.insert(0, Missing())
"""
IMPORTED: Final = {
    "z3-solver": "z3",
    "opentelemetry-api": "opentelemetry",
    "nats-py": "nats",
    "confluent-kafka": "confluent_kafka",
}
"""Distribution -> the package that it installs."""


LOST: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w"
"""A token of a run that loses a wakeup."""


def run(script: str, *words: str, without: set[str]) -> subprocess.CompletedProcess[str]:
    code = BLOCK.format(gone=without) + script
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=120
    )


def command(*words: str, without: set[str]) -> subprocess.CompletedProcess[str]:
    return run("from longpoll.entry import main\nmain()", *words, without=without)


def brought_by(*extras: str) -> set[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = [line for extra in extras for line in (project["optional-dependencies"][extra] if extra else ())]
    names = {re.match(r"[a-z0-9-]+", line)[0] for line in wanted}  # type: ignore[index]
    return {IMPORTED.get(name, name) for name in names} - {"longpoll"}


def test_the_extras_are_the_documented_ones() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        always = " ".join(tomllib.load(file)["project"]["dependencies"])
    for name, extra in PACKAGES.items():
        assert name.removeprefix("_") in brought_by(extra)
        assert name.removeprefix("_") not in always
    assert {name for extra in ("spec", "judge", "spark", "testing", "services") for name in brought_by(extra)} <= set(
        PACKAGES
    )


def test_a_missing_package_of_no_extra_is_a_fault() -> None:
    assert missing(ModuleNotFoundError("x", name="longpoll_broker.nothing")) is None
    assert missing(ImportError("x", name="numpy")) is None
    assert "longpoll[spec]" in str(missing(ModuleNotFoundError("x", name="numpy.linalg")))


def test_the_help_of_every_command_needs_no_extra() -> None:
    """Help exits with 0, and names the missing extra of the command."""
    script = "from longpoll.cli import main\nfor word in sys.argv[1:]:\n    try:\n        main([word, '--help'])\n"
    script += "    except SystemExit as end:\n        print('ended', word, int(end.code or 0))"
    done = run(script, *COMMANDS, without=set(PACKAGES))
    said = re.split(r"ended ([\w-]+) (\d)\n", done.stdout)

    assert dict(zip(said[1::3], said[2::3], strict=True)) == dict.fromkeys(COMMANDS, "0"), done.stderr
    told = {name for name, text in zip(said[1::3], said[::3], strict=False) if "pip install" in " ".join(text.split())}
    assert told == WITH_EXTRA.keys() & COMMANDS.keys()
    assert done.stderr == ""


def test_a_command_without_its_extra_fails_with_one_sentence(tmp_path: Path) -> None:
    for name in WITH_EXTRA.keys() & COMMANDS.keys() - {"verify"}:
        done = command(name, str(tmp_path), without=set(PACKAGES))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"pip install 'longpoll[{WITH_EXTRA[name]}]'" in done.stderr


def test_no_help_names_an_extra_that_is_installed() -> None:
    assert [name for name in COMMANDS if lacking(name)] == []


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["check", "--bounds", "tiny"], "spec"),
        (["prove"], "spec"),
        (["check", "--engine", "spark"], "spark"),
        (["check", "--ablate"], "spec"),
        (["explain", LOST, "--on", "code"], "simulation"),
    ],
    ids=" ".join,
)
def test_a_command_names_its_extra(words: list[str], extra: str) -> None:
    done = command(*words, without=set(PACKAGES))

    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"pip install 'longpoll[{extra}]'" in done.stderr


def test_kit_names_the_extra_of_a_service() -> None:
    """If only a service's client is missing, the error names the service's extra."""
    done = command("kit", "nats://127.0.0.1", without={"nats"})

    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "pip install 'longpoll[services]'" in done.stderr


def test_the_specification_is_explored_without_any_extra() -> None:
    words = ("check", "--policy", "rocketmq-4.9", "--bounds", "tiny", "--engine", "python")
    done = command(*words, "--property", "no_lost_wakeup", without=set(PACKAGES))
    token = re.search(r"lp1\.\S+", done.stdout)

    assert done.returncode == 1, done.stderr
    assert token is not None
    assert command("explain", token[0], without=set(PACKAGES)).returncode == 0


def test_a_broker_is_embedded_without_any_extra() -> None:
    script = """
import longpoll
with longpoll.Broker() as broker, longpoll.Producer(broker.name_server) as producer:
    print(producer.send("T", b"hello").queue_offset)
for ask in (longpoll.prove, lambda: longpoll.judge("/tmp"), lambda: longpoll.check(engine="packed")):
    try:
        ask()
    except longpoll.UserError as error:
        print(error)
"""
    done = run(script, without=set(PACKAGES))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "0"
    assert re.findall(r"longpoll\[(\w+)\]", done.stdout) == ["spec", "judge", "spec"]


def test_a_history_is_judged_without_spark_or_z3(tmp_path: Path) -> None:
    """The extra `judge` is enough for the local engine, which looks for no Java."""
    script = """
import longpoll
with longpoll.Broker(record=sys.argv[1]) as broker, longpoll.Producer(broker.name_server) as producer:
    producer.send("T", b"hello")
print(longpoll.judge(sys.argv[1]).verdict)
"""
    gone = set(PACKAGES) - brought_by("judge")
    done = run(script, str(tmp_path / "history"), without=gone)
    words = ("judge", str(tmp_path / "history"), "--engine", "local")
    judged = command(*words, without=gone)

    assert "z3" in gone
    assert done.stdout == "unknown\n", done.stderr
    assert judged.returncode == 3, judged.stderr
