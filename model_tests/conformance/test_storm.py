"""Storm on the exported spec: the same states, transitions and verdicts as our engines; a mutant fails.

Storm is PyPI's `stormpy`, in a separate environment that is kept between runs; it is not our dependency.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from longpoll_spec.bounds import EXPLORATIONS, named
from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.policy import policy_named
from longpoll_spec.render.export.jani import jani_of
from longpoll_spec.specification import properties_of, specification_of

pytestmark = [pytest.mark.peers, pytest.mark.long]
STORMPY: Final = "stormpy==2.0.0"
FACTS: Final = Path(__file__).with_name("storm_facts.py")
READY_S: Final = 300.0
RUN_S: Final = 120.0
TINY: Final = [entry for entry in pinned() if entry.bounds == "tiny"]
ASPECTS: Final = [
    entry
    for entry in pinned()
    if entry.bounds in EXPLORATIONS and entry.policy == "strict" and entry.distinct_states < 50_000
]
Storm = Callable[[str], dict[str, Any]]
"""What Storm finds in JANI text."""


def _environment() -> Path:
    """The directory of Storm's environment, where caches are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return home / "longpoll-tests" / f"{STORMPY.replace('==', '-')}-python{version}"


def _ready() -> Path:
    """The Python that has Storm; raises `CalledProcessError`, `OSError` or `TimeoutExpired` where it cannot be had."""
    place = _environment()
    python = place / "bin" / "python"
    mark = place / "ready"
    if not mark.exists():
        _call(sys.executable, "-m", "venv", "--clear", str(place))
        _call(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", STORMPY)
        _call(str(python), "-c", "import stormpy")
        mark.touch()
    return python


def _call(*command: str, timeout_s: float = READY_S) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout_s).stdout


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Storm:
    """Storm, installed at its first use; a missing tool is reported."""
    try:
        python = _ready()
    except (subprocess.SubprocessError, OSError) as error:
        said = error.stderr[-500:] if isinstance(error, subprocess.CalledProcessError) else ""
        pytest.skip(f"STORM NOT TRIED: {STORMPY} cannot be had: {error} {said}")

    def found(text: str) -> dict[str, Any]:
        path = tmp_path_factory.mktemp("jani") / "law.jani"
        path.write_text(text, encoding="utf-8")
        facts: dict[str, Any] = json.loads(_call(str(python), str(FACTS), str(path), timeout_s=RUN_S))
        return facts

    return found


def _exported(policy: str, bounds: str = "tiny") -> str:
    chosen = policy_named(policy)
    model = specification_of(chosen, named(bounds, chosen))
    return jani_of(model, properties_of(model))


def _facts_of(entry: Entry) -> dict[str, Any]:
    """The pinned numbers as Storm says them: it gives no length of a run, and a state without a step a loop."""
    verdicts = dict.fromkeys(entry.violated, False) | dict.fromkeys(entry.reached, True)
    verdicts |= dict.fromkeys(entry.holds, True) | dict.fromkeys(entry.unreached, False)
    return {"states": entry.distinct_states, "choices": entry.transitions, "deadlocks": 0, "verdicts": verdicts}


@pytest.mark.parametrize("entry", [*TINY, *ASPECTS], ids=lambda entry: f"{entry.policy}-{entry.bounds}")
def test_storm_finds_the_pinned_numbers(entry: Entry, storm: Storm) -> None:
    facts = storm(_exported(entry.policy, entry.bounds))

    facts["choices"] -= facts["deadlocks"]
    assert {**facts, "deadlocks": 0} == _facts_of(entry)
