"""The study and the newest model, as they lie at the site: fetched by digest, verified, and
found again without a network."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from consortium.core import site_facts as s
from consortium.core.ids import Digest
from consortium.errors import CorruptStoreError, NoModelError, VerificationError, WireError
from consortium.model import Layout
from consortium.site.home import SiteHome
from consortium.site.machine import Machine
from consortium.site.review import ReviewedStudy, verify_study
from consortium.site.transfer import OnProgress, Transfer
from consortium.site.transport import Client
from consortium.store.files import write_durably
from consortium.wire.messages import Count, Hex32, StudySheet, read_body

MOST_STUDY_BYTES = 32 << 20  # of each part: a bundle has at most 16 MiB
_SPARE_BYTES = 1 << 20  # a file's header
_MOST_COPIES = 8  # server states hold a few numbers for each one of the model


class NewestModel(BaseModel):
    """The newest version that the coordinator told of, and this site has. `seat` is the site's
    own, for tasks that are seeded; 0: not known yet."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: Count
    model: Hex32
    seat: Count = 0

    @property
    def digest(self) -> Digest:
        return Digest(bytes.fromhex(self.model))


def _sheet_file(home: SiteHome) -> Path:
    return home.path / "study.json"


def _model_file(home: SiteHome) -> Path:
    return home.path / "model.json"


# ---- without a network --------------------------------------------------------------


def held_study(home: SiteHome) -> ReviewedStudy | None:
    """The study that was fetched last; None before the first."""
    path = _sheet_file(home)
    if not path.exists():
        return None
    try:
        sheet = read_body(StudySheet, path.read_bytes())
    except WireError:
        raise CorruptStoreError(f"{path} is not a study's sheet") from None
    return _verified(home, sheet)


def demand_study(home: SiteHome) -> ReviewedStudy:
    """The study that was fetched last; raises before the first."""
    study = held_study(home)
    if study is None:
        raise NoModelError(
            "this site has not seen a study yet", hint="consortium agent    # fetches it"
        )
    return study


def held_model(home: SiteHome) -> NewestModel | None:
    """The newest model that is here; None before the first."""
    path = _model_file(home)
    if not path.exists():
        return None
    try:
        return NewestModel.model_validate_json(path.read_bytes())
    except ValueError:
        raise CorruptStoreError(f"{path} does not name a model") from None


def demand_model(home: SiteHome) -> NewestModel:
    """The newest model that is here; raises before the first."""
    model = held_model(home)
    if model is None:
        raise NoModelError(
            "this site has no model yet",
            hint="consortium agent    # fetches every version that the federation publishes",
        )
    return model


def round_of(machine: Machine, model: Digest) -> int:
    """The round that made a model that this site has tried; 0 when it has not."""
    for _, fact in machine.facts():
        if isinstance(fact, s.EvaluationTaken) and fact.model == model:
            return fact.round
    return 0


def _verified(home: SiteHome, sheet: StudySheet) -> ReviewedStudy:
    parts = (sheet.plan, sheet.layout, sheet.bundle, sheet.lock)
    return verify_study(sheet, *(home.blobs.get(Digest(bytes.fromhex(part))) for part in parts))


# ---- with one -----------------------------------------------------------------------


class Studies:
    """Fetches what a site needs to look at a study, and models."""

    def __init__(self, home: SiteHome, client: Client, transfer: Transfer) -> None:
        self._home, self._client, self._transfer = home, client, transfer
        self.newest: ReviewedStudy | None = held_study(home)

    def fetch(self) -> ReviewedStudy:
        """The study that the federation has adopted. Raises `NoModelError` before there is one,
        and `VerificationError` when its parts do not belong together."""
        sheet = self._client.call("GET", "/v1/study", reply=StudySheet)
        if self.newest is not None and self.newest.sheet == sheet:
            return self.newest
        for part in (sheet.plan, sheet.layout, sheet.bundle, sheet.lock):
            digest = Digest(bytes.fromhex(part))
            self._transfer.fetch(digest, most_bytes=MOST_STUDY_BYTES)
        self.newest = _verified(self._home, sheet)
        write_durably(_sheet_file(self._home), sheet.model_dump_json().encode())
        return self.newest

    def of(self, task: Digest, plan: Digest) -> ReviewedStudy:
        """The study of this task under this plan."""
        for study in (self.newest, None):
            found = study or self.fetch()
            if (found.task_hash, found.plan_digest) == (task, plan):
                return found
        raise VerificationError("the invitation is for another study than the federation's")

    def fetch_tensors(self, digest: Digest, layout: Layout, on_progress: OnProgress) -> None:
        """A model, or what the server keeps beside it."""
        size = sum(spec.size_bytes for spec in layout.specs)
        most = _MOST_COPIES * size + _SPARE_BYTES
        self._transfer.fetch(digest, most_bytes=most, on_progress=on_progress)

    def keep_model(self, newest: NewestModel) -> None:
        """This version is here now."""
        write_durably(_model_file(self._home), newest.model_dump_json().encode())
