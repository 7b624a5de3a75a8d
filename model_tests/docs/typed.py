"""A simulated reader who runs every command of a page in order.

`/tmp`, `HOST:PORT` and port 10911 on a page are replaced by the reader's own directory, address and port. A server
keeps running for the next commands, and stops before the history that it records is judged. A command that follows a
history gets Ctrl-C after its first progress report. If a page says "any broker", the reader starts our broker.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from attrs import define, field
from model_tests.support.captures import wait_until_captured

ROOT: Final = Path(__file__).parents[2]
BIN: Final = Path(sys.executable).parent
FENCED: Final = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL: Final = {"", "console", "sh", "bash"}
CODE: Final = {"python", "rust", "java", "diff", "json", "ini", "yaml"}
OURS: Final = "longpoll|make|python|pytest|jupyter"
PROGRAMS: Final = rf"{OURS}|node|docker|spin|gcc|./pan|java(?!  )|tcpdump|printf|cd|for|pip|mvn|source|curl|git|cp"
LINE: Final = re.compile(
    rf"^(?:\$ )?((?:[A-Z_0-9]+=\S+ )*(?:\.venv/bin/)?(?:{PROGRAMS})(?: (?:.*\\\n)*.*)?)$", re.MULTILINE
)
STAYS: Final = re.compile(r"longpoll (serve|observe (?!.*--(capture|inside)))")
"""Matches commands that run until Ctrl-C."""
FOLLOWS: Final = re.compile(r"longpoll judge .*--follow\b")
SO_FAR: Final = re.compile(r"up to event \d+")
CAPTURES: Final = re.compile(r"tcpdump .*-w (\S+) tcp port \d+")
TOKEN: Final = re.compile(r"\blp1\.[\w-]+")
CUT: Final = re.compile(r"\blp1\.[\w-]*\.\.\.")
"""The beginning of a token on a page, which stands for the token that the previous command printed."""
ADDRESS: Final = re.compile(r"(--(?:broker|name-server|register-at|listen) \"?)([\w.]+:(?:\d+|PORT)[\w.:;]*)")
READY: Final = re.compile(r"\b(broker|name-server|ready|listening)[= ](?:[\d.]+:\d+@)?([\d.]+:\d+)")
NAMED: Final = re.compile(r"^```(?:json title=|python )(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BROKER: Final = "127.0.0.1:10911"
NAME_SERVER: Final = "127.0.0.1:9876"
"""The default address of our name servers."""
TEMPORARY: Final = "/tmp/"  # noqa: S108 - what pages have, never used as it is
PATIENCE_S: Final = 120
LINKED: Final = (
    "LICENSE",
    "Makefile",
    "README.md",
    "pyproject.toml",
    ".venv",
    "requirements",
    "model_tests",
    "reference",
)
COPIED: Final = ("docs", "spec")
"""Folders that are copied for the reader, because commands write into them."""
A_TEST: Final = re.compile(r"(python -m )?pytest ")
"""Tests on a page are collected and not run, because this is itself a test."""


def lines(text: str) -> Iterator[str]:
    for kind, _, block in FENCED.findall(text):
        if kind in SHELL:
            yield from LINE.findall(block)


def unread(text: str) -> list[str]:
    """Return commands outside of the blocks that `lines` reads, and first lines of shell blocks without a command."""
    shells = [block for kind, _, block in FENCED.findall(text) if kind in {"console", "sh", "bash"}]
    others = [block for kind, _, block in FENCED.findall(text) if kind not in SHELL | CODE]
    indented = "\n".join(line.strip() for line in FENCED.sub("", text).splitlines() if line.startswith("    "))
    return [
        *(block.splitlines()[0] for block in shells if not LINE.match(block)),
        *(line for part in (*others, indented) for line in LINE.findall(part)),
    ]


class NotTypedError(Exception):
    """A command of a page cannot be run or has an unexpected result; the message names the command."""


@define
class Program:
    process: subprocess.Popen[str]
    line: str

    def stop(self) -> None:
        if self.process.poll() is None:
            if CAPTURES.match(self.line):
                *_, file, _, _, port = self.line.split()  # The arguments are: -w FILE tcp port PORT
                try:
                    wait_until_captured(self.process, int(port), Path(file), PATIENCE_S)
                except TimeoutError as error:
                    raise NotTypedError(f"{self.line}: {error}") from None
            self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        if self.process.returncode not in {0, 3}:
            raise NotTypedError(f"{self.line}: exit code {self.process.returncode}\n{out}")


@define
class Reader:
    directory: Path
    instead: Mapping[str, str]
    """Placeholder on a page -> the value that the test uses."""
    shorter: Mapping[str, str] = field(factory=dict)
    """Slow command -> the same command with smaller numbers."""
    environment: Mapping[str, str] = field(factory=dict)
    home: Path = field(init=False)
    """The directory in which the page's commands begin; its `tmp` replaces the page's `/tmp`."""
    running: list[Program] = field(factory=list)
    addresses: dict[str, str] = field(factory=dict)
    """Address on the page -> the real address."""
    token: str = ""

    def __attrs_post_init__(self) -> None:
        self.home = self.directory
        (self.home / "tmp").mkdir()
        for name in COPIED:
            shutil.copytree(ROOT / name, self.home / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in LINKED:
            (self.home / name).symlink_to(ROOT / name)

    def prepare(self, text: str) -> None:
        """Write the files that the page shows by name."""
        for name, content in NAMED.findall(text):
            (self.directory / name).write_text(content)

    def type(self, line: str, code_of: Callable[[str], int | tuple[int, ...]]) -> str:
        """Run a line and return its output, with the page's `/tmp`; raises NotTypedError for another exit code."""
        loaded = "# any load" in line
        line = re.sub(r"(?<=\s)#.*$", "", line).strip().removesuffix("&").strip().removeprefix(".venv/bin/")
        if "--broker" in line and "--start" not in line and "--capture" not in line:
            self._broker_for(line)
        typed, said = self._whole(line), ""
        if STAYS.match(line):
            said = self._leave_running(line, typed)
            if loaded:
                self._serve_somebody()
        elif CAPTURES.match(line):
            self._capture(line)
        elif line.startswith("cd "):
            self.directory /= line.removeprefix("cd ")
        else:
            self._stop_what_writes(line)
            code, said = self._follow(typed) if FOLLOWS.match(line) else self._run(typed)
            self._ended(typed, code, said, code_of(line))
        return said.replace(f"{self.home}{TEMPORARY}", TEMPORARY)

    def leave(self) -> None:
        while self.running:
            self.running.pop().stop()

    def learn(self, shown: str, said: str) -> None:
        """Map the addresses on the page to the addresses that a command printed."""
        there = dict(READY.findall(said))
        self.addresses |= {address: there[name] for name, address in READY.findall(shown) if name in there}

    def kill(self) -> None:
        for program in self.running:
            with suppress(ProcessLookupError):
                program.process.kill()
            program.process.communicate()

    def _ended(self, typed: str, code: int, said: str, wanted: int | tuple[int, ...]) -> None:
        if code not in (wanted if isinstance(wanted, tuple) else (wanted,)):
            raise NotTypedError(f"{typed}: exit code {code}, not {wanted}\n{said}")
        if "Traceback (most recent call last)" in said:
            raise NotTypedError(f"{typed}: a fault of ours\n{said}")
        *_, self.token = [self.token, *TOKEN.findall(said)]

    def _run(self, typed: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, f"{done.stdout}{done.stderr}"

    def _environment(self) -> dict[str, str]:
        own = {"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "140", "PYTHONPATH": str(self.home / "spec")}
        return os.environ | own | dict(self.environment)

    def _whole(self, line: str) -> str:
        """Return the command to run for a line: with smaller numbers if slow, and with options that a test needs."""
        typed = self._real(self.shorter.get(line, line))
        if A_TEST.match(line):
            typed += " --collect-only -q"
        if line.startswith(("longpoll send", "longpoll consume")) and "--name-server" not in line:
            typed += f" --name-server {self.addresses[NAME_SERVER]}"
        if line.startswith("longpoll consume") and "--count" not in line:
            sent = re.sub(r" consume (\S+) .*(--name-server)", r" send \1 hello \2", typed)
            typed = f"{sent} && {typed} --count 1"
        return typed

    def _real(self, line: str) -> str:
        line = line.replace(TEMPORARY, f"{self.home}{TEMPORARY}")
        for mine, instead in self.instead.items():
            line = line.replace(mine, instead)
        line = CUT.sub(lambda found: self._token(found[0]), line)
        if "--start" in line:
            port = free_port()
            ours = f"longpoll serve --listen 127.0.0.1:{port} --name-server 127.0.0.1:{free_port()}"
            return line.replace("my-broker --port 10911", ours).replace(BROKER, f"127.0.0.1:{port}")
        if line.startswith("node "):
            return re.sub(r"127\.0\.0\.1:\d+", lambda found: self.addresses.get(found[0], found[0]), line)
        return ADDRESS.sub(lambda found: found[1] + self._there(found[1], found[2]), line)

    def _token(self, cut: str) -> str:
        if not self.token:
            raise NotTypedError(f"{cut}: no command before has printed a token")
        return self.token

    def _there(self, option: str, asked: str) -> str:
        if option.startswith("--listen"):
            return "127.0.0.1:0"
        parts = asked.split(";")
        name = option.split(maxsplit=1)[0]
        return ";".join(self.addresses.get(f"{name} {each}", self.addresses.get(each, each)) for each in parts)

    def _broker_for(self, line: str) -> None:
        """Start a broker of the command's policy if none runs at the address."""
        asked = [each for _, each in ADDRESS.findall(line)]
        if all(each in self.addresses for each in asked if "PORT" not in each) and "HOST:PORT" not in asked:
            return
        policy = re.search(r"--policy (\S+)", line)
        # `conform` asks the broker for its policy; later commands of the page expect a current RocketMQ.
        usual = "rocketmq-5" if line.startswith("longpoll conform") else "strict"
        self._leave_running("longpoll serve", f"longpoll serve --policy {policy[1] if policy else usual}")

    def _leave_running(self, line: str, typed: str) -> str:
        words = shlex.split(typed)
        if words[1] == "serve":
            for option in ("--listen", "--name-server"):
                at = words.index(option) if option in words else len(words)
                words[at : at + 2] = [option, "127.0.0.1:0"]
        said = self._start(words, shlex.join(words), "ready|listening")[1]
        self._learn(line, said)
        return said

    def _start(self, words: list[str], typed: str, until: str) -> tuple[Program, str]:
        process = subprocess.Popen(
            words,
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        program = Program(process, typed)
        self.running.append(program)
        assert process.stdout is not None
        said = ""
        with _ended_after(process, PATIENCE_S):
            for each in process.stdout:
                said += each
                if re.search(until, each):
                    return program, said
        raise NotTypedError(f"{typed}: ends, or says nothing for {PATIENCE_S} s\n{said}")

    def _follow(self, typed: str) -> tuple[int, str]:
        """Follow until the first progress report, read the metrics, and press Ctrl-C; returns code and output."""
        port = free_port()
        words = shlex.split(re.sub(r"--metrics-port \d+", f"--metrics-port {port}", typed))
        program, said = self._start(words, typed, SO_FAR.pattern)
        if "--metrics-port" in words:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
                if b"longpoll_judge_verdict" not in answer.read():
                    raise NotTypedError(f"{typed}: no verdict among the metrics")
        program.process.send_signal(signal.SIGINT)
        said += program.process.communicate(timeout=PATIENCE_S)[0]
        self.running.remove(program)
        if not re.search(r"^verdict: \w+", said, re.MULTILINE):
            raise NotTypedError(f"{typed}: says no verdict after Ctrl-C\n{said}")
        return program.process.returncode, said

    def _capture(self, line: str) -> None:
        """Capture the port of the page's broker while it serves a client."""
        self._broker_for(f"longpoll observe --broker {BROKER}")
        there = self.addresses[BROKER]
        words = shlex.split(re.sub(r"\d+$", there.rpartition(":")[2], line))
        file = words.index("-w") + 1
        words[file] = str(self.directory / words[file])
        self._start(words, " ".join(words), "listening on")
        self.addresses["10.0.0.5:10911"] = there
        self._serve_somebody()

    def _serve_somebody(self) -> None:
        self.type('longpoll send Orders "any load"', lambda _: 0)
        self.type("longpoll consume Orders --group G --count 1", lambda _: 0)

    def _learn(self, line: str, said: str) -> None:
        there = dict(READY.findall(said))
        typed = dict(re.findall(r"(--\S+) (\S+)", line))
        for option, name, usual in (("--listen", "broker", BROKER), ("--name-server", "name-server", NAME_SERVER)):
            if name in there and not (name == "name-server" and line.startswith("longpoll observe")):
                self.addresses[typed.get(option, usual)] = there[name]
                self.addresses[f"--{name} HOST:PORT"] = there[name]

    def _stop_what_writes(self, line: str) -> None:
        """Send Ctrl-C to the programs whose record or store the line reads."""
        if not line.startswith(("longpoll judge", "longpoll store")) and "--capture" not in line:
            return
        for program in list(self.running):
            written = re.findall(r"--?(?:record|store|w) (\S+)", program.line)
            if any(each in self._real(line) or Path(each).name in line.split() for each in written):
                self.running.remove(program)
                program.stop()


@contextmanager
def _ended_after(process: subprocess.Popen[str], patience_s: float) -> Iterator[None]:
    timer = threading.Timer(patience_s, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
