"""A replay that cannot begin prints one sentence that says what to do, and leaves no process running."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from model_tests.java.findings import token_of

from longpoll.cli import main
from longpoll.commands import explain as explain_command
from longpoll_java import broker as java_broker
from longpoll_java.breakpoints import Breakpoints
from longpoll_java.broker import JavaBroker
from longpoll_java.errors import JavaUnavailableError
from longpoll_java.jars import Jars

TOKEN = token_of("rocketmq-4.9", "lost_by_hold")


def ran(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that serves as PATH, cache and temporary directory, with a fake Java that does nothing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program(tmp_path, "java", "exit 0")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{text}\n")
    path.chmod(0o755)


def jar_of(folder: Path, version: str, name: str = "rocketmq-broker-x.jar") -> None:
    with zipfile.ZipFile(folder / name, "w") as jar:
        jar.writestr("META-INF/maven/org.apache.rocketmq/rocketmq-broker/pom.properties", f"version={version}\n")


def assert_mistake(done: Result, *said: str) -> None:
    assert done.exit_code == 2, done.output
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for each in said:
        assert each in lines[0]


def start_broker(jars: Jars | None = None) -> None:
    with Breakpoints() as stage:
        JavaBroker(jars or Jars("4.9.7", "nothing.jar", "byteman.jar"), stage)


def test_without_java_or_maven(alone: Path) -> None:
    to_play = ("explain", TOKEN, "--on", "java-4.9.7")
    assert_mistake(ran(*to_play), "there is no mvn on PATH", "install Maven, or name a folder with --jars")
    (alone / "java").unlink()
    assert_mistake(ran(*to_play), "there is no java on PATH", "install a JDK (11 or later), and Maven unless --jars")
    assert_mistake(ran("explain", TOKEN, "--jars", alone), "there is no java on PATH", "install a JDK (11 or later)")


def test_maven_that_resolves_nothing_runs_alone(alone: Path) -> None:
    """Two Maven processes that fill one repository damage each other's files, so only one runs at a time."""
    lock = alone / "cache" / "longpoll" / "maven.lock"
    program(alone, "mvn", f"flock -n {lock} true && echo not alone; echo no network; exit 1")
    told = ran("explain", TOKEN, "--on", "java-5.5.0")
    assert_mistake(told, "Maven cannot resolve the jars of 5.5.0", "no network")
    assert "not alone" not in told.stderr
    with lock.open() as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_folders_without_usable_jars_are_reported(alone: Path) -> None:
    to_play = ("explain", TOKEN, "--jars", alone)
    assert_mistake(ran("explain", TOKEN, "--jars", alone / "absent"), "is not a folder", "lib")
    assert_mistake(ran(*to_play), "no rocketmq-broker-*.jar", "lib")
    (alone / "rocketmq-broker-x.jar").write_bytes(b"no jar")
    assert_mistake(ran(*to_play), "has no version")
    jar_of(alone, "4.2.0")
    assert_mistake(ran(*to_play), "4.2.0", "4.9.7, 5.4.0, 5.5.0")
    jar_of(alone, "4.9.7")
    (alone / "byteman-4.0.24.jar").write_bytes(b"")
    assert_mistake(ran(*to_play, "--on", "java-5.5.0"), "has the jars of 4.9.7", "use --on java-4.9.7")
    jar_of(alone, "5.5.0", "rocketmq-broker-y.jar")
    assert_mistake(ran(*to_play), "2 of rocketmq-broker-*.jar")


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (
            'ERROR : Failed to parse rule "read" loaded from x line 5',
            "differ from the published ones: the rule read does not match",
        ),
        ('WARNING : Unable to transform class C using rule "hold" loaded from x', "the rule hold does not match"),
        ("TestScript: no errors", "ended with 0"),
        ("Could not find or load main class", "checker gave no result: Could not find"),
    ],
)
def test_the_rules_are_checked_against_the_jars_of_a_folder(alone: Path, told: str, says: str) -> None:
    """The checker's message is reported before a broker starts. A checker that prints nothing is an error too."""
    program(alone, "java", f"echo '{told}'")
    with pytest.raises(JavaUnavailableError, match=says):
        start_broker(Jars("4.9.7", "nothing.jar", "byteman.jar", as_published=False))


def test_a_broker_that_ends_at_once_is_reported(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has Java's output, the folder is removed, and no other process on the port is taken for the broker."""
    program(alone, "java", "sleep 0.2; echo Agent JAR not found; exit 3")
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(java_broker, "_free_port", lambda: other.getsockname()[1])
        with pytest.raises(JavaUnavailableError, match="ended with 3: Agent JAR not found"):
            start_broker()
    assert not list(alone.glob("longpoll-java-*"))


def test_a_broker_that_never_listens_is_ended(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(alone, "java", f"echo $$ > {alone}/pid; exec sleep 600")
    monkeypatch.setattr(java_broker, "START_S", 0.5)
    with pytest.raises(JavaUnavailableError, match=r"did not listen within 0\.5 s"):
        start_broker()
    assert not Path(f"/proc/{(alone / 'pid').read_text().strip()}").exists()


def test_a_token_of_another_specification_is_refused() -> None:
    """A token of another format, a token of a changed specification and a damaged token get different errors."""
    assert_mistake(
        ran("explain", f"lp2.{TOKEN[4:]}", "--on", "java-4.9.7"), "not a token of this version", "longpoll check"
    )
    changed = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3uWAAIEAQgGRmMZTQ"
    assert_mistake(
        ran("explain", changed, "--on", "java-4.9.7"), "another version of the specification", "longpoll check"
    )


def test_contradicting_options_are_refused() -> None:
    assert_mistake(ran("explain", TOKEN, "--with-7359"), "--with-7359 needs --on or --jars")
    assert_mistake(ran("explain", "lp1.nonsense", "--on", "java-4.9.7"), "token")
    assert ran("explain", TOKEN, "--on", "java-3.2.6").exit_code == 2


def test_impossible_exports_are_refused(tmp_path: Path) -> None:
    assert_mistake(
        ran("export", "--to", "byteman", tmp_path),
        "needs two arguments: a token from `longpoll check`, and a directory",
    )
    assert_mistake(ran("export", "--to", "promela", TOKEN, tmp_path), "needs exactly one directory")
    other = token_of("rocketmq-pr7359", "lost_by_keep")
    assert_mistake(ran("export", "--to", "byteman", other, tmp_path), "rocketmq-pr7359", "no Java broker")
    cut = token_of("rocketmq-4.9", "moved_is_told")
    assert_mistake(ran("export", "--to", "byteman", cut, tmp_path), "truncate", "recovery")
    assert_mistake(ran("export", "--to", "byteman", TOKEN, tmp_path, "--on", "java-5.5.0"), "the policy of 5.5.0 is")
    assert not list(tmp_path.iterdir())


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    assert ran("export", "--to", "byteman", TOKEN, tmp_path).exit_code == 0
    (tmp_path / "schedule.txt").write_text("mine")
    assert_mistake(ran("export", "--to", "byteman", TOKEN, tmp_path), "schedule.txt", "--force")
    assert (tmp_path / "schedule.txt").read_text() == "mine"
    assert ran("export", "--to", "byteman", TOKEN, tmp_path, "--force").exit_code == 0
    assert (tmp_path / "schedule.txt").read_text() != "mine"


def test_sigterm_ends_the_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def started(*_words: object, **_options: object) -> Iterator[SimpleNamespace]:
        seen.append("started")
        try:
            yield SimpleNamespace(is_running=True)
        finally:
            seen.append("ended")

    def play(*_words: object) -> None:
        seen.append("played")
        os.kill(os.getpid(), signal.SIGTERM)

    def ignored(*_words: object) -> None:
        seen.append("SIGTERM would have ended the process")

    monkeypatch.setattr(explain_command, "started", started)
    monkeypatch.setattr(explain_command, "play", play)
    monkeypatch.setattr(explain_command, "chosen", lambda _on, _jars: Jars("4.9.7", "nothing.jar", "byteman.jar"))
    before = signal.signal(signal.SIGTERM, ignored)
    try:
        done = ran("explain", TOKEN, "--on", "java-4.9.7")
        assert signal.getsignal(signal.SIGTERM) is ignored
    finally:
        signal.signal(signal.SIGTERM, before)

    assert seen == ["started", "played", "ended"]
    assert done.exit_code != 0
