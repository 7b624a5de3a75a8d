"""Writes Byteman rules. At a breakpoint (gate), a rule asks whether its thread may continue, or logs a line.

A rule sends a one-line GET to the port in the system property `longpoll.gate`, and the thread waits for the answer: `G`
releases the thread, `T` makes it throw the gate's exception. None of our classes is loaded into the broker.
`breakpoints` answers. A rule that logs a line stops no thread; the line has these words:

| word of a line | what it is                                                              |
|----------------|-------------------------------------------------------------------------|
| 1              | the gate's name                                                         |
| 2              | the thread's number, and `d` or `s` after it for dispatcher or scanner  |
| 3              | `System.nanoTime`, which on Linux is the monotonic clock of the machine |
| 4, 5, 6        | topic, queue, opaque of the pull; `-` if unknown there                  |
| 7              | whether the pull may still be held: `true`, `false`, or `-`             |

Byteman's own checker checks rules before a broker starts. The agent silently skips a rule that it cannot parse, or
whose class or method does not exist. Published jars are not checked here, because tests check the rules against them.

Sources: the Byteman Programmer's Guide, version 4.0; `org.jboss.byteman.check.TestScript` of Byteman 4.0.
"""

from __future__ import annotations

import re
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from longpoll_java.errors import JavaUnavailableError
from longpoll_java.jars import Jars
from longpoll_spec.render.java_breakpoints import Breakpoint, breakpoints_of

SCAN_MS: Final = 5_000
"""The default period of `PullRequestHoldService.run` in milliseconds, which no setting of the broker changes."""
PORT_PROPERTY: Final = "longpoll.gate"
GO: Final = "G"
THROW: Final = "T"
_THREAD: Final = 'Thread.currentThread().getName().replace(" ", "_")'


def rules_of(gates: Iterable[Breakpoint]) -> str:
    """Return the script for Byteman's agent, with a rule for each breakpoint."""
    return "".join(f"{_rule(gate)}\n" for gate in gates)


def scanning_each(period_ms: int) -> str:
    """Return a rule that sets the period of the scan to `period_ms`. The period is a constant of 5 s in the source."""
    lines = [
        "RULE period",
        "CLASS org.apache.rocketmq.common.ServiceThread",
        "METHOD waitForRunning(long)",
        "AT ENTRY",
        f'IF $1 == {SCAN_MS} AND Thread.currentThread().getName().endsWith("PullRequestHoldService")',
        f"DO $1 = {period_ms}",
        "ENDRULE",
    ]
    return "\n".join(lines) + "\n"


def _rule(gate: Breakpoint) -> str:
    asked = "".join(f' + "&{name}=" + {java}' for name, java in gate.told.items())
    url = f'"http://127.0.0.1:" + System.getProperty("{PORT_PROPERTY}") + "/{gate.name}?thread=" + {_THREAD}{asked}'
    found = {"bucket:ManyPullRequest": gate.bucket, f"held:{gate.request_class}": gate.request}
    held = "".join(f"{_named(name)} = {java};\n     " for name, java in found.items() if java)
    lines = [
        f"RULE {gate.name}",
        f"CLASS {gate.class_name}",
        f"METHOD {gate.method}",
        gate.place,
        f"BIND {held}gate:java.net.URL = new java.net.URL({url});",
        "     answer:int = gate.openStream().read()",
        *_action(gate),
        "ENDRULE",
    ]
    return "\n".join(lines) + "\n"


def _action(gate: Breakpoint) -> tuple[str, str]:
    """Return the condition and the action of the Byteman rule that receives the answer at a breakpoint."""
    when, what = gate.does
    if what:
        return f"IF answer == {ord(GO)} AND {when}", f"DO {what}"
    if gate.throws:
        return f"IF answer == {ord(THROW)}", f'DO throw new {gate.throws}("thrown by a rule of longpoll")'
    return "IF FALSE", "DO NOTHING"


def _named(typed: str) -> str:
    """Return a binding of a rule, with the full Java name of its type."""
    return typed.replace(":", ":org.apache.rocketmq.broker.longpolling.")


DELAYED_MS_MAX: Final = 8
"""The longest random delay at a breakpoint, in milliseconds: twice the longest pause between sends to a queue."""
_PRIME: Final = 10_007
FILE_PROPERTY: Final = "longpoll.steps"
TRACED: Final = ("dispatch", "notify", "taken", "each", "keep", "done", "read", "hold", "held", "served")
OPTIONS: Final = ("-Dorg.jboss.byteman.compile.to.bytecode",)
"""The options of Byteman. Rules are compiled, because interpreting a rule takes several times as long."""
_BEGIN: Final = f"""RULE begin
CLASS org.apache.rocketmq.broker.BrokerStartup
METHOD main
AT ENTRY
IF TRUE
DO openTrace("steps", System.getProperty("{FILE_PROPERTY}"))
ENDRULE
"""
_NAMED_THREAD: Final = (
    'Thread.currentThread().getId() + (Thread.currentThread().getName().endsWith("ReputMessageService") ? "d" : '
    '(Thread.currentThread().getName().endsWith("PullRequestHoldService") ? "s" : ""))'
)


def tracing_of(version: str, *, delayed_percent: int = 0, seed: int = 0) -> str:
    """Return the Byteman script that traces a broker of a version.

    The script delays `delayed_percent` of the arrivals at each breakpoint, which are drawn from the seed.
    """
    gates = {gate.name: gate for gate in breakpoints_of(version)}
    return _BEGIN + "".join(_rules((gates[name] for name in TRACED), delayed_percent, seed))


def _delay(gate: Breakpoint, percent: int, seed: int) -> tuple[str, str]:
    """Return Java expressions that count arrivals at a breakpoint, and delay some of them depending on the seed."""
    if not percent:
        return "", ""
    start = zlib.crc32(f"{gate.name} {seed}".encode()) % _PRIME
    drawn = f"((number % {_PRIME}) * 7919 + {start}) % {_PRIME}"
    count = f'number:int = incrementCounter("{gate.name}");\n     drawn:int = {drawn};\n     '
    return count, f"; delay(drawn % 100 < {percent} ? 1 + drawn % {DELAYED_MS_MAX} : 0)"


def _rules(gates: Iterable[Breakpoint], percent: int, seed: int) -> Iterable[str]:
    for gate in gates:
        count, delay = _delay(gate, percent, seed)
        told = [gate.told.get(name, '"-"') for name in ("topic", "queue", "request", "suspends")]
        words = ' + " " + '.join([f'"{gate.name}"', _NAMED_THREAD, "at", *told])
        held = (
            f"held:org.apache.rocketmq.broker.longpolling.PullRequest = {gate.request};\n     " if gate.request else ""
        )
        yield (
            f"RULE {gate.name}\nCLASS {gate.class_name}\nMETHOD {gate.method}\n{gate.place}\n"
            f'BIND {held}{count}at:long = System.nanoTime()\nIF TRUE\nDO traceln("steps", {words}){delay}\nENDRULE\n'
        )


CHECK_S: Final = 120.0
COMPLAINT: Final = re.compile(r'^(?:ERROR|WARNING) : (.*rule "([^"]*)".*)$', re.MULTILINE)
CLEAN: Final = "TestScript: no errors"


def refused_rule(jars: Jars, script: Path) -> str:
    """Return the name of the first rule in a script that does not fit the jars; empty if all rules fit.

    Raises JavaUnavailableError if the output of Byteman's checker is unclear.
    """
    command = ["java", "-cp", f"{jars.byteman}:{jars.class_path}", "org.jboss.byteman.check.TestScript", str(script)]
    try:
        done = subprocess.run(  # noqa: S603 - Java, with our own file
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise JavaUnavailableError(f"Byteman did not check its rules within {CHECK_S:g} s") from None
    except OSError as error:
        raise JavaUnavailableError(f"cannot run java: {error.strerror}; install a JDK") from error
    said = done.stdout + done.stderr
    if complaint := COMPLAINT.search(said):
        return complaint[2]
    if CLEAN not in said:
        raise JavaUnavailableError(f"Byteman's checker gave no result: {' '.join(said.split())[-300:]}")
    return ""
