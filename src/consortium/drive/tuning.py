"""Settings of a process that does nothing but train.

Training asks for the same large pieces of memory at every step. The C library gives such
pieces back to the system when they are freed, and the system must clear them before it hands
them out again: with a small CNN a step then takes a thousand page faults, a tenth of its time
or more. A process that will ask again in a moment should keep them.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of glibc
_LARGEST_KEPT_BYTES = 32 << 20  # the most that glibc allows; larger pieces go back when freed
_KEPT_IN_ALL_BYTES = 512 << 20  # free memory at the end of the heap above this goes back


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for its next step; whether it could be set. It
    changes no result, only time, so elsewhere than on Linux with glibc nothing is done."""
    if sys.platform != "linux":
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if set_option is None:
        return False
    # One without the other is of no use: setting either stops glibc from learning the other.
    return bool(
        set_option(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        and set_option(_TRIM_THRESHOLD, _KEPT_IN_ALL_BYTES)
    )
