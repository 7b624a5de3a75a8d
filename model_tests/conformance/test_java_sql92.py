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
def version(request: pytest.FixtureRequest) -> str:
    """Whose parser is asked."""
    return str(request.param)


@pytest.fixture(scope="module")
def class_path(version: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """RocketMQ's jars; skipped where Java or they cannot be had."""
    try:
        return resolve(tmp_path_factory.mktemp("jars"), version)
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


def differing(class_path: str, cases: list[Case], *, with_parts: bool) -> tuple[list[tuple[str, ...]], Counter[str]]:
    """The cases of which we make something else than Java, with what it makes of them, and how often it says what."""
    said = ask_java(class_path, cases)
    pairs = zip(cases, said, strict=True)
    found = [(*map(str, case), java) for case, java in pairs if outcome(*case, with_parts=with_parts) != java]
    return found, Counter(said)


@pytest.mark.parametrize("with_parts", [False, True], ids=["both", "5.x"])
def test_no_case_differs_from_java(class_path: str, version: str, *, with_parts: bool) -> None:
    """Fresh cases in every run, also with what 5.x has more, which 4.9 refuses; all five outcomes occur often.

    Read by the other version's grammar, as planted, many of those with it differ.
    """
    seed = random.SystemRandom().randrange(1 << 32)
    source = Cases(seed, with_parts=with_parts)
    cases = [source.next() for _ in range(COUNT)]
    is_5 = version.startswith("5.")
    found, said = differing(class_path, cases, with_parts=is_5)
    assert not found, f"seed {seed}, {len(found)} cases: {list(islice(found, 5))}"
    assert min(said[word] for word in ("bad", "error", "true", "false", "null")) > COUNT / 50
    if with_parts:
        assert len(differing(class_path, cases[:1000], with_parts=not is_5)[0]) > 20
