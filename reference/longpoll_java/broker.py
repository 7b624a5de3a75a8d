"""Runs a Java broker with Byteman rules, on free local ports and in a temporary directory.

The broker is a master without a name server, or a slave of such a master that may act as master (5.x). 4.9 always
listens on all addresses, but only loopback is used.

Source of the settings: `BrokerStartup.java`, `BrokerController.java` of 4.9 and 5.5.
"""

from __future__ import annotations

import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from longpoll_java.breakpoints import Breakpoints
from longpoll_java.byteman_rules import PORT_PROPERTY, SCAN_MS, refused_rule, rules_of, scanning_each
from longpoll_java.errors import JavaUnavailableError
from longpoll_java.jars import Jars
from longpoll_spec.render.java_breakpoints import POP_GATES, RECHECK, breakpoints_of

PORTS: Final = range(12_000, 32_000)
"""The ports to choose from: below the ephemeral ports of the system, and above the default ports of brokers."""
START_S: Final = 90.0
BOOTED: Final = "boot success"
"""The text that `BrokerStartup` prints when everything is started."""
LOOK_S: Final = 0.05
TRIES: Final = 200
OPENED: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""The options of the Java runtime that a broker's store needs on a newer Java version."""
JVM: Final = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *OPENED)
LOGBACK: Final = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{file}</file>
    <encoder><pattern>%d %p %c - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""
# A breakpoint can hold a thread for longer than the 200 ms after which a Java broker refuses a send in its queue as
# busy, so the broker's fast failure is off.
_SETTINGS: Final = """brokerClusterName=DefaultCluster
brokerName=java-broker
brokerId={number}
brokerIP1=127.0.0.1
listenPort={port}
storePathRootDir={home}/store
storePathCommitLog={home}/store/commitlog
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
diskMaxUsedSpaceRatio=95
mappedFileSizeCommitLog=16777216
maxIndexNum=1000
maxHashSlotNum=4000
enableLmq={lmq}
enableMultiDispatch={lmq}
brokerFastFailureEnable=false
osPageCacheBusyTimeOutMills=600000
"""
_OF_A_SLAVE: Final = """brokerRole=SLAVE
slaveReadEnable=true
enableSlaveActingMaster=true
haMasterAddress={master}
"""
REFUSED: Final = "error type checking rule"
"""The text that Byteman prints when it first uses a rule that does not fit its class."""


class JavaBroker:
    """A running broker, whose threads stop at breakpoints and ask `stage` whether they may continue.

    Leaving the `with` block ends the broker. If it cannot start, the constructor raises JavaUnavailableError and leaves
    nothing behind.
    """

    def __init__(
        self,
        jars: Jars,
        stage: Breakpoints,
        *,
        lmq: bool = False,
        script: str | None = None,
        options: Sequence[str] = (),
        master: JavaBroker | None = None,
    ) -> None:
        """Start the broker, and wait until it listens.

        Args:
            jars: The broker's and Byteman's jars.
            stage: Decides at each breakpoint whether the broker's thread may continue.
            lmq: Whether the broker has light message queues.
            script: Byteman's rules. Default: a breakpoint at every location. With an empty text, no agent runs.
            options: More options for the Java runtime.
            master: The master that this broker copies and may replace; None if this broker is a master.
        """
        self.jars = jars
        self.stage = stage
        self.master = master
        with ExitStack() as undo:
            # The directory is removed even after Ctrl-C during the wait.
            self._folder = tempfile.TemporaryDirectory(prefix="longpoll-java-")
            undo.callback(self._folder.cleanup)
            self.home = Path(self._folder.name)
            self.address = ("127.0.0.1", _free_port())
            rules = rules_of(breakpoints_of(jars.version, lmq=lmq)) if script is None else script
            self._process = self._start(lmq, rules, options)
            undo.callback(self.end)
            self._await_start()
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def copied_from(self) -> tuple[str, int]:
        """The address from which slaves copy the log (`haListenPort`): the port after the broker's own port."""
        return self.address[0], self.address[1] + 1

    @property
    def sent_to(self) -> tuple[str, int]:
        """The address to which messages are sent, which is the master's address if this broker is a slave."""
        return self.address if self.master is None else self.master.address

    @property
    def is_running(self) -> bool:
        """Whether the broker's process is running."""
        return self._process.poll() is None

    @property
    def process_id(self) -> int:
        """The process id of the broker."""
        return self._process.pid

    def stop(self) -> None:
        """Ask the broker to stop, as an operator does. The broker stops only while `stage` answers its threads."""
        self._process.terminate()

    def end(self) -> None:
        """Kill the broker, which need not save anything, because its directory is deleted too."""
        self._process.kill()
        self._process.wait()
        self.stage.stops = lambda _arrival: False
        self.stage.let_go(lambda _arrival: True)
        self._folder.cleanup()

    @property
    def refused(self) -> str:
        """The first rule so far that Byteman could not use; empty if Byteman could use every rule."""
        lines = (self.home / "broker.out").read_text(errors="replace").splitlines()
        return next((line.partition(REFUSED)[2].strip() for line in lines if REFUSED in line), "")

    def said(self) -> str:
        """The end of the broker's output."""
        return (self.home / "broker.out").read_text(errors="replace")[-2_000:]

    def _start(self, lmq: bool, script: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
        home = self.home
        (home / "conf").mkdir()
        for part in ("broker", "namesrv", "tools"):
            (home / "conf" / f"logback_{part}.xml").write_text(LOGBACK.format(file=home / f"{part}.log"))
        copies = "" if self.master is None else "{}:{}".format(*self.master.copied_from)
        settings = settings_of(str(home), str(self.address[1]), lmq=lmq, copies=copies)
        (home / "broker.conf").write_text(settings, encoding="utf-8")
        (home / "gates.btm").write_text(script, encoding="utf-8")
        if script and not self.jars.as_published and (refused := refused_rule(self.jars, home / "gates.btm")):
            raise JavaUnavailableError(
                f"these jars differ from the published ones: the rule {refused} does not match them; remove --jars to "
                "use the published jars"
            )
        agent = [f"-javaagent:{self.jars.byteman}=script:{home / 'gates.btm'}"] if script else []
        command = [
            "java", *JVM, *options, *agent, f"-D{PORT_PROPERTY}={self.stage.port}", f"-Drocketmq.home.dir={home}",
            f"-Duser.home={home}", "-cp", self.jars.class_path, "org.apache.rocketmq.broker.BrokerStartup",
            "-c", str(home / "broker.conf"),
        ]  # fmt: skip
        with (home / "broker.out").open("wb") as output:
            try:
                return subprocess.Popen(  # noqa: S603 - Java, with our own files
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=home,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise JavaUnavailableError(f"cannot run java: {error.strerror}; install a JDK") from error

    def _await_start(self) -> None:
        end_s = time.monotonic() + START_S
        # Wait for the text as well, because another program may have taken the port since the check and may listen
        # there.
        while not (BOOTED in self.said() and _listens(self.address)):
            self.stage.until(lambda: False, LOOK_S)
            if not self.is_running:
                raise JavaUnavailableError(
                    f"the Java broker ended with {self._process.returncode}: {self.said()[-600:]}"
                )
            if time.monotonic() > end_s:
                raise JavaUnavailableError(f"the Java broker did not listen within {START_S:g} s: {self.said()[-600:]}")


def settings_of(home: str, port: str, *, lmq: bool, copies: str = "") -> str:
    """Return the text of a `broker.conf` for a broker in a directory, on a port; `lmq` enables light message queues.

    If `copies`, the address of a master's log, is given, the broker is a slave of that master.
    """
    plain = _SETTINGS.format(port=port, home=home, lmq=str(lmq).lower(), number=1 if copies else 0)
    return plain + (_OF_A_SLAVE.format(master=copies) if copies else "")


@contextmanager
def started(
    jars: Jars,
    stage: Breakpoints,
    *,
    lmq: bool = False,
    slave: bool = False,
    rechecks: bool = False,
    pops: bool = False,
    scan_ms: int = SCAN_MS,
) -> Iterator[JavaBroker]:
    """Run a broker inside the `with` block. A slave gets a master, whose threads never stop at breakpoints.

    `rechecks` adds a rule with the recheck of RocketMQ's pull request #7359, and `scan_ms` changes the period of the
    scan. `pops` selects the breakpoints of the table of pops.
    """
    gates = POP_GATES if pops else (*breakpoints_of(jars.version, lmq=lmq), *((RECHECK,) if rechecks else ()))
    script = rules_of(gates) + (scanning_each(scan_ms) if scan_ms != SCAN_MS else "")
    with ExitStack() as both:
        master = both.enter_context(JavaBroker(jars, stage, script="")) if slave else None
        yield both.enter_context(JavaBroker(jars, stage, lmq=lmq, script=script, master=master))


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 0.2).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    """Return a free port. The two other ports that a broker derives from this port are free too."""
    for _ in range(TRIES):
        port = random.choice(PORTS)
        try:
            for distance in (-2, 0, 1):
                socket.create_server(("127.0.0.1", port + distance)).close()
        except OSError:
            continue
        return port
    raise JavaUnavailableError("the Java broker needs three consecutive free ports, but none were found")
