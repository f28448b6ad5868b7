"""Where the software lies that any task needs: Python, its libraries, and the system's."""

from __future__ import annotations

import os
import sys
from glob import glob

_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/gnu/store",
    "/opt/rocm*",
    "/opt/intel",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/OpenCL",
    "/sys/devices/system",  # how many processors there are, and of which kind
    "/sys/bus/pci",  # which GPUs
    "/sys/devices/pci*",
    "/sys/class/kfd",
)
_LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH")


def software() -> tuple[str, ...]:
    """Files and folders to be read, as this process knows them. It was started as the task's
    process is, so that no folder of the agent's is among them."""
    paths = [path for pattern in _SYSTEM for path in sorted(glob(pattern))]
    paths += [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *sys.path]
    paths += [part for name in _LISTS for part in os.environ.get(name, "").split(":")]
    found = {path for path in paths if os.path.isabs(path) and os.path.exists(path)}
    return tuple(sorted(found - {"/"}))
