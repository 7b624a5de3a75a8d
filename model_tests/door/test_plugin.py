"""The pytest plugin, in a pytest of its own: its fixtures in files that a newcomer would write."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import longpoll
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_spec.testing.cases import quick_if

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
(SHOWN,) = re.findall(r"```python test_mine.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
BROKEN = """
from longpoll_judge.testing.plant import plant


def test_broken(longpoll_broker, longpoll_client, longpoll_topic, longpoll_history, tmp_path):
    consumer = longpoll_client.consumer(longpoll_topic)
    longpoll_client.producer.send(longpoll_topic, b"hello")
    assert consumer.poll(timeout_s=30)
    longpoll_broker.close()
    plant(longpoll_history.directory, "answer_duplicated", tmp_path / "planted")
    for part in longpoll_history.directory.iterdir():
        part.unlink()
    for part in (tmp_path / "planted").iterdir():
        part.rename(longpoll_history.directory / part.name)
"""
ALONE = """
def test_nothing(longpoll_history):
    pass
"""
MANY = """
import time
import pytest

BEGUN = []


@pytest.mark.parametrize("number", range(5))
def test_each_has_its_own(number, longpoll_broker, longpoll_topic):
    BEGUN.append((longpoll_broker.name_server, longpoll_topic))
    assert len(set(BEGUN)) == len(BEGUN)
    assert "each_has_its_own" in longpoll_topic
"""


def run(directory: Path, *sources: str, words: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """What pytest says of files with these texts."""
    for number, source in enumerate(sources):
        (directory / f"test_mine_{number}.py").write_text(source)
    call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-rA", *words, str(directory)]
    return subprocess.run(call, cwd=directory, capture_output=True, text=True, check=False, timeout=120)


def test_the_page_s_file_passes_and_what_shows_nothing_is_unknown(tmp_path: Path) -> None:
    """Ten lines, with a broker of the test's own, whose history is valid; a test that pulled nothing shows nothing."""
    done = run(tmp_path, SHOWN, ALONE)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the history is valid: " in done.stdout
    assert "the history is unknown: " in done.stdout
    assert len([line for line in SHOWN.splitlines() if line.strip()]) <= 10


def test_brokers_that_run_elsewhere_are_used(tmp_path: Path) -> None:
    with longpoll.Broker(store_config=SMALL_STORE) as broker:
        done = run(tmp_path, SHOWN, words=[f"--longpoll-name-server={broker.name_server}"])
        with longpoll.Admin(broker.runtime, broker.name_server) as admin:
            names = admin.topic_names()

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("the history is (valid|unknown): ", done.stdout)
    assert [name for name in names if name.startswith("test_held_pull")]


def test_a_violation_is_an_error_of_the_test(tmp_path: Path) -> None:
    done = run(tmp_path, BROKEN)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "ViolationError: the broker violated its promises:" in done.stdout
    assert "answered_once: " in done.stdout
    assert re.search(r"longpoll judge \S+longpoll-history", done.stdout)


@pytest.mark.parametrize("policy", quick_if(["strict", "rocketmq-4.9"], lambda policy: policy != "strict"))
def test_each_test_has_its_own(policy: str, tmp_path: Path) -> None:
    done = run(tmp_path, MANY, words=[f"--longpoll-policy={policy}"])

    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_an_unknown_policy_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, MANY, words=["--longpoll-policy=stirct"])

    assert done.returncode == 1
    assert "did you mean 'strict'?" in done.stdout
