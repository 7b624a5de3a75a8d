"""A reader of a page who types all that it shows, in its order, and nothing else.

What a page calls `/tmp`, `HOST:PORT` or port 10911 is the reader's own; a program that serves until Ctrl-C is left
running for the commands after it, and is stopped before its record is judged. Where a page asks "any broker", ours is
started. Leaves out what is printed.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import define, field

ROOT: Final = Path(__file__).parents[2]
BIN: Final = Path(sys.executable).parent
LOST: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w"
FENCED: Final = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL: Final = {"", "console", "sh", "bash"}
PROGRAMS: Final = (
    "longpoll|make|python|pytest|node|docker|spin|gcc|./pan|java|jupyter|tcpdump|printf|cd|for|pip|mvn|source|curl|git"
)
LINE: Final = re.compile(
    rf"^(?:\$ )?((?:[A-Z_0-9]+=\S+ )*(?:\.venv/bin/)?(?:{PROGRAMS})(?: (?:.*\\\n)*.*)?)$", re.MULTILINE
)
STAYS: Final = re.compile(r"longpoll (serve|observe (?!.*--(capture|inside))|oracle .*--listen)")
"""Runs until Ctrl-C."""
ADDRESS: Final = re.compile(
    r"(--(?:broker|name-server|slave-of|register-at|ha|listen) \"?)([\w.]+:(?:\d+|PORT)[\w.:;]*)"
)
READY: Final = re.compile(r"\b(broker|name-server|ready|listening)[= ](?:[\d.]+:\d+@)?([\d.]+:\d+)")
NAMED: Final = re.compile(r"^```json title=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BROKER: Final = "127.0.0.1:10911"
NAME_SERVER: Final = "127.0.0.1:9876"
"""Where ours listen unless told."""
TEMPORARY: Final = "/tmp/"  # noqa: S108 - what pages have, never used as it is
PATIENCE_S: Final = 60


def lines(text: str) -> Iterator[str]:
    """Every line of a page's blocks that is typed at a shell, whatever the program."""
    for kind, _, block in FENCED.findall(text):
        if kind in SHELL:
            yield from LINE.findall(block)


def unread(text: str) -> list[str]:
    """Blocks of a shell whose first line is no command that `lines` knows."""
    blocks = [block for kind, _, block in FENCED.findall(text) if kind in {"console", "sh", "bash"}]
    return [block.splitlines()[0] for block in blocks if not LINE.match(block)]


class NotTypedError(Exception):
    """A command of a page cannot be typed, or ends otherwise than it should; the text says which."""


@define
class Program:
    """One that a page leaves running, and where its record is."""

    process: subprocess.Popen[str]
    line: str

    def stop(self) -> None:
        """Press Ctrl-C; raises NotTypedError where it does not end well."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        if self.process.returncode not in {0, 3}:
            raise NotTypedError(f"{self.line}: exit code {self.process.returncode}\n{out}")


@define
class Reader:
    """Types a page's commands in a directory of its own."""

    directory: Path
    instead: Mapping[str, str]
    """What stands for a thing of the reader's own -> what is taken for it."""
    home: Path = field(init=False)
    """Where the page began; what it calls `/tmp` is in it."""
    running: list[Program] = field(factory=list)
    addresses: dict[str, str] = field(factory=dict)
    """An address as the page has it -> the one that is there."""

    def __attrs_post_init__(self) -> None:
        """Make the reader's own `/tmp`."""
        self.home = self.directory
        (self.home / "tmp").mkdir()

    def prepare(self, text: str) -> None:
        """Write the files that the page shows by name."""
        for name, content in NAMED.findall(text):
            (self.directory / name).write_text(content)

    def type(self, line: str, code_of: Callable[[str], int | tuple[int, ...]]) -> None:
        """Run a line as it stands; raises NotTypedError where it ends otherwise than it should."""
        loaded = "# any load" in line
        line = re.sub(r"(?<=\s)#.*$", "", line).strip().removesuffix("&").strip().removeprefix(".venv/bin/")
        if "--broker" in line and "--start" not in line and "--capture" not in line:
            self._broker_for(line)
        typed = self._real(line)
        if line.startswith(("longpoll send", "longpoll consume")) and "--name-server" not in line:
            typed += f" --name-server {self.addresses[NAME_SERVER]}"
        if line.startswith("longpoll consume") and "--count" not in line:
            sent = re.sub(r" consume (\S+) .*(--name-server)", r" send \1 hello \2", typed)
            typed = f"{sent} && {typed} --count 1"
        if STAYS.match(line):
            self._leave_running(line, typed)
            if loaded:
                self.type('longpoll send Orders "any load"', lambda _: 0)
                self.type("longpoll consume Orders --group G --count 1", lambda _: 0)
            return
        if line.startswith("cd "):
            self.directory /= line.removeprefix("cd ")
            return
        self._stop_what_writes(line)
        wanted = code_of(line)
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=ROOT if line.startswith(("python", "pytest", "make", "node")) else self.directory,
            env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "140"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (wanted if isinstance(wanted, tuple) else (wanted,)):
            raise NotTypedError(f"{typed}: exit code {done.returncode}, not {wanted}\n{done.stdout}{done.stderr}")

    def leave(self) -> None:
        """End what still runs."""
        while self.running:
            self.running.pop().stop()

    def kill(self) -> None:
        """End what still runs, whatever happened."""
        for program in self.running:
            with suppress(ProcessLookupError):
                program.process.kill()
            program.process.communicate()

    def _real(self, line: str) -> str:
        """The line with what is the reader's in place of what the page has."""
        line = line.replace(TEMPORARY, f"{self.home}{TEMPORARY}")
        for mine, instead in self.instead.items():
            line = line.replace(mine, instead)
        return ADDRESS.sub(lambda found: found[1] + self._there(found[1], found[2]), line)

    def _there(self, option: str, asked: str) -> str:
        if option.startswith("--listen"):
            return "127.0.0.1:0"
        parts = asked.split(";")
        name = option.split(maxsplit=1)[0]
        return ";".join(self.addresses.get(f"{name} {each}", self.addresses.get(each, each)) for each in parts)

    def _broker_for(self, line: str) -> None:
        """A broker of the command's policy, where none runs at the address."""
        asked = [each for _, each in ADDRESS.findall(line)]
        if all(each in self.addresses for each in asked if "PORT" not in each) and "HOST:PORT" not in asked:
            return
        policy = re.search(r"--policy (\S+)", line)
        self._leave_running("longpoll serve", f"longpoll serve --policy {policy[1] if policy else 'strict'}")

    def _leave_running(self, line: str, typed: str) -> None:
        """Start a program that runs until Ctrl-C, at addresses that are free."""
        words = shlex.split(typed)
        if words[1] == "serve":
            for option in ("--listen", "--name-server"):
                at = words.index(option) if option in words else len(words)
                words[at : at + 2] = [option, "127.0.0.1:0"]
        if "--ha" in words:
            words[words.index("--ha") + 1] = f"127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            words,
            cwd=self.directory,
            env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(Program(process, typed))
        self._learn(line, process)

    def _learn(self, line: str, process: subprocess.Popen[str]) -> None:
        """Read the line that says where the program listens."""
        assert process.stdout is not None
        said = ""
        for each in process.stdout:
            said += each
            if "ready" in each or "listening" in each:
                break
        else:
            raise NotTypedError(f"{line}: ends at once, with {process.wait()}\n{said}")
        there = dict(READY.findall(said))
        typed = dict(re.findall(r"(--\S+) (\S+)", line))
        for option, name, usual in (("--listen", "broker", BROKER), ("--name-server", "name-server", NAME_SERVER)):
            if name in there:
                self.addresses[typed.get(option, usual)] = there[name]
                self.addresses[f"--{name} HOST:PORT"] = there[name]

    def _stop_what_writes(self, line: str) -> None:
        """Ctrl-C for the programs whose record or store the line reads."""
        if not line.startswith(("longpoll judge", "longpoll store")):
            return
        for program in list(self.running):
            written = re.findall(r"--(?:record|store) (\S+)", program.line)
            if any(each in self._real(line) for each in written):
                self.running.remove(program)
                program.stop()


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
