"""The two processes between the agent and a task that has a process namespace of its own.

    agent ── starter ── init ── the task

`init` is the first process of the namespace: when it ends, the kernel ends whatever the task
has started, however it hid. It also looks at how much memory and how many processes the task
has in all, because limits count each process alone. `starter` stands for the task outside: it
ends as the task ended, and both end with the agent.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

from consortium.site.isolation import kernel
from consortium.site.isolation.cell import Cell

TOO_MUCH_MEMORY, TOO_MANY_PROCESSES = 90, 91  # exit codes
_SIGNALLED = 128  # and the number of the signal: as shells say it
_LOOK_S = 0.5
_COUNTED = (b"RssAnon:", b"RssShmem:", b"VmSwap:")


def stand_for(child: int, handles: Iterable[int]) -> NoReturn:
    """End as the child does."""
    _close(handles)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:  # init itself was killed
        code = _SIGNALLED - code
    if code > _SIGNALLED:
        with suppress(OSError, ValueError):  # SIGKILL has no handler; there may be no such signal
            signal.signal(code - _SIGNALLED, signal.SIG_DFL)
        with suppress(OSError):
            os.kill(os.getpid(), code - _SIGNALLED)
    os._exit(code)


def begin(lifeline: tuple[int, int]) -> None:
    """Become the first process: end with the starter, also if it has ended already."""
    kernel.die_with_parent()
    ours, theirs = lifeline
    os.close(theirs)
    if select.select([ours], [], [], 0)[0]:
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])


def leave_mask() -> None:
    """In the task's process: hear of its children as anybody does."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def watch(task: int, cell: Cell, handles: Iterable[int], *, can_look: bool) -> NoReturn:
    """Reap whoever has ended, until the task has."""
    _close(handles)
    while True:
        while (ended := _reaped()) is not None:
            if ended[0] == task:
                code = os.waitstatus_to_exitcode(ended[1])
                os._exit(code if code >= 0 else _SIGNALLED - code)
        signal.sigtimedwait([signal.SIGCHLD], _LOOK_S)
        if can_look:
            _judge(cell)


def _reaped() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _judge(cell: Cell) -> None:
    pids = [name for name in os.listdir("/proc") if name.isdecimal() and name != "1"]
    if len(pids) > cell.most_processes:
        os._exit(TOO_MANY_PROCESSES)
    if not cell.memory_bytes or sum(map(_resident, pids)) <= cell.memory_bytes:
        return
    # Pages that a process shares with the one that it was forked from were counted twice.
    if sum(map(_proportional, pids)) > cell.memory_bytes:
        os._exit(TOO_MUCH_MEMORY)


def _resident(pid: str) -> int:
    """Bytes that are the process's own or shared memory; files that it maps cost nothing."""
    return _sum(f"/proc/{pid}/status", _COUNTED)


def _proportional(pid: str) -> int:
    return _sum(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:"))


def _sum(path: str, names: tuple[bytes, ...]) -> int:
    try:
        with open(path, "rb") as file:
            lines = [line.split() for line in file]
    except OSError:
        return 0  # it has just ended
    return sum(int(line[1]) << 10 for line in lines if line and line[0] in names)


def _close(handles: Iterable[int]) -> None:
    """What is the task's alone: else its end would not be heard at the other end."""
    for handle in handles:
        os.close(handle)
