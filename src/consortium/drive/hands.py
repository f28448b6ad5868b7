"""The coordinator's own work in one process: draw, check, screen, sum, judge, release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from consortium.aggregate.columns import Source
from consortium.aggregate.staleness import discount
from consortium.aggregate.weighed import WeighedMean
from consortium.checks import Expected, Findings, check_update
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.facts import Fault, RoundEnd
from consortium.core.ids import Digest, Seat
from consortium.core.terms import Metric
from consortium.drive.accounts import Accounts, Ledger
from consortium.drive.base_scores import scores_in
from consortium.drive.clock import Clock
from consortium.drive.combine import Combination, server_state_of
from consortium.drive.release import NoiseAt, Noised, release_of, secret_noise
from consortium.drive.rows import discounted, open_rows
from consortium.drive.secret_sum import NOT_LIFTED, lifted
from consortium.drive.unmasked import decoded, sum_source
from consortium.errors import (
    CorruptBlobError,
    InternalError,
    MissingBlobError,
    ModelFileError,
    PrivacyBudgetExceededError,
    RestoredBackupError,
)
from consortium.gate import judge
from consortium.model import Form, Layout, Vector, load_model, masked_row_form
from consortium.packing.packed import Packing
from consortium.plan.strategy import VARIATE, StrategySection
from consortium.plan.values import Plan
from consortium.screen import screen
from consortium.store.ports import Blobs
from consortium.stored import check_model, open_model
from consortium.update.ring import Ring


def no_release(_round: int) -> Noised | None:
    """A coordinator that adds no noise."""
    return None


@dataclass(frozen=True, slots=True)
class Masked:
    """How sums of a masked plan are read, and what they are divided by: with None, by what their
    sites weigh together."""

    ring: Ring
    denominator: float | None = None

    @property
    def rule(self) -> WeighedMean:
        return WeighedMean(self.ring.extra, self.denominator)


@dataclass(frozen=True, slots=True)
class CoordinatorHands:
    """Performs duties against a blob store. Doing one twice gives the same bytes. Models and
    updates stay in the store: none of them is held in memory as a whole."""

    layout: Layout
    strategy: StrategySection
    blobs: Blobs
    clock: Clock
    draw_seed: Callable[[int], bytes]
    packing: Packing | None = None  # of steps, where the plan compresses updates
    release: Callable[[int], Noised | None] = no_release  # of a round, where there is noise
    accounts: Accounts | None = None  # that rounds are paid from
    masked: Masked | None = None  # where single updates are not seen

    def perform(self, duty: d.Duty) -> i.Input:
        # The time of a report is that of its end: others may be heard while this is done.
        match duty:
            case d.Draw():
                return i.Drawn(duty.round, self.draw_seed(duty.round), self.clock.now_ms())
            case d.Check():
                return self._check(duty)
            case d.Screen():
                return i.Screened(duty.round, duty.count, self._strange(duty), self.clock.now_ms())
            case d.Aggregate():
                return self._aggregate(duty)
            case d.Judge():
                outcome = judge(duty).outcome
                return i.Verdict(duty.round, duty.model, outcome, self.clock.now_ms())
            case d.Release():
                check_model(self.blobs, self.layout, duty.model)
                return i.Released(duty.round, duty.model, self.clock.now_ms())
            case d.Reserve():
                return self._reserve(duty)
            case d.Settle():
                self._ledger(duty.account).settle(
                    duty.federation, duty.round, is_charged=duty.is_charged
                )
                return i.AccountTold(duty.round, self.clock.now_ms())
            case d.WakeAt():
                raise InternalError("waking is the driver's duty")

    @property
    def form(self) -> Form:
        """What a row consists of."""
        form = self.strategy.form(self.layout)
        return form if self.masked is None else masked_row_form(form.size + self.masked.ring.extra)

    def sent_form(self, round_number: int) -> Form:
        """What an update's file consists of in one round."""
        if self.packing is None:
            return self.form
        return replace(self.form, packing=self.packing.in_round(round_number))

    def model(self, digest: Digest) -> Vector:
        """The vector of a stored model, for sites that train in this process."""
        return load_model(self.layout, self.blobs.get(digest))

    def variate(self, server_state: Digest | None) -> Vector | None:
        """The server's control variate, which sites of a SCAFFOLD round need; else None."""
        if not self.strategy.has_variates:
            return None
        state = server_state_of(self.strategy, self.layout, self.blobs, server_state)
        return np.array(state[VARIATE][: self.layout.size])

    def _reserve(self, duty: d.Reserve) -> i.Granted | i.Denied:
        try:
            ledger = self._ledger(duty.budget.account)
            if duty.after and not ledger.knows(duty.federation, duty.after):
                raise RestoredBackupError(
                    f"the privacy account knows nothing of round {duty.after}, which it paid for",
                    hint="an old copy was put back: put back the newest",
                )
            position = ledger.reserve(duty.federation, duty.round, duty.budget.costs)
        except PrivacyBudgetExceededError as error:
            return i.Denied(duty.round, error.frees_ms, self.clock.now_ms())
        return i.Granted(duty.round, position, self.clock.now_ms())

    def _ledger(self, account: str) -> Ledger:
        if self.accounts is None:
            raise InternalError("this coordinator keeps no account")
        return self.accounts.of(account)

    def _check(self, duty: d.Check) -> i.Checked:
        try:
            expected = self.expected(duty.round, duty.base)
            found = check_update(self.blobs, duty.update, expected)
        except (MissingBlobError, CorruptBlobError):
            found = Findings(Fault.FORMAT)  # it was here; the round must not wait for it
        about = duty.round, duty.seat, duty.update
        return i.Checked(*about, found.fault, found.weight, found.norm, self.clock.now_ms())

    def expected(self, round_number: int, base: Digest) -> Expected:
        """What an update of this round, trained from `base`, must be under this plan."""
        limits = self.strategy.weighing().limits() if self.masked is None else (1.0, 1.0)
        return Expected(self.sent_form(round_number), base, self.strategy.clip, limits)

    def _strange(self, duty: d.Screen) -> tuple[tuple[Seat, Fault], ...]:
        """Who stands out. An update whose bytes are gone is left for the sum to stumble over:
        then the round fails, and says why."""
        ranked = [(rank, digest) for _, rank, digest in duty.updates]
        try:
            rows = open_rows(self.blobs, self.sent_form(duty.round), ranked, ())
            found = screen(rows, self.layout.size)
        except (MissingBlobError, CorruptBlobError):
            return ()
        seats = [seat for seat, _, _ in duty.updates]
        return tuple(sorted((seats[at], fault) for at, fault in found.items()))

    def rows(self, duty: d.Aggregate) -> list[Source]:
        """What is summed, by ranks. Reads every blob once and compares it with its digest."""
        form, masked = self.sent_form(duty.round), self.masked
        if masked is not None and duty.lifting is not None:
            updates = [digest for _, digest in duty.updates]
            total = lifted(self.blobs, form, duty.lifting, updates)
            return [sum_source(masked.ring, total, duty.count)]
        rows = open_rows(self.blobs, form, duty.updates, duty.partials)
        return rows if masked is None else decoded(masked.ring, rows)

    def _aggregate(self, duty: d.Aggregate) -> i.Summed | i.NotSummed:
        share = duty.count / max(duty.eligible, duty.count)  # of those who could have answered
        rule = None if self.masked is None else self.masked.rule
        release = self.release(duty.round)
        combination = Combination(self.strategy, self.layout, share, release, rule)
        try:
            rows = self.rows(duty)
            if duty.staleness:
                ages, exponent_ppm = duty.staleness, duty.discount_ppm
                rows = discounted(rows, [discount(age, exponent_ppm) for age in ages])
            state = server_state_of(self.strategy, self.layout, self.blobs, duty.server_state)
            self.blobs.check(duty.base)
            base = open_model(self.blobs, self.layout, duty.base)
            scores = self._base_scores(rows, duty.count)
            try:
                model, server_state = combination.write(self.blobs, base, rows, state)
            except ModelFileError:
                return i.NotSummed(duty.round, duty.count, RoundEnd.NOT_FINITE, self.clock.now_ms())
        except (MissingBlobError, CorruptBlobError, *NOT_LIFTED):
            return i.NotSummed(duty.round, duty.count, RoundEnd.AGGREGATION, self.clock.now_ms())
        now_ms = self.clock.now_ms()
        return i.Summed(duty.round, duty.count, model, server_state, now_ms, *scores)

    def base_scores(self, duty: d.Aggregate) -> tuple[int, tuple[float, ...]]:
        """What the sum says of the model that the round began from: over how many test records,
        and the sum of each metric; nothing where the plan asks for no scores."""
        return self._base_scores(self.rows(duty), duty.count)

    def _base_scores(self, rows: list[Source], count: int) -> tuple[int, tuple[float, ...]]:
        return (0, ()) if self.masked is None else scores_in(self.masked.ring, rows, count)


def hands_for(
    plan: Plan,
    layout: Layout,
    blobs: Blobs,
    clock: Clock,
    draw_seed: Callable[[int], bytes],
    *,
    metrics: tuple[Metric, ...] = (),
    accounts: Accounts | None = None,
    noise_at: NoiseAt = secret_noise,
) -> CoordinatorHands:
    """Those that do what this plan says, for a task that reports these metrics."""

    def release(number: int) -> Noised | None:
        return release_of(plan, layout, number, noise_at)

    rules = layout, plan.strategy, blobs, clock, draw_seed
    return CoordinatorHands(*rules, plan.packing, release, accounts, _masked(plan, layout, metrics))


def _masked(plan: Plan, layout: Layout, metrics: tuple[Metric, ...]) -> Masked | None:
    if not plan.is_masked:
        return None
    # What sites weigh would be one more thing that noise had to hide.
    divisor = plan.selection.target if plan.has_noise_shares else None
    return Masked(plan.ring(layout, metrics), None if divisor is None else float(divisor))
