"""A site's own privacy ledger: nobody makes it pay more than its people allow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.account import Standing
from consortium.core.account_facts import Cost
from consortium.core.facts import Failure
from consortium.core.tables import Stage
from consortium.core.terms import DAY_MS
from consortium.drive.accounts import Ledger
from consortium.drive.clock import ManualClock
from consortium.errors import (
    OnHoldError,
    PrivacyBudgetExceededError,
    RestoredBackupError,
    StoreFailedError,
    TaskResultError,
)
from consortium.plan import noise
from consortium.plan.noise import resolved
from consortium.plan.promises import ADJACENCY
from consortium.plan.values import Plan
from consortium.privacy.accountant import epsilon
from consortium.site.account import FILE, FOLDER, UNITS, OwnLedger, account_name, payer, purse_of
from consortium.site.events import Kind
from consortium.site.home import SiteHome
from consortium.site.listener import Listener
from consortium.site.machine import Machine
from consortium.site.policy import Policy, read_policy
from consortium.site.tools import Situation
from consortium.site.troubles import noted
from consortium.site.worker import Worker
from consortium.site.workshop import Workshop
from consortium.store.sqlite import SqliteLog
from tests.site.homes import SEAT, WHO, enrolled, lab
from tests.site.scene import LATER_MS, MODEL, NOW_MS, Scene, opened

# One round costs epsilon 1, and no clip but the plan's own bounds an update.
PRIVATE = """
[privacy]
unit = "local"
epsilon_per_round = 1.0
test_records = "public"
"""
ONE = 1.2  # pays for one round of this plan, and not for two
PLAN = resolved(Plan(privacy={"unit": "local", "epsilon_per_round": 1.0}))
COSTS = PLAN.privacy.costs(1, has_scores=False)
START_MS = 40_000 * DAY_MS


class Bench:
    """A home with its machine and ledger, without a coordinator."""

    def __init__(self, path: Path, **changes: object) -> None:
        self.home = enrolled(path, **changes)
        self.clock = ManualClock(START_MS)
        self.machine = Machine(self.home.log, ManualClock(NOW_MS))
        self.ledger = OwnLedger(self.home, self.machine, epsilon, self.clock)
        self.machine.feed(p.Approve(MODEL, MODEL, NOW_MS))

    def allow(self, **keys: object) -> None:
        Policy.model_validate(keys).write(self.home.policy_file)

    def invited(self, number: int) -> None:
        duty = d.Train(number, SEAT, MODEL, None, MODEL, MODEL, LATER_MS, is_urgent=False)
        assert self.machine.feed(p.Asked(duty, NOW_MS))

    def pay(self, number: int, plan: Plan = PLAN) -> None:
        """Train a round and have its end told."""
        self.invited(number)
        assert self.ledger.pay_for(number, plan, lambda: "made") == "made"
        self.spool(number)
        self.machine.feed(p.Heard(p.SendUpdate(number, MODEL), NOW_MS))
        self.machine.feed(p.Settled(number, True, NOW_MS))

    def spool(self, number: int) -> None:
        self.machine.feed(p.Trained(number, MODEL, None, 10, NOW_MS))

    def account(self, unit: str = "local") -> Ledger:
        return account_at(self.home, unit)

    def standing(self, number: int) -> Standing:
        return self.account().state.spent[payer(self.home.enrolment), number].standing


def account_at(home: SiteHome, unit: str = "local") -> Ledger:
    """As somebody else would read it."""
    policy = read_policy(home.policy_file)
    folder = home.path / FOLDER if policy.ledger is None else Path(policy.ledger)
    return Ledger(SqliteLog(folder / FILE), account_name(policy, unit), ManualClock(), epsilon)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "home")
    yield made
    made.ledger.close()
    made.home.close()


# ---- the order ----------------------------------------------------------------------


def test_it_is_held_before_training_and_spent_before_an_update_is_spooled(bench: Bench) -> None:
    bench.invited(1)
    seen = []

    def make() -> None:
        seen.append((bench.standing(1), bench.machine.state.account_position))

    bench.ledger.pay_for(1, PLAN, make)
    assert seen == [(Standing.RESERVED, 3)]  # opened, limits, reserved
    assert bench.standing(1) is Standing.CHARGED
    assert bench.machine.state.account_position == 4
    assert bench.machine.state.stage is Stage.TRAINING  # nothing can have left


def test_plan_without_privacy_costs_nothing_and_opens_nothing(bench: Bench) -> None:
    assert bench.ledger.pay_for(1, Plan(), lambda: 7) == 7
    bench.ledger.demand(Plan())
    bench.ledger.check()
    bench.ledger.settle()
    assert not (bench.home.path / FOLDER).exists()


def test_folder_is_for_its_owner_alone(bench: Bench) -> None:
    bench.pay(1)
    assert (bench.home.path / FOLDER).stat().st_mode & 0o777 == 0o700


def test_training_that_failed_gives_back(bench: Bench) -> None:
    bench.invited(1)

    def make() -> None:
        raise TaskResultError("no")

    with pytest.raises(TaskResultError):
        bench.ledger.pay_for(1, PLAN, make)
    assert bench.standing(1) is Standing.RETURNED


def test_work_that_an_ending_agent_gave_up_is_done_again_by_what_is_held(bench: Bench) -> None:
    bench.invited(1)

    def make() -> str:
        raise OnHoldError("the work is not wanted any more")

    with pytest.raises(OnHoldError):
        bench.ledger.pay_for(1, PLAN, make)
    assert bench.standing(1) is Standing.RESERVED
    assert bench.ledger.pay_for(1, PLAN, lambda: "made") == "made"
    assert bench.standing(1) is Standing.CHARGED


def test_work_that_was_given_up_meanwhile_gives_back(bench: Bench) -> None:
    bench.invited(1)
    with pytest.raises(Exception, match="not wanted"):
        bench.ledger.pay_for(1, PLAN, lambda: bench.machine.feed(p.HoldSite(NOW_MS)))
    assert bench.standing(1) is Standing.RETURNED


class Killed(BaseException):
    """As a power cut: nothing of ours runs after it."""


def test_crash_in_training_leaves_it_reserved_and_the_next_training_pays_once(
    bench: Bench,
) -> None:
    bench.invited(1)

    def make() -> None:
        raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            bench.ledger.pay_for(1, PLAN, make)
        assert bench.standing(1) is Standing.RESERVED
    bench.ledger.settle()  # it is still being trained
    assert bench.standing(1) is Standing.RESERVED
    bench.ledger.pay_for(1, PLAN, lambda: None)
    assert bench.account().state.position == 4


def test_crash_before_the_update_is_spooled_does_not_charge_twice(bench: Bench) -> None:
    bench.allow(epsilon_lifetime=ONE)
    bench.invited(1)
    for _ in range(2):
        bench.ledger.pay_for(1, PLAN, lambda: None)
    assert bench.account().state.position == 4
    assert bench.account().spent()[0].epsilon == pytest.approx(1.0, rel=1e-4)


def test_what_a_crash_left_is_settled_by_the_sites_own_log(bench: Bench) -> None:
    bench.pay(1)
    who = payer(bench.home.enrolment)
    for number in (2, 3):
        bench.account().reserve(who, number, COSTS)
    bench.invited(2)
    bench.spool(2)  # however that came about: it may have left
    bench.ledger.settle()
    assert (bench.standing(2), bench.standing(3)) == (Standing.CHARGED, Standing.RETURNED)


def test_what_others_hold_ready_is_not_settled_here(bench: Bench) -> None:
    bench.pay(1)
    bench.account().reserve("another", 2, COSTS)
    bench.ledger.settle()
    assert bench.account().state.spent["another", 2].standing is Standing.RESERVED


# ---- limits -------------------------------------------------------------------------


def test_limit_refuses_and_says_when_it_frees(bench: Bench) -> None:
    bench.allow(epsilon_weekly=ONE)
    bench.ledger.demand(PLAN)
    assert not (bench.home.path / FOLDER).exists()  # to ask writes nothing
    bench.pay(1)
    with pytest.raises(PrivacyBudgetExceededError) as refused:
        bench.ledger.demand(PLAN)
    assert refused.value.frees_ms == START_MS + 7 * DAY_MS
    assert "it frees at 2079-07-15 00:00 UTC" in refused.value.message
    assert "of at most 1.2 in 7 days" in refused.value.message
    bench.invited(2)
    with pytest.raises(PrivacyBudgetExceededError, match="frees at 2079"):
        bench.ledger.pay_for(2, PLAN, pytest.fail)
    bench.clock.advance_to(refused.value.frees_ms)
    bench.ledger.demand(PLAN)


def test_lifetime_never_frees(bench: Bench) -> None:
    bench.allow(epsilon_lifetime=ONE)
    bench.pay(1)
    with pytest.raises(PrivacyBudgetExceededError, match="it never frees"):
        bench.ledger.demand(PLAN)


def test_own_limits_change_in_both_directions_and_every_change_is_a_fact(bench: Bench) -> None:
    sizes = []
    for number, limit in enumerate((9.0, 5.0, 5.0, 7.0), 1):
        bench.allow(epsilon_monthly=limit)
        bench.pay(number)
        limits = bench.account().state.limits
        assert limits is not None and limits.monthly == limit
        sizes.append(bench.account().state.position)
    assert sizes == [4, 7, 9, 12]  # two facts a round, and one a change


def test_limits_are_at_the_policys_delta_whatever_the_plans_is(bench: Bench) -> None:
    lenient = resolved(Plan(privacy={"unit": "local", "epsilon_per_round": 1.0, "delta": 0.1}))
    assert lenient.budget is not None
    assert epsilon(lenient.budget.costs, 1e-5) > ONE
    bench.allow(epsilon_weekly=ONE)
    with pytest.raises(PrivacyBudgetExceededError):
        bench.ledger.demand(lenient)
    bench.allow(epsilon_weekly=ONE, delta=0.1)
    bench.ledger.demand(lenient)


def test_change_of_delta_prices_all_that_was_spent_anew(bench: Bench) -> None:
    bench.pay(1)
    for delta in (1e-5, 1e-9):
        bench.allow(delta=delta)
        found = purse_of(bench.home, "local", epsilon).gauges(())
        assert found[2].spent == pytest.approx(epsilon(COSTS, delta))


def test_units_are_counted_apart(bench: Bench) -> None:
    bench.allow(epsilon_lifetime=ONE)
    bench.pay(1)
    other = resolved(
        Plan(
            privacy={"unit": "site", "epsilon_per_round": 1.0},
            selection={"target": 3},
        )
    )
    bench.ledger.demand(other)
    bench.pay(2, other)
    bench.ledger.check()  # another account is shorter, and no old copy
    assert len(bench.account("site").state.spent) == len(bench.account().state.spent) == 1


def test_other_records_have_another_budget(bench: Bench) -> None:
    bench.allow(epsilon_lifetime=ONE)
    bench.pay(1)
    bench.allow(epsilon_lifetime=ONE, dataset="others")
    bench.ledger.demand(PLAN)
    bench.pay(2)
    assert bench.account().state.id == "others-local"


# ---- old copies ---------------------------------------------------------------------


def test_old_copy_of_the_ledger_is_refused_and_nothing_is_spent(bench: Bench) -> None:
    bench.pay(1)
    bench.ledger.close()
    shutil.copytree(bench.home.path / FOLDER, bench.home.path / "old")
    bench.pay(2)
    bench.ledger.close()
    shutil.rmtree(bench.home.path / FOLDER)
    (bench.home.path / "old").rename(bench.home.path / FOLDER)
    with pytest.raises(RestoredBackupError, match="has 4 facts, and its log tells of 6"):
        bench.ledger.check()
    bench.invited(3)
    with pytest.raises(RestoredBackupError):
        bench.ledger.pay_for(3, PLAN, pytest.fail)
    assert bench.account().state.position == 4


def test_copy_from_between_holding_and_spending_is_an_old_one(bench: Bench) -> None:
    """It has the reservation, and would give it back."""
    bench.invited(1)
    folder = bench.home.path / FOLDER
    bench.ledger.pay_for(1, PLAN, lambda: shutil.copytree(folder, bench.home.path / "old"))
    bench.ledger.close()
    shutil.rmtree(folder)
    (bench.home.path / "old").rename(folder)
    assert bench.standing(1) is Standing.RESERVED
    with pytest.raises(RestoredBackupError):
        bench.ledger.check()


def test_missing_ledger_is_not_made_anew(bench: Bench) -> None:
    bench.pay(1)
    bench.ledger.close()
    shutil.rmtree(bench.home.path / FOLDER)
    with pytest.raises(RestoredBackupError, match="has 0 facts"):
        bench.ledger.check()
    assert not (bench.home.path / FOLDER).exists()


# ---- a ledger for several homes -----------------------------------------------------


def test_homes_that_share_a_ledger_are_counted_together(tmp_path: Path) -> None:
    homes = [Bench(tmp_path / "a"), Bench(tmp_path / "b", federation="e" * 32)]
    for one in homes:
        one.allow(epsilon_weekly=ONE, ledger=str(tmp_path / "ledger"))
        one.ledger.demand(PLAN)
    homes[0].pay(1)
    with pytest.raises(PrivacyBudgetExceededError):
        homes[1].ledger.demand(PLAN)
    homes[1].invited(1)
    with pytest.raises(PrivacyBudgetExceededError):
        homes[1].ledger.pay_for(1, PLAN, pytest.fail)


def test_two_homes_in_one_federation_pay_for_each(tmp_path: Path) -> None:
    homes = [Bench(tmp_path / "a"), Bench(tmp_path / "b", site="6" * 32)]
    for one in homes:
        one.allow(ledger=str(tmp_path / "ledger"))
        one.pay(1)
    assert len(homes[0].account().state.counting()) == 2
    for one in homes:
        one.ledger.check()


def test_each_home_is_held_to_its_own_limits(tmp_path: Path) -> None:
    strict, lax = Bench(tmp_path / "a"), Bench(tmp_path / "b", site="6" * 32)
    strict.allow(epsilon_weekly=ONE, ledger=str(tmp_path / "ledger"))
    lax.allow(ledger=str(tmp_path / "ledger"))
    strict.pay(1)
    lax.pay(1)
    with pytest.raises(PrivacyBudgetExceededError):
        strict.ledger.demand(PLAN)
    lax.pay(2)


def test_ledger_whose_disk_is_not_there_is_not_made(tmp_path: Path) -> None:
    one = Bench(tmp_path / "a")
    one.allow(ledger=str(tmp_path / "not" / "mounted"))
    one.invited(1)
    with pytest.raises(StoreFailedError):
        one.ledger.pay_for(1, PLAN, pytest.fail)


# ---- the agent ----------------------------------------------------------------------


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with opened(tmp_path, plan=PRIVATE) as made:
        made.approve()
        yield made


def test_invitation_that_cannot_be_paid_is_declined_before_training(scene: Scene) -> None:
    Policy(epsilon_weekly=0.5).write(scene.lab.home.policy_file)
    scene.invite(scene.train())
    assert scene.listener.ask()
    assert scene.tools.machine.owed() == p.TellFailure(1, Failure.BUDGET)
    assert (scene.events[-1].kind, scene.events[-1].code) == (Kind.DECLINED, "E0501")
    assert "it never frees" in scene.events[-1].text  # not even an empty week would do
    (trouble,) = noted(scene.lab.home)
    assert (trouble.code, trouble.round) == ("E0501", 1)
    scene.listener.ask()
    assert len([event for event in scene.events if event.kind is Kind.DECLINED]) == 1
    Policy(epsilon_weekly=2.0).write(scene.lab.home.policy_file)
    scene.invite(scene.train(2))
    assert scene.listener.ask()
    assert scene.state.stage is Stage.TRAINING
    assert noted(scene.lab.home) == []


def test_plan_whose_noise_does_not_keep_its_promise_is_declined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made the lock wrote less noise into it than the plan's epsilon takes."""
    monkeypatch.setattr(noise, "_check", lambda plan: None)
    with opened(tmp_path, plan=f"{PRIVATE}noise_multiplier = 0.5\n") as scene:
        scene.approve()
        scene.invite(scene.train())
        assert scene.listener.ask()
        assert scene.tools.machine.owed() == p.TellFailure(1, Failure.POLICY)
        assert "and the plan promises 1" in scene.events[-1].text


def test_coordinators_clock_frees_nothing(scene: Scene) -> None:
    Policy(epsilon_weekly=ONE).write(scene.lab.home.policy_file)
    _train(scene)
    scene.says = {"now_ms": NOW_MS + 400 * DAY_MS, "settled": {"round": 1, "is_counted": True}}
    scene.invite(scene.train(2, NOW_MS + 401 * DAY_MS))
    scene.listener.ask()
    assert scene.tools.machine.owed() == p.TellFailure(2, Failure.BUDGET)
    assert "it frees at 20" in scene.events[-1].text


def test_worker_pays_before_it_spools(scene: Scene) -> None:
    _train(scene)
    kinds = [type(fact) for _, fact in scene.tools.machine.facts()]
    held = [at for at, kind in enumerate(kinds) if kind is s.SpendingHeld]
    assert held[0] < held[1] < kinds.index(s.UpdateSpooled)
    spent = account_at(scene.lab.home).state.counting()
    assert [one.standing for one in spent] == [Standing.CHARGED]


def test_budget_that_went_while_an_invitation_was_taken_ends_the_round(scene: Scene) -> None:
    scene.invite(replace(scene.train(), base=scene.lab.first))
    assert scene.listener.ask()
    Policy(epsilon_weekly=0.5).write(scene.lab.home.policy_file)
    _work(scene)
    assert scene.tools.machine.owed() == p.TellFailure(1, Failure.BUDGET)
    assert scene.events[-1].code == "E0501"


def test_old_copy_of_the_ledger_ends_the_agent_and_is_told(scene: Scene) -> None:
    _train(scene)
    scene.tools.ledger.close()
    shutil.rmtree(scene.lab.home.path / FOLDER)
    scene.invite(scene.train(2))
    with pytest.raises(RestoredBackupError):
        scene.listener.ask()
    assert scene.asked()["objection"] == "E0905"
    assert scene.state.round == 1
    with pytest.raises(RestoredBackupError):
        Listener(scene.tools, Situation()).run()  # as after a restart


def test_worker_stops_at_an_old_copy(scene: Scene) -> None:
    scene.invite(replace(scene.train(), base=scene.lab.first))
    assert scene.listener.ask()
    scene.tools.machine.feed(p.Reserved(1, 9, NOW_MS))  # and the ledger has nothing
    scene.situation.is_current = True
    worker = Worker(scene.tools, scene.situation)
    try:
        with pytest.raises(RestoredBackupError):
            worker.run()
    finally:
        worker.close()
    assert scene.state.stage is Stage.TRAINING


def test_leftovers_are_settled_once_an_answer_was_verified(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []

    def settle(_: OwnLedger) -> None:
        happened.append("settled")
        scene.tools.stop.set()

    def ask() -> bool:
        happened.append("asked")
        scene.situation.is_clear = True
        return True

    monkeypatch.setattr(OwnLedger, "settle", settle)
    monkeypatch.setattr(scene.listener, "ask", ask)
    scene.listener.run()
    assert happened == ["asked", "settled"]


def _train(scene: Scene) -> None:
    scene.invite(replace(scene.train(), base=scene.lab.first))
    assert scene.listener.ask()
    _work(scene)
    assert scene.state.stage is Stage.SENDING
    scene.tools.machine.feed(p.Heard(p.SendUpdate(1, scene.state.update or MODEL), NOW_MS))


def _work(scene: Scene) -> None:
    data = scene.lab.home.path.parent / "study" / "data" / "north.csv"
    scene.lab.home.change(data=data)
    worker = Worker(scene.tools, scene.situation)
    try:
        assert worker._step()
    finally:
        worker.close()


# ---- noise --------------------------------------------------------------------------


def test_noise_of_a_real_site_is_secret_whatever_its_seed(tmp_path: Path) -> None:
    """The same enrolment, round, seat and model: a simulation would give the same bytes."""
    made = lab(tmp_path, plan=PRIVATE)
    assert made.home.enrolment.seed is not None
    workshop = Workshop(made.home, made.reviewed)
    try:
        updates = {workshop.train(1, SEAT, made.first).update for _ in range(2)}
    finally:
        workshop.close()
        made.home.close()
    assert len(updates) == 2


RECORD = """
[privacy]
unit = "record"
noise_multiplier = 1.0
side_noise = 3.0
sampling_rate = 0.5
steps = 2
"""
NETWORK = """
import consortium as co
from torch import nn

@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy", "auroc"])
def study(site):
    train, test = co.read_csv(site.data, label="label", split="record")
    return nn.Linear(train.n_features, train.n_classes), train, test
"""


def test_only_noised_accuracy_leaves_of_what_a_task_measures(tmp_path: Path) -> None:
    made = lab(tmp_path, "torch", plan=RECORD, task=NETWORK)
    assert len(made.lock.metrics) > 1
    workshop = Workshop(made.home, made.reviewed)
    try:
        trained = [workshop.train(1, SEAT, made.first) for _ in range(2)]
        base = (made.first, 0)
        told = workshop.evaluate(1, SEAT, made.first, base, (None, trained[1].private_state))
    finally:
        workshop.close()
        made.home.close()
    assert trained[0].update != trained[1].update  # seeded, and still nobody can draw it again
    assert len(told.candidate) == len(told.base) == len(made.reviewed.reported) == 1
    assert told.candidate[0] == int(told.candidate[0])


def test_costs_of_the_plan_are_those_of_its_rounds() -> None:
    assert PLAN.budget is not None and PLAN.budget.costs == COSTS
    assert isinstance(COSTS[0], Cost) and epsilon(COSTS, 1e-5) == pytest.approx(1.0, rel=1e-4)
    assert len(payer(WHO)) == 64


def test_every_unit_that_a_plan_can_promise_has_its_account() -> None:
    """What a crash left reserved is looked for in all of them."""
    assert set(UNITS) == set(ADJACENCY)
