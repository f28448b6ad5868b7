"""What a site that listens says when it is asked what has come of its training: the seed's
`POST /federated/client/train`.

It starts nothing. A site trains because a signed invitation came on a line, because the study
was approved and the policy allows it. What the answer says has been spooled: it is in the
outbox, and may leave.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.core.ids import Digest
from consortium.errors import (
    ConsortiumError,
    FederationOverError,
    NotApprovedError,
    OnHoldError,
    UnreachableError,
    WireError,
    WrongRoundError,
)
from consortium.model import read_update_header
from consortium.site.review import ReviewedStudy
from consortium.site.tools import Situation, Tools
from consortium.wire.messages import ClientTrain, ClientTrained

WAIT_S = 25.0  # for a round to be trained; then whoever asks asks again
_LOOK_S = 0.05
_HEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class _Part:
    """This site's part in a round, as far as its log has it."""

    taken: s.InvitationTaken | None = None
    update: Digest | None = None
    failure: Failure | None = None


class Called:
    """Answers the coordinator's questions, one at a time."""

    def __init__(self, tools: Tools, situation: Situation) -> None:
        self._tools, self._situation = tools, situation
        self._one_at_a_time = threading.Lock()

    def train(self, asked: ClientTrain) -> ClientTrained:
        """What was made in the round, when it is made; raises why nothing will be, and
        `UnreachableError` when it takes longer than somebody waits."""
        if not self._one_at_a_time.acquire(blocking=False):
            raise UnreachableError("this site is being asked already")
        try:
            ends, size, part = time.monotonic() + WAIT_S, -1, _Part()
            while time.monotonic() < ends and not self._tools.stop.is_set():
                self._refuse(asked)
                if self._tools.machine.size != size:
                    size = self._tools.machine.size
                    part = self._part(asked.round)
                if part.taken is not None and part.update is not None:
                    return self._told(asked, part.taken, part.update)
                self._refuse_part(asked, part)
                self._tools.stop.wait(_LOOK_S)
        finally:
            self._one_at_a_time.release()
        raise UnreachableError(f"round {asked.round} is not trained yet", hint="ask again")

    def _refuse(self, asked: ClientTrain) -> None:
        """Raise if nothing may be said now."""
        situation, machine = self._situation, self._tools.machine
        if situation.objection is not None:
            raise situation.objection
        if machine.state.is_held:
            raise OnHoldError("this site is on hold: nothing leaves")
        waiting = situation.waiting
        if waiting is not None and waiting.duty.round == asked.round:
            raise NotApprovedError("nobody here has approved this study")

    def _refuse_part(self, asked: ClientTrain, part: _Part) -> None:
        """Raise if nothing will come of this round."""
        if part.failure is not None:
            raise WrongRoundError(f"this site made nothing in this round: {part.failure.name}")
        if part.taken is None and self._tools.machine.state.round > asked.round:
            raise WrongRoundError(f"this site is in round {self._tools.machine.state.round}")
        if part.taken is None and self._situation.is_finished:
            raise FederationOverError("the federation is over")

    def _part(self, number: int) -> _Part:
        part = _Part()
        for _, fact in self._tools.machine.facts():
            match fact:
                case s.InvitationTaken() if fact.round == number:
                    part = replace(part, taken=fact)
                case s.UpdateSpooled() if fact.round == number:
                    part = replace(part, update=fact.update)
                case s.InvitationDeclined() | s.WorkFailed() if fact.round == number:
                    part = replace(part, failure=fact.failure)
                case _:
                    pass
        return part

    def _told(self, asked: ClientTrain, taken: s.InvitationTaken, update: Digest) -> ClientTrained:
        held, study = self._tools.home.enrolment, self._tools.studies.of(taken.task, taken.plan)
        if taken.base.hex() != asked.model_weights:
            raise WireError("this round starts from another model")
        if study.plan.training.epochs != asked.local_epochs:
            raise WireError(
                "the approved plan has another number of epochs",
                hint=f"local_epochs: {study.plan.training.epochs}",
            )
        client = held.name if "." in held.name else f"{held.federation_name}.{held.name}"
        means = self._means(study)
        return ClientTrained(
            client_id=client,
            model_weights=update.hex(),
            num_samples=self._samples(study, update),
            loss=means.get("loss"),
            accuracy=means.get("accuracy"),
        )

    def _samples(self, study: ReviewedStudy, update: Digest) -> float | None:
        """The update's own weight, where that is a number of records."""
        strategy = study.plan.strategy
        if strategy.weight != "samples":
            return None
        path = self._tools.home.blobs.path(update)
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
            form = study.plan.form(
                study.layout, 0, study.reported
            )  # of any round: their headers are alike
            return read_update_header(head, form, path.stat().st_size)[0]
        except (OSError, ConsortiumError):
            return None

    def _means(self, study: ReviewedStudy) -> dict[str, float]:
        """Of each metric, over this site's test records, as it was last told."""
        score = self._tools.machine.newest(s.ScoreSpooled)
        if score is None or not score.samples:
            return {}
        names = [metric.name for metric in study.reported]
        if len(names) != len(score.candidate):
            return {}  # it was told under another plan
        sums = zip(names, score.candidate, strict=True)
        return {name: total / score.samples for name, total in sums}
