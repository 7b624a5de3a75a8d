"""Compresses message bodies for sends, and decompresses bodies up to a size limit (zlib, LZ4, Zstandard).

A message's system flag contains the compression:

| bits | value                                                                |
|------|----------------------------------------------------------------------|
| 0    | 1: the body is compressed                                            |
| 8-10 | method: 1 LZ4 (its frame format), 2 Zstandard, 3 or 0 zlib           |

LZ4 and Zstandard each need a package of the extra `compression`. `longpoll_client.produce.outgoing` decides when to
compress a body.

Source: `MessageSysFlag.java`, `CompressionType.java`, `ZlibCompressor.java`, `Lz4Compressor.java`,
`ZstdCompressor.java`, the same in 4.9.7 and 5.x.
"""

from __future__ import annotations

import enum
import importlib
import zlib
from typing import Any, Final

from longpoll_protocol.codes import MessageSysFlag
from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.frames import Buffer

LEVEL: Final = 5
"""The compression level for zlib and Zstandard, which is RocketMQ's default (`compressLevel`)."""
TYPE_SHIFT: Final = 8
TYPE_MASK: Final = 0x7
PIECE_SIZE: Final = 256 * 1024
"""Maximum bytes of output of one call of a decompressor."""
LZ4_PIECE_SIZE: Final = 4 * 1024
"""The bytes of LZ4 input per call. The number is low, because the library copies the input bytes after each frame's
end."""
ZSTD_PIECE_SIZE: Final = 256
"""The bytes of Zstandard input per call, which decompress to at most 8 MiB, because a block of 128 KiB takes at least 4
bytes."""

ZSTD_WINDOW_SIZE_MAX: Final = 1 << 27
"""Maximum bytes of Zstandard's window, which the library allocates. The library has the same limit; Java's streams
declare 2 MiB."""


class Compression(enum.IntEnum):
    """The method of compression, as in the system flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits in the system flag."""
        return MessageSysFlag.COMPRESSED | self << TYPE_SHIFT


_PACKAGES: Final = {Compression.LZ4: "lz4.frame", Compression.ZSTD: "zstandard"}


def check_installed(compression: Compression) -> None:
    """Raise LocalProtocolError, which names the package to install, if the package for the method is missing."""
    name = _PACKAGES.get(compression)
    if name is None:
        return
    try:
        importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise LocalProtocolError(
            f"{compression.name} needs the package {package}: pip install {package} (the extra 'compression' brings it)"
        ) from None


def pack(compression: Compression, body: bytes) -> bytes:
    """Compress a body; raises LocalProtocolError if the package for the method is missing."""
    check_installed(compression)
    match compression:
        case Compression.ZLIB:
            return zlib.compress(body, LEVEL)
        case Compression.LZ4:
            # Java's reader rejects linked blocks, which occur above 64 KiB.
            packed: bytes = _package(compression).compress(body, block_linked=False)
        case Compression.ZSTD:
            packed = _package(compression).ZstdCompressor(level=LEVEL).compress(body)
    return packed


def unpack(sys_flag: int, body: Buffer, size_max: int) -> bytes:
    """Decompress a body, if the system flag says that it is compressed.

    Raises RemoteProtocolError if the body does not match the flag or decompresses to more than `size_max` bytes, and
    LocalProtocolError if the package for the method is missing.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return bytes(body)
    kind = sys_flag >> TYPE_SHIFT & TYPE_MASK
    try:
        compression = Compression(kind or Compression.ZLIB)
    except ValueError:
        raise RemoteProtocolError(f"its compression type is unknown: {kind}") from None
    check_installed(compression)
    match compression:
        case Compression.ZLIB:
            return _unpack_zlib(body, size_max)
        case Compression.LZ4:
            return _unpack_lz4(body, size_max)
        case Compression.ZSTD:
            return _unpack_zstd(body, size_max)


def _package(compression: Compression) -> Any:
    return importlib.import_module(_PACKAGES[compression])


def _unpack_zlib(body: Buffer, size_max: int) -> bytes:
    """Decompress one stream, and ignore the bytes after it, as Java's reader does."""
    stream = zlib.decompressobj()
    try:
        unpacked = stream.decompress(body, size_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"it is not zlib: {error}") from None
    if not stream.eof or len(unpacked) > size_max:
        raise _unended(size_max)
    return unpacked


def _unpack_lz4(body: Buffer, size_max: int) -> bytes:
    package = _package(Compression.LZ4)
    unpacked = bytearray()
    frame = package.LZ4FrameDecompressor()
    for at in range(0, len(body), LZ4_PIECE_SIZE):
        rest: Buffer | None = body[at : at + LZ4_PIECE_SIZE]
        while rest:
            if frame.eof:
                frame = package.LZ4FrameDecompressor()
            is_asked = True
            while is_asked:
                try:
                    unpacked += frame.decompress(rest, PIECE_SIZE)
                except RuntimeError as error:
                    raise RemoteProtocolError(f"it is not LZ4: {error}") from None
                if len(unpacked) > size_max:
                    raise _unended(size_max)
                rest = b""
                is_asked = not (frame.eof or frame.needs_input)
            rest = frame.unused_data
    if not frame.eof:
        raise _unended(size_max)
    return bytes(unpacked)


def _unpack_zstd(body: Buffer, size_max: int) -> bytes:
    package = _package(Compression.ZSTD)
    unpacker = package.ZstdDecompressor(max_window_size=ZSTD_WINDOW_SIZE_MAX)
    unpacked = bytearray()
    frame = unpacker.decompressobj()
    for at in range(0, len(body), ZSTD_PIECE_SIZE):
        rest: Buffer = body[at : at + ZSTD_PIECE_SIZE]
        while rest:
            if frame.eof:
                frame = unpacker.decompressobj()
            try:
                unpacked += frame.decompress(rest)
            except package.ZstdError as error:
                raise RemoteProtocolError(f"it is not Zstandard: {error}") from None
            rest = frame.unused_data
            if len(unpacked) > size_max:
                raise _unended(size_max)
    if not frame.eof:
        raise _unended(size_max)
    return bytes(unpacked)


def _unended(size_max: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"it is cut short or unpacks to over {size_max} bytes")
