"""A site's tools, and a coordinator that says whatever a test puts into its mouth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core.ids import Digest
from consortium.crypto.recipes import SigningKey
from consortium.drive.directory import SIGNER_NAME
from consortium.ledger.notary import Notary, origin_of
from consortium.ledger.note import Signer
from consortium.privacy.accountant import epsilon
from consortium.site.account import OwnLedger
from consortium.site.clock import SharedClock
from consortium.site.events import Event
from consortium.site.listener import Listener
from consortium.site.machine import Machine
from consortium.site.secret_sums import SecretSums
from consortium.site.studies import Studies
from consortium.site.tools import Situation, Tools
from consortium.site.transfer import Transfer
from consortium.site.transport import Client, Identity, verified_context
from consortium.store.memory import MemoryCache, MemoryLog
from consortium.wire.invitation import sign_duty
from tests.site.homes import SEAT, WHO, Lab, lab
from tests.site.small_coordinator import AUDIENCE, SITE, Heard, Small, small_coordinator

NOW_MS = 5_000_000  # the coordinator's time; the site's own clock is decades ahead
LATER_MS = NOW_MS + 60_000
MODEL = Digest(b"\1" * 32)


@dataclass
class Log:
    """A coordinator's log of any records, and the key that signs it."""

    signer: Signer = field(default_factory=lambda: Signer(SIGNER_NAME, SigningKey.generate()))
    log: MemoryLog = field(default_factory=MemoryLog)
    size: int = 0

    def grow(self, *records: bytes) -> None:
        self.size = self.log.append("log", self.size, records)

    @property
    def notary(self) -> Notary:
        origin = origin_of(WHO.federation)
        return Notary(self.log, "log", MemoryCache(), origin, [self.signer])

    def proof(self, index: int) -> str:
        """That a record is in the log as it is now."""
        note = self.notary.checkpoint(self.size, self.signer.key.public)
        return self.notary.proof(index, self.size, note).text()

    def offer(self, since: int) -> dict[str, Any]:
        note = self.notary.checkpoint(self.size, self.signer.key.public)
        offer = self.notary.offer(since, self.size, note)
        path = [part.hex() for part in offer.path]
        return {"since": since, "path": path, "note": offer.note}


@dataclass
class Scene:
    """A site's listener, and a coordinator that says what the test puts into `says`."""

    lab: Lab
    small: Small
    log: Log
    tools: Tools
    situation: Situation
    listener: Listener
    events: list[Event]
    says: dict[str, Any] = field(default_factory=dict)

    def answer(self, heard: Heard) -> tuple[int, dict[str, Any]]:
        asked = json.loads(heard.body)
        told = {"mark": "m", "now_ms": NOW_MS, "offer": self.log.offer(asked["seen_size"])}
        return 200, told | self.says

    def invite(self, duty: d.SiteDuty, **changes: Any) -> None:
        who = {"federation": WHO.federation, "site": SITE, "plan": self.lab.reviewed.plan}
        who |= {"key": self.log.signer.key, **changes}
        signed = sign_duty(who["federation"], who["site"], duty, who["plan"], who["key"])
        self.says["invitation"] = signed.model_dump()

    def asked(self) -> dict[str, Any]:
        """The newest question."""
        found = [heard for heard in self.small.heard if heard.path == "/v1/ask"]
        told = json.loads(found[-1].body)
        assert isinstance(told, dict)
        return told

    @property
    def state(self) -> p.Participant:
        return self.tools.machine.state

    def approve(self) -> None:
        study = self.lab.reviewed
        self.tools.machine.feed(p.Approve(study.task_hash, study.plan_digest, NOW_MS))

    def train(self, number: int = 1, deadline_ms: int = LATER_MS) -> d.Train:
        study = self.lab.reviewed
        return d.Train(
            number, SEAT, MODEL, None, study.plan_digest, study.task_hash, deadline_ms, False
        )


@contextmanager
def opened(
    tmp_path: Path, *, change: tuple[str, str] = ("", ""), plan: str = ""
) -> Iterator[Scene]:
    """A scene with a log of three records, on a real TLS port."""
    folder = tmp_path / "coordinator"
    folder.mkdir()
    with small_coordinator(folder) as small:
        made = _scene(lab(tmp_path, change=change, plan=plan), small)
        small.routes["POST", "/v1/ask"] = made.answer
        small.routes["GET", "/v1/study"] = lambda _: (200, made.lab.reviewed.sheet.model_dump())
        yield made
        made.tools.client.close()
        made.tools.ledger.close()
        made.lab.home.close()


def _scene(made: Lab, small: Small) -> Scene:
    log = Log()
    log.grow(b"one", b"two", b"three")
    home = made.home
    home._write_sheet(WHO.model_copy(update={"log_key": log.signer.key.public.hex()}))
    clock = SharedClock()
    context = verified_context(small.authority.pem())
    client = Client(small.url, context, Identity(SITE, AUDIENCE, home.key))
    transfer = Transfer(client, home.blobs, home.path / "incoming")
    events: list[Event] = []
    machine = Machine(home.log, clock)
    tools = Tools(
        home=home,
        machine=machine,
        ledger=OwnLedger(home, machine, epsilon),
        clock=clock,
        client=client,
        transfer=transfer,
        studies=Studies(home, client, transfer),
        secrets=SecretSums(home, client),
        tell=events.append,
        progress=lambda *_: None,
    )
    situation = Situation()
    return Scene(made, small, log, tools, situation, Listener(tools, situation), events)
