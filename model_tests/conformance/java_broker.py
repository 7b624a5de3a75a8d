"""The real Java broker and name server from Maven: resolved once, started on free ports, ended by process id.

Source of the settings: `BrokerStartup.java`, `NamesrvStartup.java`, `BrokerController.java` of 4.9 and 5.5.
"""

from __future__ import annotations

import atexit
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from attrs import frozen

from longpoll_java.broker import LOGBACK, OPENED
from longpoll_java.jars import POM, one_maven

VERSIONS: Final = ("4.9.7", "5.5.0")
RESOLVE_S: Final = 300.0
END_S: Final = 240.0
PORT_FIRST: Final = 12_000
"""The lowest port to use; the default ports of brokers and name servers are below it."""
PORT_END: Final = 60_000
NEVER_BUSY: Final = "brokerFastFailureEnable=false\nosPageCacheBusyTimeOutMills=600000\n"
"""Settings that disable "busy" refusals, which a shared machine could cause at any time."""
JVM: Final = ("-Xms256m", "-XX:+UseG1GC", *OPENED)
DEPENDENCY: Final = """
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""


_RESOLVED: Final[dict[tuple[str, ...], str]] = {}


class JavaUnavailableError(Exception):
    """The Java broker is not available here; the message gives the reason."""


@frozen
class JavaBroker:
    address: tuple[str, int]
    name_server: tuple[str, int]
    log_directory: Path
    process_id: int
    name_server_process_id: int


def why_missing() -> str | None:
    """The reason why Java or its jars are missing, or None."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    return f"no {' and no '.join(missing)} on PATH" if missing else None


def resolve(directory: Path, version: str = VERSIONS[0], artifacts: Sequence[str] = ("namesrv", "broker")) -> str:
    """The class path of name server and broker, or of other artifacts, from Maven; raises JavaUnavailableError."""
    return resolve_artifacts(directory, *(f"org.apache.rocketmq:rocketmq-{each}:{version}" for each in artifacts))


def resolve_artifacts(directory: Path, *artifacts: str) -> str:
    """The class path of artifacts, each GROUP:NAME:VERSION, resolved by Maven; raises JavaUnavailableError."""
    if artifacts not in _RESOLVED:
        _RESOLVED[artifacts] = _resolve(directory, artifacts)
    return _RESOLVED[artifacts]


def _resolve(directory: Path, artifacts: Sequence[str]) -> str:
    missing = why_missing()
    if missing is not None:
        raise JavaUnavailableError(missing)
    dependencies = "".join(DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
    (directory / "pom.xml").write_text(POM.format(dependencies=dependencies))
    found = directory / "class-path.txt"
    command = ["mvn", "-q", "-B", "-f", str(directory / "pom.xml"), "dependency:build-classpath"]
    try:
        with one_maven():
            done = subprocess.run(
                [*command, f"-Dmdep.outputFile={found}"], capture_output=True, text=True, timeout=RESOLVE_S, check=False
            )
    except subprocess.TimeoutExpired:
        raise JavaUnavailableError(f"Maven did not resolve {artifacts[0]} within {RESOLVE_S:g} s") from None
    if done.returncode or not found.exists():
        raise JavaUnavailableError(f"Maven cannot resolve {artifacts[0]}: {done.stdout[-500:]}")
    return found.read_text().strip()


# A killed pytest worker cannot end its brokers, so the kernel kills them when their parent dies.
ENDS_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


def configure(home: Path, broker: int, name_server: int, settings: str = "") -> None:
    """Write the settings of a name server and a broker on these ports.

    `settings` has more lines for `broker.conf`, which override the default lines.
    """
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for part in ("broker", "namesrv", "tools"):
        (home / "conf" / f"logback_{part}.xml").write_text(LOGBACK.format(file=home / f"{part}.log"))
    (home / "namesrv.conf").write_text(f"listenPort={name_server}\n")
    (home / "broker.conf").write_text(
        "brokerClusterName=DefaultCluster\nbrokerName=java-broker\nbrokerId=0\nbrokerIP1=127.0.0.1\n"
        f"namesrvAddr=127.0.0.1:{name_server}\nlistenPort={broker}\nstorePathRootDir={home}/store\n"
        f"storePathCommitLog={home}/store/commitlog\nautoCreateTopicEnable=true\nautoCreateSubscriptionGroup=true\n"
        f"diskMaxUsedSpaceRatio=95\nmappedFileSizeCommitLog=104857600\nmaxIndexNum=1000\nmaxHashSlotNum=4000\n"
        f"{NEVER_BUSY}{settings}\n"
    )


@contextmanager
def running(
    class_path: str, home: Path, *, heap: str = "512m", settings: str = "", before: JavaBroker | None = None
) -> Iterator[JavaBroker]:
    """Runs name server and broker in `home` during the block; `heap` is the `-Xmx` of each of these two processes.

    An existing store in `home` is opened. `settings` has more lines for `broker.conf`, which override the default
    lines. If `before` is given, the new broker uses the ports of that earlier broker.
    """
    if before is None:
        name_server, broker = free_port(()), free_port((-2, 1))
    else:
        name_server, broker = before.name_server[1], before.address[1]
    configure(home, broker, name_server, settings)
    java = (
        *ENDS_WITH_US,
        "java",
        f"-Xmx{heap}",
        *JVM,
        f"-Drocketmq.home.dir={home}",
        f"-Duser.home={home}",
        "-cp",
        class_path,
    )
    with (
        _running(java, home, "namesrv.NamesrvStartup", "namesrv.conf", name_server) as name_server_process_id,
        _running(java, home, "broker.BrokerStartup", "broker.conf", broker) as process_id,
    ):
        addresses = ("127.0.0.1", broker), ("127.0.0.1", name_server)
        yield JavaBroker(*addresses, home, process_id, name_server_process_id)


@contextmanager
def _running(java: Sequence[str], home: Path, main: str, conf: str, port: int) -> Iterator[int]:
    command = [*java, f"org.apache.rocketmq.{main}", "-c", str(home / conf)]
    with listening(command, home, main, port) as process_id:
        yield process_id


@contextmanager
def listening(command: Sequence[str], home: Path, main: str, port: int) -> Iterator[int]:
    """Run a process, and wait until it listens; yields its process id."""
    with (home / f"{main}.out").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=home)
    try:
        while not listens(port):
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            said = (home / f"{main}.out").read_text(errors="replace")[-1000:]
            assert process.poll() is None, f"{main} ended with {process.returncode}: {said}"
        yield process.pid
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process and wait, because a killed broker would leave its store and its routes as after a crash.

    A broker of 5.5 takes up to 16 s to stop on a busy machine. Raises TimeoutExpired, and kills the process, if it does
    not stop in time.
    """
    process.terminate()
    try:
        process.wait(END_S)
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True


_HELD: Final = ExitStack()
"""Bound sockets that never listen; they reserve their ports for this process."""
atexit.register(_HELD.close)


def free_port(beside: tuple[int, ...]) -> int:
    """Return a port that is free and whose neighbours at the distances in `beside` are free.

    A broker listens on three ports. The port stays reserved for this process. The port is below the system's range for
    outgoing connections, because an outgoing connection could take the port before Java binds it.
    """
    range_first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    ports = range(PORT_FIRST, range_first - 1) or range(PORT_FIRST, PORT_END)
    while True:
        port = random.choice(ports)
        with ExitStack() as held:
            try:
                for distance in (0, *beside):
                    bound = held.enter_context(socket.socket())
                    bound.bind(("127.0.0.1", port + distance))
                    # The option is set after the bind, so that a server may listen on the port but no second call gets
                    # it.
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except OSError:
                continue
            _HELD.enter_context(held.pop_all())
            return port
