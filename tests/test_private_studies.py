"""Private plans in simulation: noise where the plan says, budgets that pause, audits that look."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortium as co
from consortium.aggregate.columns import Source
from consortium.core import facts as f
from consortium.core.account_facts import Limits
from consortium.core.codec import decode
from consortium.core.terms import DAY_MS
from consortium.drive.accounts import Accounts, stricter
from consortium.drive.clock import ManualClock
from consortium.drive.directory import DataDirectory
from consortium.drive.private import check_delta, noised_scores
from consortium.drive.release import Release, release_of, secret_noise
from consortium.drive.simulate import Options, simulate
from consortium.drive.verify import verify_directory
from consortium.errors import ImpossiblePlanError, InternalError, WrongPhaseError
from consortium.model import Layout
from consortium.plan.noise import resolved
from consortium.privacy.budget import Quote
from consortium.privacy.gaussian import epsilon_of, mu_of
from consortium.privacy.noise import SecretNoise, SimulatedNoise
from consortium.store.memory import MemoryLog

WIDTH = 400
LAYOUT = Layout.of({"mean": np.zeros(WIDTH, np.float32)})


def start(rng: np.random.Generator) -> dict[str, Any]:
    return {"mean": np.zeros(WIDTH, np.float32)}


def evaluate(site: co.Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
    return {"loss": float(((site.data - shared["mean"]) ** 2).mean())}, len(site.data)


@co.numpy_task(start=start, evaluate=evaluate)
def means(site: co.Site, shared: dict[str, Any]) -> tuple[dict[str, Any], int]:
    shared["mean"] += 0.5 * (site.data.mean(axis=0) - shared["mean"])
    return shared, len(site.data)


SITES = [co.SimulatedSite(f"site-{n}", np.full((10 * n, WIDTH), 0.1 * n)) for n in range(1, 7)]


def plan_of(privacy: str, more: str = "") -> co.Plan:
    text = f"[federation]\nrounds = 4\n{more}\n[selection]\ntarget = 6\n[privacy]\n{privacy}\n"
    return co.parse_plan(text)


CENTRAL = plan_of('unit = "site"\nepsilon = 4.0')
LOCAL = plan_of('unit = "local"\nepsilon = 4.0')


def facts_of(run: co.Run) -> list[f.Fact]:
    return [decode(record) for record in run.records]


@pytest.mark.parametrize("plan", [CENTRAL, LOCAL], ids=["central", "local"])
def test_a_seed_gives_one_model_and_every_round_is_charged_before_its_sum(plan: co.Plan) -> None:
    first, again = (co.simulate(means, plan, SITES, seed=1) for _ in range(2))
    other = co.simulate(means, plan, SITES, seed=2)
    assert first.model_digest == again.model_digest != other.model_digest
    kinds = [type(fact) for fact in facts_of(first)]
    assert kinds.count(f.BudgetCharged) == kinds.count(f.BudgetSettled) == 4
    for at, kind in enumerate(kinds):
        if kind is f.Aggregated:
            assert kinds[:at].count(f.BudgetCharged) == kinds[: at + 1].count(f.Aggregated)


def test_the_mean_has_the_noise_that_the_plan_promises() -> None:
    plan = resolved(CENTRAL)
    assert plan.privacy.noise_multiplier is not None
    release = release_of(plan, LAYOUT, 1)
    assert isinstance(release, Release) and release.denominator == 6
    rows = [Source(rank, np.full(5000, 0.01, np.float32), 1.0) for rank in range(6)]
    noised = release.columns(rows)(0, 5000)
    mean = release.exact(rows, 0, 5000)
    assert mean == pytest.approx(0.01, rel=1e-6)
    spread = float(np.std(noised - mean))
    assert spread == pytest.approx(release.deviation, rel=0.08)  # 5.6 standard errors
    again = release.columns(rows)(0, 5000)
    assert (again != noised).all(), "each draw is another"


def test_a_blocks_sum_gets_no_noise() -> None:
    release = Release(1.0, 1.0, 2.0, 1, secret_noise)
    with pytest.raises(InternalError):
        release.columns([Source(0, np.zeros(3), 2.0, is_sum=True)])


def test_noise_that_was_not_computed_is_refused() -> None:
    with pytest.raises(InternalError):
        release_of(CENTRAL, LAYOUT, 1)
    with pytest.raises(ImpossiblePlanError):
        CENTRAL.terms(means.metrics)
    assert release_of(LOCAL, LAYOUT, 1) is None


def test_a_weekly_budget_pauses_the_rounds_and_lets_them_go_on() -> None:
    """Two rounds of 0.5 fit into any seven days; a third waits until the first is a week old."""
    privacy = 'unit = "site"\nepsilon_per_round = 0.5\nweekly = 0.8'
    plan = plan_of(privacy, 'every = "1d"')
    run = co.simulate(means, plan, SITES, seed=1)
    released = [fact.at_ms for fact in facts_of(run) if isinstance(fact, f.Aggregated)]
    assert len(released) == 4
    assert any(isinstance(fact, f.BudgetRefused) for fact in facts_of(run))
    sigma = resolved(plan).privacy.noise_multiplier or 0.0
    for at in released:
        week = [one for one in released if at - 7 * DAY_MS < one <= at]
        assert epsilon_of(mu_of([sigma] * len(week)), 1e-5) <= 0.8
    assert released[2] - released[0] >= 7 * DAY_MS > released[1] - released[0]


def test_a_lifetime_budget_ends_the_federation() -> None:
    plan = plan_of('unit = "site"\nepsilon_per_round = 0.5\nlifetime = 0.8')
    run = co.simulate(means, plan, SITES, seed=1)
    assert run.state.finished is f.Finish.BUDGET_SPENT
    assert len(run.history.rounds) == 2


def test_an_audit_sees_the_noise_and_misses_it_where_there_is_none(tmp_path: Path) -> None:
    def audited(name: str, plan: co.Plan) -> list[str]:
        directory = DataDirectory(tmp_path / name)
        simulate(means, plan, SITES, seed=1, options=Options(directory=directory))
        directory.close()
        found = verify_directory(tmp_path / name)
        return [finding.what for finding in found.findings]

    assert audited("right", CENTRAL) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Release, "_chunk", lambda self, rows, lo, hi: self.exact(rows, lo, hi))
        found = audited("bare", CENTRAL)
    assert any("noise that the plan promises" in message for message in found)


def test_scores_leave_as_whole_numbers_with_noise() -> None:
    text = 'unit = "record"\nepsilon = 4.0\nnoise_multiplier = 1.0\nside_noise = 30.0\n'
    plan = co.parse_plan(f'[privacy]\n{text}[evaluation]\nmetric = "accuracy"')
    assert plan.has_noised_scores
    rng = np.random.default_rng(1)
    site = co.Site("here", None, 1, rng, plan.training, noise=SimulatedNoise(rng))
    told = [noised_scores(plan, site, ([80.0], 100)) for _ in range(2000)]
    counts = np.array([records for _, records in told])
    assert np.std(counts[counts > 1]) == pytest.approx(30 * 2**0.5, rel=0.2)
    assert all(0 <= right <= records and right == int(right) for (right,), records in told)
    with pytest.raises(InternalError):
        noised_scores(plan, dataclasses.replace(site, noise=None), ([80.0], 100))


def test_delta_must_be_below_one_in_the_records() -> None:
    plan = co.parse_plan('[privacy]\nunit = "record"\nepsilon = 4.0\ndelta = 1e-3')
    site = co.Site("here", None, 1, np.random.default_rng(1), plan.training)
    check_delta(plan, site, 999)
    for records in (1000, 5000):
        with pytest.raises(ImpossiblePlanError, match="delta"):
            check_delta(plan, site, records)
    check_delta(CENTRAL, site, 10**9)  # it is about sites there


def test_numpy_tasks_cannot_hide_single_records() -> None:
    plan = co.parse_plan('[privacy]\nunit = "record"\nepsilon = 4.0')
    with pytest.raises(ImpossiblePlanError, match="single records"):
        co.simulate(means, plan, SITES, seed=1)


def test_an_accounts_limits_become_stricter_by_a_plan_and_never_looser() -> None:
    accounts = Accounts(MemoryLog(), ManualClock(), lambda costs, delta: 0.0)
    budget = resolved(CENTRAL).budget
    assert budget is not None
    ledger = accounts.open(budget, Limits(1e-5, 2.0, None, 9.0))
    accounts.open(budget, Limits(1e-5, 3.0, 5.0, None))
    assert ledger.state.limits == Limits(1e-5, 2.0, 5.0, 9.0)
    with pytest.raises(WrongPhaseError, match="delta"):
        stricter(Limits(1e-5, 2.0, None, None), Limits(1e-6, 2.0, None, None))


def test_owners_know_nothing_of_each_others_accounts() -> None:
    log, budget = MemoryLog(), resolved(CENTRAL).budget
    assert budget is not None
    for owner in ("one", "other"):
        accounts = Accounts(log, ManualClock(), lambda costs, delta: 0.0, owner)
        assert accounts.of(budget.account).state.limits is None
        accounts.open(budget, Limits(1e-5, 2.0, None, None))


def test_secret_noise_is_what_a_coordinator_draws() -> None:
    assert isinstance(secret_noise(1, 0), SecretNoise)


def test_an_audit_finds_an_account_that_tells_less_than_the_log(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "d")
    run = simulate(means, CENTRAL, SITES, seed=1, options=Options(directory=directory))
    directory.close()
    database = sqlite3.connect(tmp_path / "d" / "log.sqlite")
    with database:
        last = "(SELECT max(position) FROM records WHERE stream LIKE 'account/%')"
        database.execute(f"DELETE FROM records WHERE stream LIKE 'account/%' AND position = {last}")
    database.close()
    assert verify_directory(tmp_path / "d").is_clean, "the account is still to be told of the last"
    database = sqlite3.connect(tmp_path / "d" / "log.sqlite")
    with database:
        database.execute("DELETE FROM records WHERE stream LIKE 'account/%' AND position > 3")
    database.close()
    found = [finding.what for finding in verify_directory(tmp_path / "d").findings]
    assert any("no account" in what for what in found)
    assert run.state.finished is f.Finish.ROUNDS_DONE


def test_an_audit_finds_spending_beyond_the_limits(tmp_path: Path) -> None:
    plan = plan_of('unit = "site"\nepsilon_per_round = 0.5\nlifetime = 0.6')
    directory = DataDirectory(tmp_path / "d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Quote, "is_affordable", True)
        simulate(means, plan, SITES, seed=1, options=Options(directory=directory))
    directory.close()
    found = [finding.what for finding in verify_directory(tmp_path / "d").findings]
    assert any("does not pay" in what for what in found)
