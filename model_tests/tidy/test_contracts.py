"""Each import contract holds, and each fails on an injected forbidden import."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

PLANTS = {
    "the house: broker, judge and proxy never meet, and all of them stand on the spec": (
        "reference/longpoll_judge/errors.py",
        "import longpoll_broker.errors",
    ),
    "simulation: a world that knows no broker, and the hold service's run in it": (
        "reference/longpoll_simulation/world.py",
        "import longpoll_simulation.sync",
    ),
    "the judge reads histories alone": ("reference/longpoll_judge/errors.py", "import longpoll_recorder.recorder"),
    "the broker serves clients and is none": (
        "reference/longpoll_broker/rocketmq/__init__.py",
        "import longpoll_client.errors",
    ),
    "a served broker needs neither client nor judge": (
        "reference/longpoll/options/server.py",
        "import longpoll_client.errors",
    ),
    "spec: engines give meaning to text, text to terms": (
        "spec/longpoll_spec/terms.py",
        "import longpoll_spec.state",
    ),
    "java: rules below, moves of a run above them, a broker that is made to follow at the top": (
        "reference/longpoll_java/byteman_rules.py",
        "import longpoll_java.schedule",
    ),
    "engines: one folder a meaning, and none knows those who ask several": (
        "spec/longpoll_spec/engines/simplify.py",
        "import longpoll_spec.engines.packed.words",
    ),
    "spec text is pure": ("spec/longpoll_spec/properties/__init__.py", "import time"),
    "broker: what holds pulls knows no parity and no speed": (
        "reference/longpoll_broker/hold/pull.py",
        "import longpoll_broker.rocketmq.admin",
    ),
    "protocol: a frame knows no message, a header no body": (
        "reference/longpoll_protocol/headers.py",
        "import longpoll_protocol.frames",
    ),
    "client: sending and sharing queues stand on one connection": (
        "reference/longpoll_client/remoting.py",
        "import longpoll_client.admin",
    ),
    "consume: a consumer stands on a member, and a member on its parts": (
        "reference/longpoll_client/consume/group_member.py",
        "import longpoll_client.consume.broker_requests",
    ),
    "proxy: the loop moves bytes and reads none": (
        "reference/longpoll_observe/relay_loop.py",
        "import longpoll_observe.events\nimport longpoll_observe.tap",
    ),
    "conform: what is held against a broker shares nothing with ours but a thread's start": (
        "reference/longpoll_conform/wire.py",
        "import longpoll_protocol.codes",
    ),
    "conform: bytes below, what came of a run above": (
        "reference/longpoll_conform/compare.py",
        "import longpoll_conform.suite",
    ),
    "kit: a program's lines below, one schedule above, every schedule at the top": (
        "reference/longpoll_kit/programs/schedule.py",
        "import longpoll_kit.programs.explore",
    ),
    "kit: rules choose, an example does, the model judges": (
        "reference/longpoll_kit/model.py",
        "import longpoll_kit.polls",
    ),
    "the kit assumes no wire, and its threads and clock are the runtime's": (
        "reference/longpoll_kit/polls.py",
        "import longpoll_protocol.codes",
    ),
    "judge: what is read, what is right, how it is run, what is shown": (
        "reference/longpoll_judge/read/source.py",
        "import longpoll_judge.evidence.survey",
    ),
    "kernel: each rule stands beside the others, on one window's case": (
        "reference/longpoll_judge/kernel/ends.py",
        "import longpoll_judge.kernel.sends",
    ),
    "runs: on either engine, at once or while a history grows": (
        "reference/longpoll_judge/run/local.py",
        "import longpoll_judge.run.spark",
    ),
    "hold: threads outside, decisions inside": (
        "reference/longpoll_broker/hold/notifier.py",
        "import longpoll_broker.hold.pull_processor",
    ),
    "store: bytes below, one store above": (
        "reference/longpoll_broker/store/segment.py",
        "import longpoll_broker.store.commit_log",
    ),
    "rocketmq: an account knows no other service": (
        "reference/longpoll_broker/rocketmq/accounts/__init__.py",
        "import longpoll_broker.rocketmq.admin",
    ),
    "who reads the plain code meets none that is only quick": (
        "reference/longpoll_broker/rocketmq/__init__.py",
        "import longpoll_protocol.fast",
    ),
    "protocol, tables and decisions are sans-IO": ("reference/longpoll_protocol/__init__.py", "import socket"),
    "only the runtime touches threads, clock, sockets and files": (
        "reference/longpoll_broker/rocketmq/__init__.py",
        "import threading",
    ),
    "what runs sees only the history schema and the policies of the spec": (
        "reference/longpoll_broker/rocketmq/__init__.py",
        "import longpoll_spec.state",
    ),
    "no package that is shipped imports the tests": (
        "reference/longpoll/embedded.py",
        "import model_tests.support.examples",
    ),
    "nobody imports the command line": ("reference/longpoll_judge/errors.py", "import longpoll.output"),
}


def contract_names() -> list[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    return [config[section]["name"] for section in config.sections() if section.startswith("importlinter:contract:")]


def lint(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache"],
        cwd=tree,
        env={"PYTHONPATH": f"{tree / 'spec'}:{tree / 'reference'}", "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("spec", "reference"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def test_every_contract_has_a_forbidden_import() -> None:
    """Each contract has an injected forbidden import, because a contract counts only if a test has seen it fail."""
    assert sorted(contract_names()) == sorted(PLANTS)


def test_contracts_hold() -> None:
    code, text = lint(ROOT)

    assert code == 0, text
    assert f"{len(PLANTS)} kept, 0 broken" in text


@pytest.mark.parametrize("name", PLANTS)
def test_a_contract_fails_on_a_forbidden_import(tree: Path, name: str) -> None:
    path, line = PLANTS[name]
    file = tree / path
    file.write_text(file.read_text() + f"\n{line}\n")

    code, text = lint(tree)

    assert code == 1
    assert f"{name} BROKEN" in " ".join(text.split())
