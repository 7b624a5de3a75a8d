"""The fast engine: it packs each state into 64-bit words and applies an action to an array of states at once.

Sorting successors dominates a search. NumPy's AVX-512 sort takes five times as long as its AVX2 sort on AMD's Zen 4,
which executes `vpcompressq` to memory in microcode. So on Zen 4 NumPy is imported without AVX-512, unless the process
has imported it before.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Final

DISABLED: Final = "NPY_DISABLE_CPU_FEATURES"
"""The environment variable from which NumPy, when it is imported, reads the CPU features to disable."""
AVX512: Final = "AVX512_SKX X86_V4"
"""The CPU feature that the AVX-512 sort needs: its name in NumPy up to 2.3, and its name since then. NumPy only warns
about an unknown name."""
ZEN_3_AND_4: Final = "25"
"""The CPU family of Zen 3 and Zen 4 processors; only Zen 4 has AVX-512."""


def sorts_slowly(cpu_info: str) -> bool:
    """Whether a processor, described as in `/proc/cpuinfo`, is a Zen 4."""
    found = dict(re.findall(r"^(vendor_id|cpu family|flags)\s*: (.*)$", cpu_info, re.MULTILINE))
    is_amd = found.get("vendor_id") == "AuthenticAMD" and found.get("cpu family") == ZEN_3_AND_4
    return is_amd and "avx512f" in found.get("flags", "").split()


def _import_numpy() -> None:
    cpu_info = Path("/proc/cpuinfo")
    if "numpy" in sys.modules or DISABLED in os.environ or not cpu_info.is_file():
        return
    if sorts_slowly(cpu_info.read_text()):
        os.environ[DISABLED] = AVX512
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # This version of NumPy knows only one of the names.
                import_module("numpy")
        finally:
            del os.environ[DISABLED]


_import_numpy()
