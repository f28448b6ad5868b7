"""What an agent tells while it works: for the people at the site, and for logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

from consortium.errors import ConsortiumError


class Kind(StrEnum):
    """What an event is about."""

    LISTENS = "listens"  # for the coordinator's calls
    CONNECTED = "connected"
    STUDY = "study"
    APPROVAL = "approval"  # somebody must approve
    TAKEN = "taken"
    DECLINED = "declined"
    TRAINED = "trained"
    SENT = "sent"
    SCORED = "scored"
    FAILED = "failed"
    TURNED_AWAY = "turned away"
    NOT_NEEDED = "not needed"  # enough others have answered for a secret sum
    SETTLED = "settled"
    MODEL = "model"
    RENEWED = "renewed"
    TROUBLE = "trouble"  # it is tried again
    REFUSED = "refused"  # this site does not go on until it is mended
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `code` is an error's, if it was one."""

    kind: Kind
    text: str
    round: int = 0
    code: str = ""

    @classmethod
    def of(cls, kind: Kind, error: ConsortiumError, *, round: int = 0) -> Event:
        return cls(kind, error.message, round, error.code)

    def told(self) -> dict[str, object]:
        """For machines."""
        return asdict(self)


OnEvent = Callable[[Event], None]
OnWork = Callable[[str, int, int], None]  # (what, done, in all); in all 0: not known
