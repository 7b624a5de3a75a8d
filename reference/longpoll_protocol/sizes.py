"""Bytes by the thousand, as everybody counts them who writes to disks and sockets."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
