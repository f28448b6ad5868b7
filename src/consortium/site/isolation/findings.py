"""What is enforced here and what is not, in words, and what could be done about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from consortium.site.isolation.kernel import IS_LINUX

# What a site can demand: other programs of the same user would fetch, read and run anything.
NETWORK, FILES, PROGRAMS = DEMANDED = "network", "files", "programs"
SETTINGS = Path("/proc/sys")
_PROCESSES, _MEMORY, _COUNT = "processes", "memory", "forks"
_WRITTEN, _PRIVILEGES = "file size", "privileges"
# Whatever of these succeeds from inside shows that the measure does not hold.
_ATTACKS = {
    NETWORK: {"connect", "datagram"},
    FILES: {"read", "write"},
    PROGRAMS: {"unix", "abstract"},
    _PROCESSES: {"signal", "look"},
    _MEMORY: {"memory"},
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One measure: how it is enforced, or why it is not and what to do."""

    measure: str
    is_enforced: bool
    found: str
    todo: str = ""


def findings(
    has: Collection[str], why: Mapping[str, str], done: Collection[str] = ()
) -> list[Finding]:
    """All measures, given which mechanisms are in force (`Held`) and what could be `done` from
    inside nevertheless."""
    # A limit on processes that does not bind, as for root, is none.
    in_force = set(has) - ({"nproc"} if "fork" in done else set())
    found = [rule(in_force, dict(why)) for rule in _RULES]
    return [_disproved(one, set(done)) for one in found]


def missing(found: list[Finding]) -> list[Finding]:
    """Of what a site can demand: what is not enforced."""
    return [one for one in found if one.measure in DEMANDED and not one.is_enforced]


def in_one_line(found: list[Finding]) -> str:
    """For the agent's first words."""
    kept = [one.measure for one in found if one.is_enforced]
    left = [one.measure for one in found if not one.is_enforced]
    text = f"enforced: {', '.join(kept) or 'nothing'}"
    return f"{text}; NOT enforced: {', '.join(left)} (consortium doctor)" if left else text


def _disproved(one: Finding, done: set[str]) -> Finding:
    broken = _ATTACKS.get(one.measure, set()) & done
    if not one.is_enforced or not broken:
        return one
    return Finding(
        one.measure,
        False,
        f"it should be, but the probe could {', '.join(sorted(broken))}",
        "report this to the developers of consortium",
    )


# ---- the measures -------------------------------------------------------------------


def _network(has: set[str], why: dict[str, str]) -> Finding:
    ways = [
        *(["a network namespace with nothing in it"] if "net" in has else []),
        *(["no call makes a socket"] if "seccomp" in has else []),
    ]
    if ways:
        return Finding(NETWORK, True, f"a task has none: {', '.join(ways)}")
    return Finding(NETWORK, False, f"a task can connect: {_reason(why, 'net')}", _todo(why))


def _files(has: set[str], why: dict[str, str]) -> Finding:
    if FILES in why:
        todo = "keep the site's home outside of what a task may read"
        return Finding(FILES, False, why[FILES], todo)
    ways = [
        *(["a root folder of its own"] if "view" in has else []),
        *(["Landlock"] if "landlock" in has else []),
    ]
    if ways:
        text = f"a task reads its records and the software, no more: {', '.join(ways)}"
        return Finding(FILES, True, text)
    text = f"a task can read and write as the agent's user: {_reason(why, 'landlock')}"
    return Finding(FILES, False, text, _todo(why))


def _programs(has: set[str], why: dict[str, str]) -> Finding:
    if "sockets" in has:
        return Finding(PROGRAMS, True, "a task sees no sockets but its own")
    if "seccomp" in has:
        text = "no local sockets: a task cannot use several processes (DataLoader's num_workers)"
        return Finding(PROGRAMS, True, text)
    if "view" in has and has & {"net", "scopes"}:
        return Finding(PROGRAMS, True, "a task sees no sockets but its own")
    text = f"a task can talk to programs of the same user: {_reason(why, 'mount', 'seccomp')}"
    return Finding(PROGRAMS, False, text, _todo(why))


def _processes(has: set[str], why: dict[str, str]) -> Finding:
    if {"pid", "proc"} <= has:
        text = "a task sees its own only, and all of them end with it"
        return Finding(_PROCESSES, True, text)
    if has & {"pid", "scopes"}:
        text = "a task cannot signal or trace others; it can see their names"
        return Finding(_PROCESSES, True, text)
    text = f"a task can signal those of the same user: {_reason(why, 'pid')}"
    return Finding(_PROCESSES, False, text, _todo(why))


def _memory(has: set[str], _: dict[str, str]) -> Finding:
    if "memory" not in has:
        return Finding(_MEMORY, False, "this system has no limit that helps", _cgroup())
    if {"pid", "proc"} <= has:
        return Finding(_MEMORY, True, "of each process, and twice a second of all together")
    return Finding(_MEMORY, True, "of each process; of all together it is not bounded")


def _forks(has: set[str], _: dict[str, str]) -> Finding:
    if "nproc" in has:
        return Finding(_COUNT, True, "the number of processes and threads has a limit")
    if {"pid", "proc"} <= has:
        return Finding(_COUNT, True, "the number of processes is looked at twice a second")
    text = "the number of processes is not bounded: a limit would count the user's others, too"
    return Finding(_COUNT, False, text, _cgroup())


def _written(has: set[str], _: dict[str, str]) -> Finding:
    if "fsize" in has:
        text = "no file larger than the memory; how much is written in all is not bounded"
        return Finding(_WRITTEN, True, text)
    return Finding(_WRITTEN, False, "there is no limit", "")


def _privileges(has: set[str], why: dict[str, str]) -> Finding:
    if {"privileges", "seccomp"} <= has:
        return Finding(_PRIVILEGES, True, "given up for good; dangerous system calls are refused")
    if "privileges" in has:
        return Finding(_PRIVILEGES, True, f"given up for good; calls: {_reason(why, 'seccomp')}")
    return Finding(_PRIVILEGES, False, "a task has those of the agent's user", _todo(why))


_RULES = (_network, _files, _programs, _processes, _memory, _forks, _written, _privileges)


# ---- why not, and what to do --------------------------------------------------------


def _reason(why: dict[str, str], *names: str) -> str:
    if not IS_LINUX:
        return "this is not Linux"
    for name in (*names, "user"):
        if name in why:
            return f"{name}: {why[name]}"
    return "isolation is off" if not why else next(iter(why.values()))


def _todo(why: dict[str, str]) -> str:
    """What makes the missing namespaces possible, as far as the system tells."""
    if not IS_LINUX:
        return "run the agent on Linux, or in a container or a virtual machine without a network"
    if not why:
        return "consortium site policy --set isolation=available"
    for name, value, todo in (
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "an AppArmor profile that lets this Python make user namespaces (`userns,`), or "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ):
        if _setting(name) == value:
            return todo
    return (
        "a kernel with Landlock (5.13, lsm=landlock), or one that gives namespaces to users; in a "
        "container, let its seccomp profile pass unshare, mount and pivot_root"
    )


def _cgroup() -> str:
    if not IS_LINUX:
        return "run the agent in a container or a virtual machine with a limit of its own"
    return "start the agent by: systemd-run --user --scope -p TasksMax=1000 -p MemoryMax=16G …"


def _setting(name: str) -> str:
    try:
        return (SETTINGS / name).read_text().strip()
    except OSError:
        return ""
