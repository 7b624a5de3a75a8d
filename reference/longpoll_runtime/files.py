"""The real file layer: mapped files with msync and fallocate, durable replacement of files, and locks.

A failure raises the OSError of the operating system.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import resource
import signal
import stat
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Final

from longpoll_runtime import Buffer, NotRegularError

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_UNMAP: Final = _LIBC.munmap
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_LIBC.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MS_SYNC: Final = 4
_MAP_FIXED: Final = 16
_LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
_NOT_KNOWN: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

FILE_MODE: Final = 0o600
"""The mode of new files, which keeps messages private. To share files use `chmod`: existing files and directories keep
their mode."""
DIRECTORY_MODE: Final = 0o700
MAPS_MAX_FILE: Final = "/proc/sys/vm/max_map_count"
MAPS_MAX_USUAL: Final = 65_530
SMALL_SIZE_MAX: Final = 32 * 1024 * 1024
"""Maximum bytes of a file that is mapped without read-ahead.

A store has many queue files, each used in few places. With read-ahead, the first write to a new queue file would make
the kernel fill a megabyte or two with zeros, which takes 1.6 ms instead of 8 us on ext4. The files of the log are
longer, and are read sequentially."""

# The locked files of this process, so that the error can say whether this or another process has locked a file.
_locked: Final[set[str]] = set()
_WHOLE_FILE: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""C's `struct flock` for a write lock of the whole file: type, whence, start, length (0 means to the end), no process.
"""
_locked_guard: Final = threading.Lock()


def _raise_descriptor_limit() -> bool:
    """Raise the soft limit of open files to the hard limit, because a store may have many queues.

    Returns whether the limit rose.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft != hard


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_SA_SIGINFO: Final = 4
_ADDRESS_AT: Final = 16
"""The offset of the faulting address in C's `siginfo_t`."""
_mapped_sizes: Final[dict[int, int]] = {}
"""Maps the address of each mapped file to its size in bytes."""
_cut: Final[set[int]] = set()
"""The addresses of mapped files that another program has truncated while they were in use."""
_previous: Final = _Action()
"""The handler of SIGBUS that was installed before `_use_zeros`."""


def _use_zeros(number: int, info: int, _context: int) -> None:
    """Map a page of zeros where a file was truncated, so that reads and writes continue; the file's next sync fails.

    Without this handler, SIGBUS would end the process. The kernel calls the handler on the thread that used the page,
    which may hold the interpreter lock.
    """
    address: int = ctypes.c_void_p.from_address(info + _ADDRESS_AT).value or 0
    start = next((start for start, size in list(_mapped_sizes.items()) if start <= address < start + size), None)
    if start is None:
        _LIBC.sigaction(number, ctypes.byref(_previous), None)
        return
    _cut.add(start)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    page = address - address % mmap.PAGESIZE
    _LIBC.mmap(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)


_USE_ZEROS: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_use_zeros)


@functools.cache
def _handle_cuts() -> None:
    action = _Action(handler=ctypes.cast(_USE_ZEROS, ctypes.c_void_p), flags=_SA_SIGINFO)
    _LIBC.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_previous))


def _unmap(address: int, size: int) -> None:
    _mapped_sizes.pop(address, None)
    _cut.discard(address)
    _UNMAP(address, size)


def _mapped_view(descriptor: int, size: int, path: str, *, writable: bool) -> tuple[memoryview, int]:
    """Map a file shared; returns its bytes and the address of the first byte. Raises OSError.

    This function does not use `mmap.mmap`, which would keep a descriptor per file that the kernel does not need. The
    memory is unmapped when the last slice of the view is released.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address: int | None = _LIBC.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _MAP_FAILED:
        code = ctypes.get_errno()
        why = os.strerror(code)
        if code == errno.ENOMEM:
            why += " or too many files are mapped (`sysctl vm.max_map_count`)"
        raise OSError(code, why, path)
    content = (ctypes.c_ubyte * size).from_address(address)
    _handle_cuts()
    _mapped_sizes[address] = size
    # The memory is unmapped after its last slice, because every slice references `content`. At the end of the process
    # the kernel unmaps the file.
    weakref.finalize(content, _unmap, address, size).atexit = False
    view = memoryview(content).cast("B")
    return (view if writable else view.toreadonly()), address


def _identity(found: os.stat_result) -> int:
    return found.st_dev << 64 | found.st_ino


class RealMappedFile:
    """One file of fixed length, mapped shared. Invariant: `view` is as long as the file, or released.

    The object keeps no descriptor, because a store has more files than a process may have open.
    """

    def __init__(self, path: str, size: int, *, writable: bool, descriptor: int) -> None:
        self._path = path
        self.identity = _identity(os.fstat(descriptor))
        self._writable = writable
        # An empty file cannot be mapped, but a truncated store may have one, and reading it must not fail.
        self.view, self._address = memoryview(b""), 0
        if size:
            self.view, self._address = _mapped_view(descriptor, size, path, writable=writable)
        if 0 < size <= SMALL_SIZE_MAX:
            # The call is only advice to the kernel, so an error does not matter.
            _LIBC.madvise(self._address, size, mmap.MADV_RANDOM)

    def reserve(self, start: int, stop: int) -> None:
        """Reserve disk blocks for bytes [start, stop); raises OSError if the disk is full."""
        # The file is opened each time, because a descriptor per file would exceed the limit of the process.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < len(self.view):
                raise self._was_cut()
            os.posix_fallocate(descriptor, start, stop - start)
        finally:
            os.close(descriptor)

    def clear_from(self, start: int) -> None:
        """Clear everything from `start` on, and free its disk blocks; the length stays the same.

        If nothing was written after `start`, this method does nothing, which makes opening a store with many queues
        much faster.
        """
        size = len(self.view)
        if start >= size or self._is_clear_from(start):
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _LIBC.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, size - start) != 0:
                code = ctypes.get_errno()
                if start < 0 or code not in _NOT_KNOWN:
                    raise OSError(code, os.strerror(code), self._path)
                # The file system cannot punch holes, so the file is truncated and extended. A kill between these steps
                # leaves a short file.
                os.ftruncate(descriptor, start)
                os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)

    def _is_clear_from(self, start: int) -> bool:
        """Whether the page of `start` has only zeros from `start` on, and a hole follows it."""
        if start < 0:
            return False
        page_stop = min(len(self.view), start + -start % mmap.PAGESIZE)
        page = bytes(self.view[start:page_stop])
        return page.count(0) == len(page) and self.data_from(page_stop) == len(self.view)

    def data_from(self, position: int) -> int:
        """Return the first position at or after `position` that is not in a hole, or the file's length."""
        if position >= len(self.view):
            return len(self.view)
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return len(self.view)
            # The file system does not support holes, so every position may have data.
            return position
        finally:
            os.close(descriptor)

    def sync(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) durable; other threads run meanwhile."""
        assert self._writable
        assert 0 <= start <= stop <= len(self.view)
        # ctypes calls msync here, because `mmap.flush` would hold the interpreter lock while the disk works.
        page_start = start - start % mmap.PAGESIZE
        if _LIBC.msync(self._address + page_start, stop - page_start, _MS_SYNC) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), self._path)
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self._path)
            if self._address in _cut or (_identity(found) == self.identity and found.st_size < len(self.view)):
                raise self._was_cut()

    def _was_cut(self) -> OSError:
        return OSError(errno.EIO, "the file was cut while it was in use; restore it and restart", self._path)

    def write_anew(self, start: int, stop: int) -> None:
        """Make the next sync write bytes [start, stop) again, by storing a byte of each page that is not all zeros."""
        view = self.view
        for at in range(start - start % mmap.PAGESIZE, stop, mmap.PAGESIZE):
            page = bytes(view[at : at + mmap.PAGESIZE])
            if page.count(0) < len(page):
                view[at] = page[0]

    def close(self) -> None:
        """Release the view; the memory is unmapped when the last slice of the view is released."""
        self._address = 0
        # A response that is being sent may still use a slice, which keeps the file mapped.
        with contextlib.suppress(BufferError):
            self.view.release()


class RealAppendFile:
    """A file that only grows, written without buffering."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, FILE_MODE)

    def reserve(self, size: int) -> None:
        """Reserve disk blocks for the next `size` bytes after the end; raises OSError if the disk is full."""
        stop = os.fstat(self._descriptor).st_size
        if _LIBC.fallocate(self._descriptor, _KEEP_SIZE, stop, size) != 0:
            code = ctypes.get_errno()
            if code not in _NOT_KNOWN:
                raise OSError(code, os.strerror(code))

    def write(self, content: Buffer) -> None:
        """Append all of the bytes."""
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def sync(self) -> None:
        """Make everything written durable."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file and release reserved blocks. A second call does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)
            os.close(self._descriptor)
            self._descriptor = -1


def _open_regular(path: str, flags: int) -> int:
    """Open a file without blocking on a FIFO; raises NotRegularError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        os.close(descriptor)
        raise NotRegularError(errno.EINVAL, "not a regular file; remove it or restore the file", path)
    return descriptor


class RealFiles:
    """The files of the operating system."""

    def map(self, path: str, size: int, *, writable: bool, create: bool = False) -> RealMappedFile:
        """Map a file of exactly `size` bytes; with `create`, create it or extend it with zeros."""
        try:
            return self._map(path, size, writable=writable, create=create)
        except OSError as error:
            if error.errno != errno.EMFILE or not _raise_descriptor_limit():
                raise
        return self._map(path, size, writable=writable, create=create)

    def _map(self, path: str, size: int, *, writable: bool, create: bool) -> RealMappedFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        descriptor = _open_regular(path, flags)
        try:
            found = os.fstat(descriptor).st_size
            if found < size and create:
                os.ftruncate(descriptor, size)
            elif found != size:
                raise OSError(errno.EINVAL, f"the file has {found} bytes, not {size}", path)
            return RealMappedFile(path, size, writable=writable, descriptor=descriptor)
        finally:
            os.close(descriptor)

    def maps_max(self) -> int:
        """Return the system's limit (`vm.max_map_count`), or the usual limit if it cannot be read."""
        try:
            return int(self.read(MAPS_MAX_FILE))
        except (OSError, ValueError):
            return MAPS_MAX_USUAL

    def read(self, path: str) -> bytes:
        """Read a file; raises NotRegularError for a FIFO or a device, which may never end."""
        with open(path, "rb", opener=_open_regular) as file:
            return file.read()

    def write_atomic(self, path: str, content: Buffer) -> None:
        """Replace the file durably: write a temporary file, sync, rename, sync the directory.

        The new file keeps the permissions of the old one, because it may hold secrets.
        """
        temporary = f"{path}.tmp"
        mode = os.stat(path).st_mode & 0o777 if self.exists(path) else None
        # Without O_NONBLOCK, opening a FIFO with this name would block until it has a reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(temporary, flags, FILE_MODE)
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError:
            os.close(descriptor)
            os.unlink(temporary)
            raise
        os.close(descriptor)
        os.replace(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def open_append(self, path: str) -> RealAppendFile:
        """Open a file for appending, creating it if needed."""
        return RealAppendFile(path)

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists; raises OSError if the disk does not answer."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        """Return the length in bytes; raises IsADirectoryError."""
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return found.st_size

    def identity(self, path: str) -> int:
        """Returns the file's inode and device."""
        return _identity(os.stat(path))

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; an empty list if the directory does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        # `makedirs` is not used, because it applies the mode to the last directory only.
        missing = [path]
        while (parent := os.path.dirname(missing[-1])) and not os.path.isdir(parent):
            missing.append(parent)
        for each in reversed(missing):
            try:
                os.mkdir(each, DIRECTORY_MODE)
            except FileExistsError:
                if not os.path.isdir(each):
                    raise

    def sync_directory(self, path: str) -> None:
        """Make the directory's names durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def changed_ms(self, path: str) -> int:
        """Returns the time of the last content change, wall-clock ms."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def used_ratio(self, path: str) -> float:
        """Returns the used share of the available space, in whole percents rounded up, as `df` and RocketMQ do."""
        disk = os.statvfs(path)
        used = disk.f_blocks - disk.f_bfree
        entire = used + disk.f_bavail
        return -(-used * 100 // entire) / 100 if entire else 1.0

    def space(self, path: str) -> tuple[int, int]:
        """Returns the disk's total and free bytes."""
        disk = os.statvfs(path)
        return disk.f_blocks * disk.f_frsize, disk.f_bfree * disk.f_frsize

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def lock(self, path: str) -> Callable[[], None]:
        """Lock a file against other processes and this one; raises BlockingIOError.

        The lock is a record lock of the open file description. This lock and the record locks of Java's
        `FileChannel.tryLock` exclude each other. A POSIX lock would end as soon as this process closes any descriptor
        of the file. The directory of the file is locked too, because a second broker must not start after the file was
        removed or moved.
        """
        real = os.path.realpath(path)
        with _locked_guard:
            if real in _locked:
                raise BlockingIOError(errno.EAGAIN, "locked by this process", path)
            with contextlib.ExitStack() as undo:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
                undo.callback(os.close, descriptor)
                directory = os.open(os.path.dirname(real), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                undo.callback(os.close, directory)
                try:
                    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if error.errno in (errno.EACCES, errno.EAGAIN):
                        raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from error
                    # Some file systems cannot lock a directory.
                    if error.errno != errno.EBADF:
                        raise
                _locked.add(real)
                undo.callback(_locked.discard, real)
                kept = undo.pop_all()

        def unlock() -> None:
            with _locked_guard:
                kept.close()

        return unlock
