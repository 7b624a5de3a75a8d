"""Finds the jars of a Java broker and of Byteman: in a directory, or with Maven, which caches them.

A version without a tested table of breakpoints is refused, because the agent would skip rules that do not fit, and a
replay would show nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen

from longpoll_java.errors import JavaUnavailableError

VERSIONS: Final = ("4.9.7", "5.4.0", "5.5.0")
"""The versions of RocketMQ with a tested table of breakpoints."""
JAVA: Final = "java-"
NAMES: Final = tuple(f"{JAVA}{version}" for version in VERSIONS)
BYTEMAN: Final = "4.0.24"
NEEDS: Final = "a JDK (11 or later), and Maven unless --jars names a folder with the broker's jars"
FOLDER: Final = "name the folder `lib` of a RocketMQ distribution"
RESOLVE_S: Final = 600.0
POM: Final = """<?xml version="1.0" encoding="UTF-8"?>
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>longpoll</groupId>
  <artifactId>java-broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
_DEPENDENCY: Final = """    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
      <exclusions><exclusion><groupId>com.sun</groupId><artifactId>tools</artifactId></exclusion></exclusions>
    </dependency>
"""
_PROPERTIES: Final = "META-INF/maven/org.apache.rocketmq/rocketmq-broker/pom.properties"


@frozen
class Jars:
    """The jars that start a Java broker."""

    version: str
    class_path: str
    byteman: str
    as_published: bool = True
    """Whether the jars came from Maven. Jars in a directory may have been modified."""


def pom_of(version: str, artifacts: tuple[str, ...] = ("broker",)) -> str:
    """Return a Maven project file that depends on the broker and on Byteman."""
    wanted = [("org.apache.rocketmq", f"rocketmq-{artifact}", version) for artifact in artifacts]
    wanted.append(("org.jboss.byteman", "byteman", BYTEMAN))
    return POM.format(
        dependencies="".join(_DEPENDENCY.format(group=group, artifact=name, version=of) for group, name, of in wanted)
    )


def chosen(name: str | None, folder: Path | None) -> Jars:
    """Return the jars of a version, such as `java-4.9.7`, from a directory or by default from Maven.

    Raises JavaUnavailableError, also if the directory's jars are of another version.
    """
    if folder is None:
        return resolved((name or "").removeprefix(JAVA))
    found = in_folder(folder)
    if name not in {None, f"{JAVA}{found.version}"}:
        raise JavaUnavailableError(
            f"{folder} has the jars of {found.version}: use --on {JAVA}{found.version}, or name another folder"
        )
    return found


def resolved(version: str) -> Jars:
    """Return the jars of a version, which Maven downloads at the first call.

    Raises JavaUnavailableError if the version has no breakpoints here, Java or Maven is missing, or the download fails.
    """
    _refuse_unknown(version)
    _need("java", f"install {NEEDS}")
    home = _cache() / f"java-{version}"
    found = home / "class-path.txt"
    paths = found.read_text().strip().split(os.pathsep) if found.exists() else []
    if not paths or not all(Path(path).exists() for path in paths):
        _need("mvn", f"install Maven, or name a folder with --jars: {FOLDER}")
        paths = _resolve(home, found, version)
    byteman = next((path for path in paths if Path(path).name.startswith("byteman-")), "")
    return Jars(version, os.pathsep.join(path for path in paths if path != byteman), byteman)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "longpoll"


@contextmanager
def one_maven() -> Iterator[None]:
    """Wait until no other longpoll process runs Maven, because Maven 3 cannot share its repository; raises OSError."""
    home = _cache()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "maven.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve(home: Path, found: Path, version: str) -> list[str]:
    fresh = home / f"class-path.{os.getpid()}.txt"
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(pom_of(version))
        command = ["mvn", "-q", "-B", "-f", str(home / "pom.xml"), "dependency:build-classpath"]
        with one_maven():
            done = subprocess.run(  # noqa: S603 - Maven, with a file that we have written
                [*command, f"-Dmdep.outputFile={fresh}"], capture_output=True, text=True, timeout=RESOLVE_S, check=False
            )
        if done.returncode or not fresh.exists():
            said = " ".join(done.stdout.split())[-300:]
            raise JavaUnavailableError(
                f"Maven cannot resolve the jars of {version}: check its network and settings, or use --jars: {said}"
            )
        fresh.replace(found)
        return found.read_text().strip().split(os.pathsep)
    except subprocess.TimeoutExpired:
        raise JavaUnavailableError(
            f"Maven did not resolve the jars of {version} in {RESOLVE_S:g} s: check its network, or use --jars"
        ) from None
    except OSError as error:
        raise JavaUnavailableError(
            f"cannot write the paths of the jars into {home}: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from error


def in_folder(folder: Path) -> Jars:
    """Return the jars in a directory, such as `lib` of RocketMQ's distribution; Byteman may come from Maven.

    Raises JavaUnavailableError.
    """
    _need("java", "install a JDK (11 or later)")
    if not folder.is_dir():
        raise JavaUnavailableError(f"{folder} is not a folder: {FOLDER}")
    jars = sorted(folder.glob("*.jar"))
    brokers = [jar for jar in jars if jar.name.startswith("rocketmq-broker-")]
    if len(brokers) != 1:
        said = "no" if not brokers else f"{len(brokers)} of"
        raise JavaUnavailableError(f"{folder} has {said} rocketmq-broker-*.jar: {FOLDER}")
    version = _version_of(brokers[0])
    _refuse_unknown(version)
    byteman = next((jar for jar in jars if jar.name.startswith("byteman-")), None)
    path = str(byteman) if byteman is not None else resolved(version).byteman
    return Jars(version, os.pathsep.join(str(jar) for jar in jars if jar != byteman), path, as_published=False)


def _version_of(jar: Path) -> str:
    try:
        with zipfile.ZipFile(jar) as content:
            lines = content.read(_PROPERTIES).decode("utf-8", "replace").splitlines()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise JavaUnavailableError(f"{jar} has no version: it is not a published jar of RocketMQ; {FOLDER}") from error
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("version=")), "")


def _refuse_unknown(version: str) -> None:
    if version not in VERSIONS:
        raise JavaUnavailableError(
            f"the breakpoints for {version or 'this version'} are not known: use one of {', '.join(VERSIONS)}"
        )


def _need(program: str, otherwise: str) -> None:
    if shutil.which(program) is None:
        raise JavaUnavailableError(f"there is no {program} on PATH: {otherwise}")
