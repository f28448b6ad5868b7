"""The plan's sections and keys, their defaults, and what they compile to.

Every key has a description: the reference page and error hints are made from it. `sites`
and `server` say where, not what: they are left out of the digest, so the same plan in
simulation and in production has the same digest.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, ValidationError, model_validator

from consortium.core.ids import Digest
from consortium.core.terms import (
    LOSS,
    PPM,
    Budget,
    Close,
    Condition,
    Masking,
    Metric,
    Selection,
    Terms,
)
from consortium.errors import ImpossiblePlanError, WrongTypeError
from consortium.model import Form, Layout, digest_of
from consortium.packing.packed import Packing
from consortium.plan.asynchronous import AsynchronousSection
from consortium.plan.check import guarantees, problems
from consortium.plan.compression import CompressionSection
from consortium.plan.privacy import BOUNDED_METRIC, PrivacySection
from consortium.plan.private import settled_evaluation, settled_strategy
from consortium.plan.problem import remedies
from consortium.plan.scores import score_bounds
from consortium.plan.section import Count as _Count
from consortium.plan.section import Duration as _Duration
from consortium.plan.section import Names as _Names
from consortium.plan.section import Section as _Section
from consortium.plan.security import SecuritySection, masked_form, ring_of, share_of
from consortium.plan.strategy import StrategySection
from consortium.plan.text import parse_condition, parse_duration_ms
from consortium.update.clip import ClipByNorm
from consortium.update.ring import Ring
from consortium.update.ring_noise import NoiseShare
from consortium.update.stage import Chain, Stage, chain

# What a plan says of where and how it runs here. It changes no rule, so it is in no digest.
DEPLOYMENT_KEYS: dict[str, set[str] | bool] = {
    "federation": {"sites", "server"},
    "simulation": True,
}
_CONTEXT = b"consortium/plan/v1\n"


def _valid_condition(text: str) -> str:
    parse_condition(text)
    return text


_Ratio = Annotated[float, Field(gt=0, le=1)]
_Conditions = Annotated[
    tuple[Annotated[str, AfterValidator(_valid_condition)], ...], Field(strict=False)
]


class TaskSection(_Section):
    """Which code every site runs."""

    entry: str = Field(default="", description='the task: "file.py:name"')
    files: _Names = Field(default=(), description="further files that the task needs")


class FederationSection(_Section):
    """Who learns together, how often, and where."""

    name: str = Field(
        default="study",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="the federation's name: letters, digits, dots and dashes",
    )
    rounds: _Count = Field(default=100, description="rounds, at most")
    quorum: _Count = Field(default=3, description="updates without which nothing is aggregated")
    every: _Duration = Field(
        default="0s", description='cadence, such as "1d"; "0s": one after another'
    )
    sites: str | None = Field(
        default=None, description="simulate here: a pattern of data files, one a site"
    )
    server: str | None = Field(default=None, description="deploy: the coordinator's address")


class SelectionSection(_Section):
    """Whom to invite."""

    strategy: Literal["random", "fair", "diverse"] = Field(
        default="random", description="at random; who took part least; spread over attributes"
    )
    target: _Count | None = Field(default=None, description="sites a round; unset: by fraction")
    fraction: _Ratio = Field(
        default=0.5, description="of the eligible sites, when there is no target"
    )
    overselect: float = Field(
        default=1.0, ge=1, le=10, description="invite this many times the target"
    )
    wait_for: _Count | None = Field(
        default=None, description="eligible sites before a round begins; unset: the quorum"
    )
    spread: _Names = Field(default=(), description='attributes for "diverse", such as ["region"]')
    require: _Conditions = Field(
        default=(), description='conditions on reports, such as ["memory_gb >= 16"]'
    )
    preset: Literal["none", "mobile"] = Field(
        default="none", description='"mobile" adds battery > 0.3 and network == wifi'
    )
    seen_within: _Duration = Field(
        default="24h", description="a site heard of longer ago is not invited"
    )


class RoundSection(_Section):
    """How long a round waits, and for whom."""

    duration: _Duration = Field(default="1h", description="from invitation to deadline")
    extension: _Duration = Field(default="30m", description="added when too few are left")
    max_extensions: int = Field(default=1, ge=0, le=100, description="extensions, at most")
    grace: _Duration = Field(default="60s", description="for checks still running at the deadline")
    retry: _Duration = Field(default="60s", description="pause after a failed round")
    close: Literal["all_or_deadline", "quorum"] = Field(
        default="all_or_deadline", description="when to stop waiting"
    )


class TrainingSection(_Section):
    """What sites do between invitation and update. The task reads it as `site.training`."""

    epochs: int = Field(default=5, ge=1, le=100_000, description="local epochs a round")
    batch_size: int = Field(default=32, ge=1, le=10_000_000, description="records a step")
    lr: float = Field(default=0.01, gt=0, description="local learning rate")
    lr_decay: float = Field(
        default=1.0, gt=0, le=1, description="factor on the learning rate after each round"
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="the local optimiser, made anew each round"
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="local momentum, for sgd")
    weight_decay: float = Field(default=0.0, ge=0, description="local L2 decay")
    grad_clip: float | None = Field(
        default=None, gt=0, description="largest L2 norm of a local gradient"
    )
    max_seconds: float | None = Field(
        default=None, gt=0, description="stop local training after this time; slow sites do less"
    )

    def lr_in(self, round_number: int) -> float:
        """The learning rate of a round; rounds count from one."""
        return float(self.lr * self.lr_decay ** max(0, round_number - 1))


class PersonalSection(_Section):
    """What each site keeps to itself, beyond what the task marks as private."""

    name: Literal["none", "fedper", "fedrep", "fedbn", "finetune"] = Field(
        default="none",
        description="private layers; trained in turns; private normalisation; local fine-tuning",
    )
    layers: _Names = Field(default=(), description='layers that stay at the site, such as ["head"]')
    epochs: int = Field(
        default=1, ge=1, le=100_000, description="epochs of the private part, or of fine-tuning"
    )
    warmup: int = Field(
        default=1, ge=0, le=100_000, description="epochs of a newcomer's private layers alone"
    )


class EvaluationSection(_Section):
    """What members measure, and what the gate makes of it."""

    enabled: bool = Field(default=True, description="members evaluate every candidate")
    metric: str = Field(default="loss", description="the metric that the gate and patience look at")
    quorum: _Count | None = Field(default=None, description="evaluations needed; unset: as updates")
    deadline: _Duration = Field(default="10m", description="for evaluations")
    gate: bool = Field(default=True, description="keep the base when the candidate is worse")
    gate_base: _Ratio = Field(
        default=0.95, description="of the base's score that a candidate must reach"
    )
    gate_best: _Ratio = Field(
        default=0.90, description="of the best recent score that it must reach"
    )
    gate_window: int = Field(default=5, ge=1, le=1000, description="versions that count as recent")
    bound: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="under masks, the largest loss or other metric that is not between 0 and 1; "
        "larger ones are cut",
    )
    records_cap: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000_000,
        description="under masks, how many test records of a site count, at most",
    )


class StopSection(_Section):
    """When to stop before the last round."""

    loss_below: float | None = Field(
        default=None, description="stop when the loss is below, such as 0.01"
    )
    patience: int = Field(
        default=0, ge=0, le=1_000_000, description="rounds without improvement; 0: no limit"
    )
    min_delta: float = Field(default=0.0, ge=0, description="what counts as an improvement")


class SimulationSection(_Section):
    """Who is simulated, and how long training takes in simulated time. Nothing of it is in
    the digest."""

    clients: _Count | None = Field(
        default=None,
        description="simulate so many clients; a task makes the records of each from its number",
    )
    pace: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default={}, description="how many times longer a site takes, by its name"
    )
    unit: _Duration = Field(default="1m", description="what a site takes that has no pace")

    def takes_ms(self, site: str) -> int:
        """How long this site trains."""
        return max(1, round(parse_duration_ms(self.unit) * self.pace.get(site, 1.0)))


class Plan(_Section):
    """Every rule of a federation. Frozen; equal plans have equal digests."""

    task: TaskSection = TaskSection()
    federation: FederationSection = FederationSection()
    selection: SelectionSection = SelectionSection()
    round: RoundSection = RoundSection()
    strategy: StrategySection = StrategySection()
    training: TrainingSection = TrainingSection()
    evaluation: EvaluationSection = EvaluationSection()
    stop: StopSection = StopSection()
    personal: PersonalSection = PersonalSection()
    asynchronous: AsynchronousSection = AsynchronousSection()
    compression: CompressionSection = CompressionSection()
    privacy: PrivacySection = PrivacySection()
    security: SecuritySection = SecuritySection()
    simulation: SimulationSection = SimulationSection()

    @model_validator(mode="after")
    def _settle(self) -> Plan:
        """A private plan says itself what others may leave open: its digest covers it."""
        if self.privacy.is_on:
            made = settled_strategy(self.strategy, self.privacy)
            object.__setattr__(self, "strategy", made)
            told = settled_evaluation(self.evaluation, self.privacy)
            object.__setattr__(self, "evaluation", told)
        return self

    def check(self) -> None:
        """Raise the first impossible combination, with remedies, if there is one."""
        found = problems(self)
        if found:
            raise found[0].kind(found[0].message, hint=remedies(found))

    def guarantees(self) -> list[str]:
        """What this plan protects, and what it does not, in sentences for people."""
        return guarantees(self)

    def canonical(self) -> bytes:
        """What the digest covers: every key that is not at its default, but for where the plan
        runs. Defaults are part of the form and never change; a new key has a default that
        means what plans without it meant, so old plans keep their digests. As a blob these
        bytes have the plan's digest for their name."""
        values = self.model_dump(mode="json", exclude=DEPLOYMENT_KEYS, exclude_defaults=True)
        return _CONTEXT + json.dumps(values, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_canonical(cls, data: bytes) -> Plan:
        """The plan of a blob; refuses what `canonical` would not have written."""
        if not data.startswith(_CONTEXT):
            raise WrongTypeError("this is not a plan")
        try:
            plan = cls.model_validate_json(data[len(_CONTEXT) :], strict=False)
        except ValidationError:
            raise WrongTypeError("the plan's blob is malformed") from None
        if plan.canonical() != data:
            raise WrongTypeError("the plan's blob is not in canonical form")
        return plan

    @property
    def digest(self) -> Digest:
        return digest_of(self.canonical())

    @property
    def takes_time(self) -> bool:
        """Whether a simulation of this plan lets training last."""
        lasts = self.simulation.model_fields_set - {"clients"}
        return bool(self.asynchronous.buffer or lasts)

    def pipeline(self) -> Chain:
        """What happens to an update before it leaves a site."""
        stages: list[Stage] = [self.strategy.weighing()]
        if self.strategy.clip is not None:
            stages.append(ClipByNorm(self.strategy.clip))
        return chain(*stages)

    @property
    def has_noised_scores(self) -> bool:
        """Whether scores leave a site with noise on them."""
        privacy = self.privacy
        return self.evaluation.enabled and privacy.is_on and privacy.test_records == "private"

    def reported(self, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
        """Of what a task measures, what leaves a site: with noise, only what has a bound."""
        if not self.has_noised_scores:
            return metrics
        return tuple(metric for metric in metrics if metric.name == BOUNDED_METRIC)

    @property
    def budget(self) -> Budget | None:
        """What every round spends; None: nothing, and it promises nothing."""
        privacy = self.privacy
        if not privacy.is_on:
            return None
        if not privacy.is_resolved:
            raise ImpossiblePlanError(
                "how much noise this plan takes was not computed", hint="consortium lock PLAN"
            )
        costs = privacy.costs(self.training.epochs, has_scores=self.evaluation.enabled)
        account = f"{privacy.dataset or _plain(self.federation.name)}-{self.unit}"
        return Budget(account, self.unit, costs, self.unit != "site")

    @property
    def unit(self) -> str:
        """What its privacy account is of. Noise of sites and noise of a coordinator hide different
        things from different people, so each has accounts of its own."""
        return "contribution" if self.has_noise_shares else self.privacy.hides

    @property
    def packing(self) -> Packing | None:
        """How steps are packed; None: not at all."""
        section = self.compression
        return (
            section.packing(self.digest if section.draws_places else b"") if section.is_on else None
        )

    @property
    def is_masked(self) -> bool:
        """Whether the coordinator sees sums alone."""
        return self.security.secure_aggregation

    @property
    def has_noise_shares(self) -> bool:
        """Whether the noise on sums comes from the sites, under their masks."""
        privacy = self.privacy
        return self.is_masked and privacy.hides == "site" and privacy.noise_at != "coordinator"

    @property
    def has_scored_sums(self) -> bool:
        """Whether scores come inside masked sums, of the model that a round begins from."""
        return self.is_masked and self.evaluation.enabled

    def ring(self, layout: Layout, metrics: tuple[Metric, ...] = ()) -> Ring:
        """How sites write the rows that they mask, and how sums of them are read, for a task that
        reports these metrics."""
        ring = ring_of(self, self.strategy.form(layout).size)
        return replace(ring, metrics=score_bounds(self, metrics))

    def noise_share(self, layout: Layout) -> NoiseShare | None:
        """What each site adds to its row under the masks; None: nothing."""
        size = self.strategy.form(layout).size
        return share_of(self, ring_of(self, size), size)  # no noise comes on scores

    def row_form(self, layout: Layout, metrics: tuple[Metric, ...] = ()) -> Form:
        """What a row consists of that leaves a site of a simulation, as numbers."""
        if self.is_masked:
            form = masked_form(self, layout, metrics)
            return replace(form, dtype=np.dtype(np.float64))
        return self.strategy.form(layout)

    def form(self, layout: Layout, round_number: int, metrics: tuple[Metric, ...] = ()) -> Form:
        """What an update's file consists of in one round, for a task that reports these metrics."""
        if self.is_masked:
            return masked_form(self, layout, metrics)
        form = self.strategy.form(layout)
        packing = self.packing
        return form if packing is None else replace(form, packing=packing.in_round(round_number))

    def terms(self, metrics: tuple[Metric, ...], *, is_simulated: bool = False) -> Terms:
        """The rules that the core knows, for a task that reports these metrics. In a simulation
        nobody masks anything: the sum is the same, and there is nobody to hide from."""
        metrics = self.reported(metrics)
        self._check_metrics(metrics)
        federation, selection, timing = self.federation, self.selection, self.round
        evaluation, stop, asynchronous = self.evaluation, self.stop, self.asynchronous
        return Terms(
            rounds=federation.rounds,
            quorum=federation.quorum,
            wait_for=selection.wait_for or federation.quorum,
            target=selection.target or 0,
            fraction_ppm=_ppm(selection.fraction),
            overselect_ppm=_ppm(selection.overselect),
            selection=Selection[selection.strategy.upper()],
            spread=selection.spread,
            conditions=self.conditions(),
            seen_within_ms=parse_duration_ms(selection.seen_within),
            duration_ms=parse_duration_ms(timing.duration),
            extension_ms=parse_duration_ms(timing.extension),
            max_extensions=timing.max_extensions,
            grace_ms=parse_duration_ms(timing.grace),
            retry_ms=parse_duration_ms(timing.retry),
            every_ms=parse_duration_ms(federation.every),
            close=Close[timing.close.upper()],
            norm_factor=0 if self.strategy.clip is not None else 10,
            metrics=metrics,
            judged_by=evaluation.metric if evaluation.enabled else "",
            evaluation_quorum=self._evaluation_quorum,
            evaluation_ms=parse_duration_ms(evaluation.deadline),
            is_gated=evaluation.gate and evaluation.enabled,
            gate_base_ppm=_ppm(evaluation.gate_base),
            gate_best_ppm=_ppm(evaluation.gate_best),
            gate_window=evaluation.gate_window,
            stop_below=stop.loss_below,
            patience=stop.patience,
            min_delta=stop.min_delta,
            is_screened=self.strategy.anomalies == "exclude",
            buffer=asynchronous.buffer,
            max_staleness=asynchronous.max_staleness if asynchronous.buffer else 0,
            discount_ppm=_ppm(asynchronous.discount) if asynchronous.buffer else 0,
            budget=self.budget,
            masking=None if is_simulated else self._masking,
            has_scored_sums=self.has_scored_sums,
        )

    @property
    def _evaluation_quorum(self) -> int:
        is_asked = self.evaluation.enabled and not self.has_scored_sums
        return (self.evaluation.quorum or self.federation.quorum) if is_asked else 0

    @property
    def _masking(self) -> Masking | None:
        return Masking(parse_duration_ms(self.security.phase)) if self.is_masked else None

    def _check_metrics(self, metrics: tuple[Metric, ...]) -> None:
        names = [metric.name for metric in metrics]
        wanted = [self.evaluation.metric] if self.evaluation.enabled else []
        if self.stop.loss_below is not None:
            wanted.append(LOSS)
        for name in wanted:
            if name not in names:
                raise ImpossiblePlanError(
                    f"the plan looks at the metric `{name}`, which the task does not report",
                    hint=f"the task reports: {', '.join(names) or 'nothing'}",
                )
        score_bounds(self, metrics)  # refuses a metric that nothing bounds

    def conditions(self) -> tuple[Condition, ...]:
        texts = self.selection.require
        if self.selection.preset == "mobile":
            texts = (*texts, "battery > 0.3", "network == wifi")
        return tuple(parse_condition(text) for text in texts)


def _plain(name: str) -> str:
    """A federation's name as one of an account."""
    return name.replace(".", "-")[:48]


def _ppm(ratio: float) -> int:
    return round(ratio * PPM)
