"""Binary units of sizes, in bytes."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
