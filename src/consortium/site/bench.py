"""One task under one plan on this site's records: what the task's process does.

The same steps as in a simulation, so that a seeded study gives the same bytes in both; but for the
noise of a private plan, which nobody can draw again.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from consortium.core.facts import Failure
from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.drive.combine import server_state_of
from consortium.drive.engine import SimulatedSite, simulated_site, with_noise
from consortium.drive.local import LocalWork, refuse_unfollowed
from consortium.drive.local import Scores as Measured
from consortium.drive.states import FileStates
from consortium.errors import (
    ConsortiumError,
    CorruptStoreError,
    QualityError,
    SiteDataError,
    TaskResultError,
    VerificationError,
)
from consortium.model import Layout, Update, Vector, digest_of, load_model, update_parts
from consortium.plan.strategy import VARIATE
from consortium.plan.values import Plan
from consortium.privacy.noise import SecretNoise
from consortium.site import jobs as j
from consortium.site.failures import failure_of, marked
from consortium.store.files import FileBlobs
from consortium.tasks import Site, load_task
from consortium.tensors import TensorSpec, load_tensors, save_tensors

_REMEMBERED = 2  # scores: a round's candidate is the next one's base


@dataclass(slots=True)
class Bench:
    """One task under one plan, on this site's records."""

    local: LocalWork
    blobs: FileBlobs
    states: FileStates
    about: j.Open
    measured: dict[tuple[object, ...], Measured] = field(default_factory=dict)

    # ---- training -------------------------------------------------------------------

    def train(self, job: j.Train) -> j.Made:
        """Train once; what stays is durable before the update is."""
        base, kept = self._model(job.base), self._kept(job.kept)
        site = self._site(job.round, job.seat, "train")
        made = self.local.train(site, base, self._variate(job.server_state), kept)
        if made.failure is Failure.TRAINING:
            raise TaskResultError(
                f"site {self.about.site}: training gave numbers that are not finite"
            )
        if made.failure is not None:
            message = f"site {self.about.site}: the data did not pass the task's quality check"
            raise marked(QualityError(message), made.failure)
        if made.state is not None:
            self.states.keep(j.HERE, job.round, made.state)
        update = Update(made.row, made.weight, _digest(job.base), made.packed)
        parts = update_parts(
            update, self.local.plan.form(self.local.layout, job.round, self.local.reported)
        )
        with (Path(self.about.made) / j.UPDATE).open("wb") as file:  # the agent makes it durable
            file.writelines(parts)
        return j.Made(
            records=made.records,
            kept=None if made.state is None else digest_of(made.state).hex(),
        )

    def _variate(self, server_state: str | None) -> Vector | None:
        strategy = self.local.plan.strategy
        if not strategy.has_variates:
            return None
        digest = None if server_state is None else _digest(server_state)
        state = server_state_of(strategy, self.local.layout, self.blobs, digest)
        vector: Vector = state[VARIATE][0 : self.local.layout.size].copy()
        return vector

    # ---- trying models --------------------------------------------------------------

    def evaluate(self, job: j.Evaluate) -> j.Scores:
        """The candidate with what this round made here, the base with what went with it."""
        kept = self._kept(job.kept)
        after = kept if job.pending is None else self._pending(job.round, job.pending)
        before = after if kept is None else kept
        try:
            sums, samples = self._scores(job.model, job.round, job.seat, after)
            base, _ = self._scores(job.base, job.base_round, job.seat, before)
        except (SiteDataError, TaskResultError) as error:
            raise _about_test_data(error) from error.__cause__
        return j.Scores(samples=samples, candidate=list(sums), base=list(base))

    def _scores(self, model: str, made_in: int, seat: int, state: bytes | None) -> Measured:
        """A model is tried alike whenever it is tried: once is enough."""
        key = (model, made_in, seat, None if state is None else digest_of(state))
        if key not in self.measured:
            site = self._site(made_in, seat, "evaluate")
            found = self.local.evaluate(site, self._model(model), state)
            while len(self.measured) >= _REMEMBERED:
                del self.measured[next(iter(self.measured))]
            self.measured[key] = found
        return self.measured[key]

    def check(self, job: j.Check) -> j.Stock:
        """What leaves and what stays here, if it is what was approved. Which columns the lead's
        records have is not told to sites; a site's own ones are taken for right."""
        site = self._site(0, job.seat, "start")
        stock = self.local.inventory(site)
        replace(self.local, columns=stock.columns).check(site)
        return j.Stock(
            leaves=_told(stock.leaves), private=_told(stock.private), frozen=_told(stock.frozen)
        )

    def predict(self, job: j.Predict) -> j.Done:
        from consortium.site.inference import outputs_csv, read_features

        model = self._complete(job)
        table = _table_of(model)
        outputs = model.predict(read_features(Path(job.records), table))
        self._out(job.out).write_text(outputs_csv(outputs, table))
        return j.Done()

    def export(self, job: j.Export) -> j.Done:
        """The whole model: as ONNX where the name says so, else as safetensors."""
        out = self._out(job.out)
        if not hasattr(self.local.task, "complete"):
            if out.suffix == ".onnx":
                raise TaskResultError(
                    "the task has no network to export: it is plain NumPy",
                    hint="export it as .safetensors",
                )
            self._export_arrays(job, out)
            return j.Done()
        model = self._complete(job)
        if out.suffix != ".onnx":
            model.save(out)
            return j.Done()
        table = _table_of(model)
        if table is None:
            raise TaskResultError(
                "only a model that was trained on a table can be exported as ONNX from here",
                hint="export it as .safetensors",
            )
        model.to_onnx(out, table.features[:8])
        return j.Done()

    def _out(self, name: str) -> Path:
        return Path(self.about.made) / j.OUT / name

    def _export_arrays(self, job: j.Export, out: Path) -> None:
        arrays = dict(self.local.layout.unflatten(self._model(job.model)))
        kept = self._kept(job.kept)
        own = {} if kept is None else load_tensors(kept)
        arrays |= {f"kept/{name}": array for name, array in own.items()}
        out.write_bytes(save_tensors(arrays))

    def _complete(self, job: j.Predict | j.Export) -> Any:  # Any: whatever the task gives
        site = self._site(job.model_round, job.seat, "evaluate")
        return self.local.complete(site, self._model(job.model), self._kept(job.kept))

    # ---- what work is made from -----------------------------------------------------

    def _site(self, number: int, seat: int, purpose: str) -> Site:
        """Where the task runs. Seeded, it draws what a simulated site at this seat draws, but for
        noise."""
        about, plan = self.about, self.local.plan
        site = SimulatedSite(about.site, Path(about.data))
        made = simulated_site(site, seat, plan, about.seed or 0, number, purpose)
        if about.seed is None:
            rng = np.random.default_rng(secrets.randbits(128))
            made = replace(made, rng=rng, own_seed=about.own_seed)
        if not plan.privacy.is_on:
            return made
        # Whoever knows the seed of a simulation can take its noise off. A real site has records
        # to hide: its noise is secret, also where its enrolment has a seed.
        return with_noise(made, plan, SecretNoise())

    def _model(self, name: str) -> Vector:
        return load_model(self.local.layout, self.blobs.mapped(_digest(name)))

    def _kept(self, name: str | None) -> bytes | None:
        """What the site keeps with the present model. The log says what it is; a file of which
        the log does not know is nothing."""
        return None if name is None else _named(self.states.current(j.HERE), name)

    def _pending(self, number: int, name: str) -> bytes:
        return _named(self.states.pending(j.HERE, number), name)


def open_bench(job: j.Open) -> Bench:
    """Load the task. It was approved; that it is what was approved is seen here again."""
    blobs = FileBlobs.existing(Path(job.blobs))  # to be read: what is made goes elsewhere
    plan = Plan.from_canonical(blobs.get(_digest(job.plan)))
    layout = Layout.from_canonical(blobs.get(_digest(job.layout)))
    task = load_task(job.entry, Path(job.folder))
    if task.metrics != tuple(Metric(*pair) for pair in job.metrics):
        raise VerificationError("the task reports other metrics than those that were approved")
    refuse_unfollowed(task, plan)
    pinned = None if job.pinned is None else _digest(job.pinned)
    local = LocalWork(task, layout, plan, pinned, made_by="lead")
    return Bench(local, blobs, FileStates(Path(job.states)), job)


def _named(state: bytes | None, name: str) -> bytes:
    if state is None or digest_of(state).hex() != name:
        raise CorruptStoreError("what this site keeps for itself is not what its log says")
    return state


def _about_test_data(error: ConsortiumError) -> ConsortiumError:
    """An evaluation that found no record says so in its code."""
    is_empty = isinstance(error, TaskResultError) and "how many records" in error.message
    is_unusable = failure_of(error) is Failure.REQUIREMENTS
    return marked(error, Failure.NO_TEST_DATA) if is_empty or is_unusable else error


def _table_of(model: Any) -> Any:  # a Table, if the model was trained on one
    from consortium.data.table import Table

    found = getattr(model, "trained_on", None)
    return found if isinstance(found, Table) else None


def _told(specs: tuple[TensorSpec, ...]) -> list[j.Tensor]:
    return [j.Tensor(name=spec.name, shape=list(spec.shape), dtype=spec.dtype) for spec in specs]


def _digest(text: str) -> Digest:
    return Digest(bytes.fromhex(text))
