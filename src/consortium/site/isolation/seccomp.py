"""A filter over the system calls of the task: no sockets to anywhere, and none of the calls
that break out of, or look into, other processes. It needs no privileges and no namespace.

https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable

from consortium.site.isolation import kernel

# name: (x86_64, aarch64); 0: there is no such call.
_REFUSED = {
    # Other views of the system: what holds here was arranged before the filter.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # The kernel itself, and ways around this filter.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "acct": (163, 89),
}
# Memory and messages between processes, where there is no namespace of its own for them.
_SHARED = {"shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180)}
_SOCKET, _CLONE, _CLONE3 = (41, 198), (56, 220), 435
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_X32 = 0x4000_0000  # calls of another kind on x86_64, with numbers of their own
_AF_UNIX = 1
_NAMESPACES = 0x7E02_0000  # every flag of clone that makes one

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_AT = 0, 4, 16  # in the kernel's struct seccomp_data
_ALLOW, _ERROR, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_MODE_FILTER, _SPEC_ALLOW = 1, 4


def restrict(*, may_have_sockets: bool, may_share: bool) -> None:
    """Put the filter on, for good. `may_have_sockets`: local ones, between processes of the
    task. The process must have no new privileges."""
    program = b"".join(_program(may_have_sockets, may_share))
    kept = ctypes.create_string_buffer(program)
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(kept))
    # SPEC_ALLOW: older kernels would else slow the whole process down.
    kernel.call(kernel.number("seccomp"), _MODE_FILTER, _SPEC_ALLOW, head)


def _program(may_have_sockets: bool, may_share: bool) -> Iterable[bytes]:
    column, architecture = _MACHINES[kernel.machine()]
    refused = dict(_REFUSED) if may_share else _REFUSED | _SHARED
    yield _step(_LOAD, _MACHINE_AT)
    yield from _unless(_EQUAL, architecture, _KILL)
    yield _step(_LOAD, _NUMBER_AT)
    if column == 0:
        yield from _if(_AT_LEAST, _X32, _KILL)
    for numbers in refused.values():
        yield from _if(_EQUAL, numbers[column], _ERROR | errno.EPERM)
    # Its flags lie in memory, where a filter cannot look: whoever calls it then uses clone.
    yield from _if(_EQUAL, _CLONE3, _ERROR | errno.ENOSYS)
    yield _step(_EQUAL, _CLONE[column], 0, 3)
    yield _step(_LOAD, _FIRST_AT)
    yield from _if(_ANY_BIT, _NAMESPACES, _ERROR | errno.EPERM)
    yield _step(_LOAD, _NUMBER_AT)
    yield _step(_EQUAL, _SOCKET[column], 0, 4)
    yield _step(_LOAD, _FIRST_AT)
    allowed = _AF_UNIX if may_have_sockets else 0
    yield from _unless(_EQUAL, allowed, _ERROR | errno.EACCES)
    yield _step(_RETURN, _ALLOW)
    yield _step(_RETURN, _ALLOW)


def _if(test: int, value: int, verdict: int) -> Iterable[bytes]:
    return _step(test, value, 0, 1), _step(_RETURN, verdict)


def _unless(test: int, value: int, verdict: int) -> Iterable[bytes]:
    return _step(test, value, 1, 0), _step(_RETURN, verdict)


def _step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)
