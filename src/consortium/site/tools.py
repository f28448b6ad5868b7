"""What the threads of an agent share: their tools, and what they know of the situation."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from consortium.core import duties as d
from consortium.errors import ConsortiumError
from consortium.site.account import OwnLedger
from consortium.site.clock import SharedClock
from consortium.site.events import Event, Kind, OnEvent, OnWork
from consortium.site.home import SiteHome
from consortium.site.machine import Machine
from consortium.site.receipts import Receipts
from consortium.site.review import ReviewedStudy
from consortium.site.secret_sums import SecretSums
from consortium.site.studies import NewestModel, Studies
from consortium.site.transfer import Transfer
from consortium.site.transport import Client
from consortium.site.troubles import Notice
from consortium.wire.invitation import Invitation


@dataclass(frozen=True, slots=True)
class Tools:
    """The site's home, machine and ledger, the way to the coordinator, how to tell of it all."""

    home: SiteHome
    machine: Machine
    ledger: OwnLedger
    clock: SharedClock
    client: Client
    transfer: Transfer
    studies: Studies
    secrets: SecretSums
    tell: OnEvent
    progress: OnWork
    stop: threading.Event = field(default_factory=threading.Event)
    wake: threading.Event = field(default_factory=threading.Event)  # there may be work to do
    receipts: Receipts = field(init=False)

    def __post_init__(self) -> None:
        receipts = Receipts(self.home, self.machine, self.client)
        object.__setattr__(self, "receipts", receipts)


@dataclass(slots=True)
class Situation:
    """What the agent knows beyond its log. In memory only: the next answer brings it again."""

    duty: d.SiteDuty | None = None  # what the coordinator asks for now
    waiting: Invitation | None = None  # nobody has approved it yet
    study: ReviewedStudy | None = None
    objection: ConsortiumError | None = None  # why this site does not work
    is_clear: bool = False  # an answer has been verified since the start
    is_current: bool = False  # and since the connection was last lost
    is_finished: bool = False
    newest: NewestModel | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def may_work(self) -> bool:
        return self.is_clear and self.objection is None

    @property
    def may_send(self) -> bool:
        """Whoever is there after a break may be another, or have forgotten: nothing is told to
        it before its log has been seen."""
        return self.is_current and self.may_work


class Trouble:
    """Tells of something that is tried again: once, until it is another thing or over."""

    def __init__(self, tools: Tools, sort: str) -> None:
        self._tools = tools
        self._notice = Notice(tools.home, sort)
        self._told = ""

    def tell(self, error: ConsortiumError) -> None:
        if error.code != self._told and not self._tools.stop.is_set():
            self._tools.tell(Event.of(Kind.TROUBLE, error))
            self._notice.write(error, self._tools.clock.now_ms())
            self._told = error.code

    def is_over(self) -> None:
        self._notice.remove()
        self._told = ""
