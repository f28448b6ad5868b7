"""The process that runs the task: `python -m consortium.site.child`, started by `workshop`.

It is given the task, its libraries and the site's records, and shuts itself in before it
loads any of them: see `isolation`. First of all it tells its parent what is in force, so that
a site which demands it can refuse. It ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

from consortium.site.isolation import kernel
from consortium.site.isolation.cell import read_cell
from consortium.site.isolation.enter import enter

# Of glibc's mallopt: keep what large arrays have used for the next ones, instead of giving it
# back and having every page zeroed again.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _KEPT_BYTES = -1, -3, 1 << 28


def main() -> None:
    handle, parent, cell = int(sys.argv[1]), int(sys.argv[2]), read_cell(sys.argv[3])
    kernel.die_with_parent()  # elsewhere than on Linux, `serving` notices
    if os.getppid() != parent:
        return  # it was gone before we asked to go with it
    held = enter(cell, [handle])
    with suppress(OSError, AttributeError):
        system = ctypes.CDLL(None)
        system.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        system.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
    sys.dont_write_bytecode = True  # the task's folder has the task's files and nothing else

    # Only now: libraries for numbers start threads, which would stay outside.
    from multiprocessing.connection import Connection

    from consortium.site import jobs as j
    from consortium.site.serving import serve

    pipe = Connection(handle)
    pipe.send_bytes(j.written(j.Confined(has=sorted(held.has), why=held.why)))
    serve(pipe)


if __name__ == "__main__":
    main()
