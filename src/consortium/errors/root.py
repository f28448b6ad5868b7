"""The root of all errors, ours and those of commands."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Fault(Enum):
    """Whose fault it is, hence who must act."""

    OURS = "ours"
    CALLER = "caller"
    PEER = "peer"


class ConsortiumError(Exception):
    """The root: catch this to catch everything that consortium raises on purpose."""

    code: ClassVar[str] = "E0000"
    fault: ClassVar[Fault] = Fault.OURS
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    advice: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.advice
        self.details: dict[str, object] = {}  # more for machines: `--json` shows it


class InternalError(ConsortiumError):
    """Something that cannot happen did. The log is intact: state is rebuilt from it."""

    code = "E0001"
    advice = "run the command again with -vv and report what it prints"


class UsageError(ConsortiumError):
    """A command was called with an argument that it cannot use."""

    code = "E0003"
    fault = Fault.CALLER
    http_status = 400
    exit_code = 2


class UnknownCodeError(UsageError):
    """There is no error of that code."""

    code = "E0002"
    http_status = 404


def every_error() -> tuple[type[ConsortiumError], ...]:
    """All error classes, by code: for `consortium explain` and the reference page."""
    found: list[type[ConsortiumError]] = []
    queue: list[type[ConsortiumError]] = [ConsortiumError]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue.extend(kind.__subclasses__())
    return tuple(sorted(found, key=lambda kind: kind.code))
