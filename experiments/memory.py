"""What a long launch no longer needs, given back between its parts. Of use on Linux; harmless elsewhere."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import jax

STATUS, MAPS = Path("/proc/self/status"), Path("/proc/self/maps")
MOST_MAPS = Path("/proc/sys/vm/max_map_count")
MOST_GROWTH = 2**29  # bytes that a launch may grow by before its compiled programs are dropped,
ALWAYS_KEPT = 5 * 2**28  # and bytes in all, so that one of small models keeps its own


def anonymous() -> int:
    """Bytes this process holds, mapped files left out; 0 where the system does not say."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def give_back(at_start: int) -> None:
    """Freed memory to the system, and compiled programs where they hold much.

    ``at_start`` is what :func:`anonymous` was then.
    """
    trim()
    if anonymous() > max(at_start + MOST_GROWTH, ALWAYS_KEPT) or share_of_maps() > 0.4:
        jax.clear_caches()  # what is needed again is read from the disk cache
        gc.collect()
        trim()


def share_of_maps() -> float:
    """How many of the memory maps that a process may have are taken, 0 to 1.

    A compiled program takes hundreds of 65,530; where they run out, XLA ends the process.
    """
    if not (MAPS.exists() and MOST_MAPS.exists()):
        return 0.0
    return len(MAPS.read_bytes().splitlines()) / int(MOST_MAPS.read_text())


def trim() -> None:
    """Freed memory to the system: hundreds of megabytes after a program of SmolLM2 was read and run once."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library
        return
