"""The real file layer does what the interface says, also when the system refuses."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from model_tests.support.faults import raising

from longpoll_runtime.files import RealFiles


def test_a_mapped_file_is_the_file(tmp_path: Path) -> None:
    """What is written through the view is in the file, before and after syncing; a made file is zeros and sparse."""
    path = tmp_path / "file"
    mapped = RealFiles().map(str(path), 1 << 20, writable=True, create=True)
    assert path.read_bytes() == bytes(1 << 20)
    assert path.stat().st_blocks * 512 < 1 << 20
    mapped.reserve(0, 8192)
    assert path.stat().st_blocks * 512 >= 8192
    mapped.view[5000:5004] = b"here"
    mapped.sync(5000, 5004)
    assert path.read_bytes()[5000:5004] == b"here"
    assert mapped.data_from(0) <= 5000
    assert mapped.data_from(500_000) == mapped.data_from(1 << 20) == 1 << 20
    mapped.clear_from(5002)
    assert bytes(mapped.view[5000:5004]) == b"he\0\0"
    assert path.stat().st_size == 1 << 20
    mapped.close()


def test_a_file_keeps_its_length_while_it_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in the middle of clearing leaves no file that is too short to be opened after a clean stop."""
    mapped = RealFiles().map(str(tmp_path / "file"), 8192, writable=True, create=True)
    mapped.view[:] = b"x" * 8192
    cut_short: list[int] = []
    truncate = os.ftruncate

    def cut(descriptor: int, size: int) -> None:
        cut_short.append(size)
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", cut)
    mapped.clear_from(5000)
    assert bytes(mapped.view) == b"x" * 5000 + bytes(3192)
    assert cut_short == []
    mapped.clear_from(8192)

    class NoHoles:
        def fallocate(self, *_: object) -> int:
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    monkeypatch.setattr("longpoll_runtime.files._LIBC", NoHoles())
    mapped.clear_from(100)
    assert bytes(mapped.view) == b"x" * 100 + bytes(8092)
    assert cut_short == [100, 8192]
    mapped.close()


def test_what_is_clear_is_not_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros and a hole stay as they are; one byte in the same page, or far behind it, and everything is cleared."""

    class Counting:
        calls = 0

        def fallocate(self, *arguments: int) -> int:
            self.calls += 1
            done: int = libc.fallocate(*arguments)
            return done

    libc, counting = ctypes.CDLL(None, use_errno=True), Counting()
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    mapped = RealFiles().map(str(tmp_path / "file"), 1 << 20, writable=True, create=True)
    mapped.view[:5000] = b"x" * 5000
    monkeypatch.setattr("longpoll_runtime.files._LIBC", counting)
    mapped.clear_from(5000)
    mapped.clear_from(8192)
    assert counting.calls == 0
    for place in (5000, 8191, 8192, (1 << 20) - 1):
        mapped.view[place] = 1
        mapped.clear_from(5000)
        assert bytes(mapped.view) == b"x" * 5000 + bytes((1 << 20) - 5000)
    assert counting.calls == 4
    monkeypatch.undo()
    mapped.close()


def test_a_slice_outlives_the_closing(tmp_path: Path) -> None:
    """A slice that is still in use when the file is closed stays readable; closing does not fail."""
    mapped = RealFiles().map(str(tmp_path / "file"), 4096, writable=True, create=True)
    mapped.view[:3] = b"abc"
    held = mapped.view[:3]
    mapped.close()
    assert bytes(held) == b"abc"


def test_maps_that_cannot_be(tmp_path: Path) -> None:
    """A missing file, another length, and writing to a read-only map are errors that name what is wrong."""
    files = RealFiles()
    with pytest.raises(FileNotFoundError):
        files.map(str(tmp_path / "none"), 10, writable=False)
    (tmp_path / "long").write_bytes(b"x" * 20)
    with pytest.raises(OSError, match="20 bytes, not 10"):
        files.map(str(tmp_path / "long"), 10, writable=True, create=True)
    read_only = files.map(str(tmp_path / "long"), 20, writable=False)
    with pytest.raises(TypeError):
        read_only.view[0] = 1
    read_only.close()
    (tmp_path / "empty").touch()
    empty = files.map(str(tmp_path / "empty"), 0, writable=False)
    assert len(empty.view) == 0
    empty.close()


def test_a_failed_sync_raises(tmp_path: Path) -> None:
    """A sync of memory that is not mapped is an OSError and not silence."""
    mapped = RealFiles().map(str(tmp_path / "file"), 4096, writable=True, create=True)
    mapped._address = 4096
    with pytest.raises(OSError, match="file") as raised:
        mapped.sync(0, 4096)
    assert raised.value.errno == errno.ENOMEM
    mapped.close()


def test_replacing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is replaced whole; when the disk is full the old bytes stay and nothing lies about."""
    files, path = RealFiles(), tmp_path / "file"
    files.write_atomic(str(path), b"old")
    assert files.read(str(path)) == b"old"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", raising(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            files.write_atomic(str(path), b"new")
    assert files.read(str(path)) == b"old"
    assert files.list(str(tmp_path)) == ["file"]


def test_appending(tmp_path: Path) -> None:
    """A file opened for appending grows, also after it was opened again."""
    files, path = RealFiles(), str(tmp_path / "file")
    for part in (b"one", b"two"):
        file = files.open_append(path)
        file.write(part)
        file.sync()
        file.close()
        file.close()
    assert (files.read(path), files.size(path)) == (b"onetwo", 6)


def test_directories(tmp_path: Path) -> None:
    """Directories are made with their parents, listed sorted, and what is gone is no error to remove."""
    files = RealFiles()
    files.make_directory(f"{tmp_path}/a/b")
    files.make_directory(f"{tmp_path}/a/b")
    files.sync_directory(f"{tmp_path}/a")
    for name in ("z", "y"):
        files.write_atomic(f"{tmp_path}/a/{name}", b"")
    assert files.list(f"{tmp_path}/a") == ["b", "y", "z"]
    assert files.list(f"{tmp_path}/none") == []
    files.remove(f"{tmp_path}/a/y")
    files.remove(f"{tmp_path}/a/y")
    assert (files.exists(f"{tmp_path}/a/y"), files.exists(f"{tmp_path}/a/z")) == (False, True)


def test_locks(tmp_path: Path) -> None:
    """A lock keeps others of this process out, under any name of the file, until it is given back."""
    files = RealFiles()
    (tmp_path / "other").symlink_to(tmp_path / "lock")
    unlock = files.lock(str(tmp_path / "lock"))
    for name in ("lock", "other"):
        with pytest.raises(BlockingIOError):
            RealFiles().lock(str(tmp_path / name))
    unlock()
    RealFiles().lock(str(tmp_path / "lock"))()


def test_many_files_raise_the_limit(tmp_path: Path) -> None:
    """When the soft limit of open files is met, it is raised to the hard one and mapping goes on."""
    script = (
        "import resource, sys\n"
        "from longpoll_runtime.files import RealFiles\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, int(sys.argv[2])))\n"
        "taken = [open(sys.executable) for _ in range(32 - 3)]\n"
        "held = RealFiles().map(f'{sys.argv[1]}/file', 10, writable=True, create=True)\n"
        "print(len(held.view))\n"
    )
    hard = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    arguments = [sys.executable, "-c", script, str(tmp_path)]
    raised = subprocess.run([*arguments, str(hard)], capture_output=True, text=True, check=False, timeout=60)
    assert raised.stdout == "10\n", raised.stderr
    kept = subprocess.run([*arguments, "32"], capture_output=True, text=True, check=False, timeout=60)
    assert "Too many open files" in kept.stderr


def test_a_mapped_file_keeps_no_descriptor(tmp_path: Path) -> None:
    """So a process may map more files than it may have open; closed and dropped, the memory is given back."""
    script = (
        "import os, resource, sys\n"
        "from longpoll_runtime.files import RealFiles\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "maps = lambda: open('/proc/self/maps').read().count(sys.argv[1])\n"
        "files = RealFiles()\n"
        "held = [files.map(f'{sys.argv[1]}/{n}', 10, writable=True, create=True) for n in range(64)]\n"
        "part = held[0].view[2:5]\n"
        "print(maps())\n"
        "for each in held: each.close()\n"
        "print(maps(), bytes(part))\n"
        "del part\n"
        "print(maps())\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path)]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "64\n1 b'\\x00\\x00\\x00'\n0\n", ended.stderr


def test_exists_raises_when_the_disk_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a store with a mark of its crash would open without recovery, and a table that is there would begin empty."""
    file = tmp_path / "file"
    file.touch()
    files = RealFiles()
    assert files.exists(str(file))
    assert not files.exists(str(tmp_path / "none"))
    assert not files.exists(str(file / "below"))

    def fail(path: str) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.exists(str(file))
