"""Lists and reads the files of a history, which are in a local directory or in any storage with a URI.

    s3://bucket/history?endpoint_override=127.0.0.1:9000&scheme=http    opened by `pyarrow.fs`
    s3a://bucket/history                                                the same storage, as Spark names it
    webhdfs://namenode:9870/history                                     opened by fsspec, if installed

Options of a URI follow a question mark. The URI of every file in a directory has the directory's options, so a worker
on another host needs only the file's URI. `source` decides which files belong to a history.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import pyarrow as pa
from attrs import frozen

from longpoll_judge.errors import HistoryNotFoundError
from longpoll_judge.read.schema import filesystems

READ_AHEAD_BYTES: Final = 1 << 20
"""The minimum number of bytes that are requested from a remote file at once."""
BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark that some shells and editors write before UTF-8 text."""
ENTRIES_MAX: Final = 1_000_000
"""The maximum number of files of a remote directory."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SAME: Final = {"s3a": "s3", "s3n": "s3"}
"""Maps Hadoop's URI schemes to Arrow's names for the same storage."""
_OF_ARROW: Final = frozenset({"s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"})


@frozen
class Stamp:
    """The size and times of a file. A file whose stamp is equal has not changed; `touch` changes the stamp too."""

    size: int
    changed_ns: int = 0
    number: int = 0


@frozen
class Entry:
    """A file of a directory."""

    path: str
    """The path or URI of the file; a URI has the directory's options."""
    size: int
    is_file: bool
    changed_ns: int = 0
    """When the content last changed, according to the file system; 0 if unknown."""
    number: int = 0
    """The inode number of a local file. A file that replaces another file has a different number."""

    @property
    def stamp(self) -> Stamp:
        """A value that changes when the file is written or replaced."""
        return Stamp(self.size, self.changed_ns, self.number)


def is_uri(text: str) -> bool:
    """Return whether a name is a URI, which includes `file://`."""
    return _SCHEME.match(text) is not None


def absolute(place: str | Path) -> str:
    """Returns the unique name of a directory or file: an absolute path, or a URI without a slash at its end.

    Raises `HistoryNotFoundError` if a URI contains a password, because findings and gaps would show it.
    """
    text = str(place)
    if not is_uri(text):
        return str(Path(place).resolve())
    parts = urlsplit(text)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)).resolve())
    if parts.password is not None or "secret" in parts.query.lower():
        host = parts.netloc.rpartition("@")[2]
        raise HistoryNotFoundError(
            f"{parts.scheme}://{host}{parts.path}: do not put a password into the address, where others can "
            "see it; set environment variables instead, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3"
        )
    return urlunsplit(parts._replace(path=parts.path.rstrip("/")))


def name_of(path: str) -> str:
    """Returns the last part of a path or URI, without options."""
    return path.partition("?")[0].rpartition("/")[2] if is_uri(path) else Path(path).name


def beside(directory: str, name: str) -> str:
    """Returns the path of the file `name` in a directory; the result is a URI if the directory is a URI."""
    if not is_uri(directory):
        return str(Path(directory) / name)
    parts = urlsplit(directory)
    return urlunsplit(parts._replace(path=f"{parts.path}/{name}"))


def is_directory(directory: str) -> bool:
    """Return whether a path is a directory. In an object store, every prefix of an object's name is a directory."""
    if not is_uri(directory):
        return Path(directory).is_dir()
    system, path = _opened(directory)
    with _told(directory):
        if system.get_file_info(path).type == filesystems.FileType.Directory:
            return True
        return bool(_below(system, path))


def entries(directory: str, pattern: str) -> list[Entry]:
    """Returns the files directly in a directory whose names match the pattern, sorted by name."""
    if not is_uri(directory):
        return _local_entries(directory, pattern)
    system, path = _opened(directory)
    with _told(directory):
        found = [info for info in _below(system, path) if fnmatchcase(info.base_name, pattern)]
    return [
        _elsewhere(beside(directory, info.base_name), info)
        for info in sorted(found, key=lambda info: str(info.base_name))
    ]


def first_within(directory: str, suffixes: tuple[str, ...], but_beside: str) -> str | None:
    """Return a file with one of these suffixes in a directory, at any depth; None if not found.

    Names that begin with a dot or an underscore are skipped, and so is a directory that contains a file named
    `but_beside`. The search stops at the first match. Raises OSError if a directory cannot be listed.
    """
    waiting = _directories(directory)
    while waiting:
        within = waiting.pop(0)
        if entry(beside(within, but_beside)) is not None:
            continue
        seen = [each.path for each in entries(within, "*") if each.is_file and _is_data(name_of(each.path))]
        found = next((path for path in seen if name_of(path).endswith(suffixes)), None)
        if found is not None:
            return found
        waiting = [*_directories(within), *waiting]
    return None


def _directories(directory: str) -> list[str]:
    """Returns the directories directly in a directory that contain data, sorted by name."""
    if is_uri(directory):
        system, path = _opened(directory)
        with _told(directory):
            kind = filesystems.FileType.Directory
            names = [str(info.base_name) for info in _below(system, path) if info.type == kind]
    else:
        try:
            with os.scandir(directory) as listed:
                names = [each.name for each in listed if each.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []  # The file was deleted after it was listed.
    return [beside(directory, name) for name in sorted(names) if _is_data(name)]


def _is_data(name: str) -> bool:
    return not name.startswith((".", "_"))


def _elsewhere(path: str, info: Any) -> Entry:
    """Returns a remote file as an `Entry`. Arrow gives -1 or None for an unknown time."""
    changed_ns = max(info.mtime_ns or 0, 0)
    return Entry(path, info.size or 0, info.type == filesystems.FileType.File, changed_ns)


def _local_entries(directory: str, pattern: str) -> list[Entry]:
    """Do the work of `entries` for a local path, fast because `follow` lists thousands of files twice a second."""
    try:
        with os.scandir(directory) as listed:
            found = sorted((each for each in listed if fnmatchcase(each.name, pattern)), key=lambda each: each.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    whole = [(str(Path(directory) / each.name), each.stat() if each.is_file() else None) for each in found]
    return [_here(path, seen) for path, seen in whole]


def _here(path: str, seen: os.stat_result | None) -> Entry:
    """Returns a local file as an `Entry`. If the path is not a regular file, the size is 0."""
    return Entry(path, seen.st_size, True, seen.st_mtime_ns, seen.st_ino) if seen else Entry(path, 0, False)


def entry(path: str) -> Entry | None:
    """Returns the file at this path; None if it does not exist."""
    if not is_uri(path):
        file = Path(path)
        return _here(path, file.stat() if file.is_file() else None) if file.exists() else None
    system, within = _opened(path)
    with _told(path):
        info = system.get_file_info(within)
    if info.type == filesystems.FileType.NotFound:
        return None
    return _elsewhere(path, info)


def open_file(path: str) -> BinaryIO:
    """Open a file for reading at any position; raises OSError."""
    if not is_uri(path):
        return Path(path).open("rb")
    system, within = _opened(path)
    # Arrow's files have read and seek, but its type stubs do not declare them.
    return io.BufferedReader(system.open_input_file(within), READ_AHEAD_BYTES)


def read(path: str) -> bytes:
    """Return the content of a small file; raises OSError."""
    with open_file(path) as file:
        return file.read()


def write(path: str, content: bytes) -> None:
    """Write a small file, and create its directory if needed; raises OSError."""
    if not is_uri(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
        return
    system, within = _opened(path)
    with system.open_output_stream(within) as sink:
        sink.write(content)


def remove(directory: str) -> None:
    """Remove a directory with all its contents; raises OSError."""
    if not is_uri(directory):
        shutil.rmtree(directory)
        return
    system, within = _opened(directory)
    system.delete_dir(within)


def to_arrow(path: str) -> Any:
    """Returns an input for Arrow's readers: a local path, which Arrow may map into memory, or an open file."""
    if not is_uri(path):
        return path
    system, within = _opened(path)
    return system.open_input_file(within)


def _below(system: Any, path: str) -> Sequence[Any]:
    found: Sequence[Any] = system.get_file_info(filesystems.FileSelector(path, allow_not_found=True))
    if len(found) > ENTRIES_MAX:
        raise HistoryNotFoundError(f"{path} has {len(found)} files; at most {ENTRIES_MAX} are allowed")
    return found


@contextmanager
def _told(place: str) -> Iterator[None]:
    """Turn the error of a storage service that refuses a request or does not respond into an error of one sentence."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise HistoryNotFoundError(f"{place} cannot be accessed: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _opened(uri: str) -> tuple[Any, str]:
    """Returns the file system of a URI, and the path in it; raises `HistoryNotFoundError`."""
    parts = urlsplit(uri)
    root = urlunsplit((_SAME.get(parts.scheme, parts.scheme), parts.netloc, "/", parts.query, ""))
    path = parts.path.strip("/")
    system, prefix = _file_system(root, uri.partition("?")[0])
    return system, f"{prefix}/{path}".rstrip("/") if prefix else f"/{path}"


@lru_cache(maxsize=64)
def _file_system(root: str, shown: str) -> tuple[Any, str]:
    """Returns the file system for this root, and the prefix of its paths: the name of a bucket, or an empty text."""
    scheme = urlsplit(root).scheme
    try:
        if scheme in _OF_ARROW:
            system, prefix = filesystems.FileSystem.from_uri(root)
            return system, prefix.strip("/")
        return _by_fsspec(root)
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        raise HistoryNotFoundError(
            f"{shown} cannot be opened: {first_line(error)}; name a directory, or a URI that pyarrow.fs or fsspec knows"
        ) from error


def _by_fsspec(root: str) -> tuple[Any, str]:
    # fsspec is not a dependency, because only users of such file systems need it.
    system, prefix = importlib.import_module("fsspec.core").url_to_fs(root)
    return filesystems.PyFileSystem(filesystems.FSSpecHandler(system)), prefix.strip("/")
