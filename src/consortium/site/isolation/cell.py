"""What a task's process may reach: made by the agent, read by the process before it does
anything else. Paths are real ones; whatever is not listed is out of reach."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Cell:
    """Where the task runs. `is_closed` False: with no measure but the limits."""

    folder: str  # the task's own files: where it starts
    scratch: str  # a private folder, with `tmp` for the task and `root` for `view`
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    secret: str = ""  # a folder that nothing of this may contain: the site's home
    memory_bytes: int = 0  # 0: no limit
    most_processes: int = 1024  # and threads, of a user namespace of its own
    is_closed: bool = True
    without: tuple[str, ...] = ()  # mechanisms to do without: for tests of the others

    def text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def temporary(self) -> str:
        return f"{self.scratch}/tmp"


def read_cell(text: str) -> Cell:
    values = json.loads(text)
    for name in ("readable", "writable", "without"):
        values[name] = tuple(values[name])
    return Cell(**values)


@dataclass(slots=True)
class Held:
    """The mechanisms that are in force, and why others are not. Names, not promises: what
    follows from them is said in `findings`."""

    has: set[str] = field(default_factory=set)
    why: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, error: OSError | None = None) -> None:
        if error is None:
            self.has.add(name)
        else:
            self.why[name] = (error.strerror or str(error)).lower()
