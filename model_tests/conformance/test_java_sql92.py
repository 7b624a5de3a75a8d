"""Our SQL92 filters beside RocketMQ's own parser, of 4.9.7 and of 5.5.0, case by case.

`model_tests/core/golden/sql92-4.9.7.jsonl.xz` holds 2,000 cases of seed 20261121 and 1,246 chosen edges, with what the
parser of 4.9.7 made of them.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Final

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, resolve

from longpoll_broker.testing.sql92_cases import Case, Cases, outcome

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

ORACLE: Final = Path(__file__).parent / "Sql92Oracle.java"
COUNT: Final = 50_000


@pytest.fixture(scope="module", params=VERSIONS)
def class_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """RocketMQ's jars; skipped where Java or they cannot be had."""
    try:
        return resolve(tmp_path_factory.mktemp("jars"), str(request.param))
    except JavaUnavailableError as error:
        pytest.skip(str(error))


def ask_java(class_path: str, cases: list[Case]) -> list[str]:
    """What the real parser makes of each case."""
    lines = (
        expression.encode().hex()
        + "\t"
        + ",".join(f"{name.encode().hex()}={text.encode().hex()}" for name, text in properties.items())
        for expression, properties in cases
    )
    asked = subprocess.run(
        ["java", "-cp", class_path, str(ORACLE)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return asked.stdout.split()


def test_no_case_differs_from_java(class_path: str) -> None:
    """Fresh cases in every run, of the language that both versions have; all five outcomes occur often."""
    seed = random.SystemRandom().randrange(1 << 32)
    source = Cases(seed)
    cases = [source.next() for _ in range(COUNT)]
    said = ask_java(class_path, cases)

    differing = [(*case, java) for case, java in zip(cases, said, strict=True) if outcome(*case) != java]
    assert not differing, f"seed {seed}, {len(differing)} cases: {list(islice(differing, 5))}"
    assert min(Counter(said)[word] for word in ("bad", "error", "true", "false", "null")) > COUNT / 50
