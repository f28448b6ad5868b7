"""Federations among faults: rules hold, seeds replay, planted bugs are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from consortium.core import facts as f
from consortium.core import secagg_facts as m
from consortium.core.codec import decode
from consortium.core.ids import Seat
from consortium.core.terms import MINUTE_MS, Close, Terms
from consortium.drive.clock import Clock
from consortium.drive.driver import Hands
from consortium.drive.hands import CoordinatorHands
from consortium.model import Layout, Vector
from consortium.plan.strategy import StrategySection
from consortium.store.ports import Blobs
from consortium.testing.patches import planted
from consortium.testing.world import Violation, World, main, weighted_mean
from consortium.testing.world_bugs import BUGS
from consortium.testing.world_campaign import MAX_HUNT, hunt, run_seed

BLOCK = 50
KINDS = {
    "message lost",
    "message duplicated",
    "message delayed",
    "message reordered",
    "reply lost",
    "coordinator crash before a commit",
    "coordinator crash inside a commit",
    "coordinator crash after a commit",
    "coordinator paused",
    "unknown commit, written",
    "unknown commit, not written",
    "disk full",
    "site crash at rest",
    "site crash before its own commit",
    "site crash after its own commit",
    "site crash before the spool is named",
    "clock jump of a coordinator",
    "clock jump of a site",
    "old backup of a site's log",
    "old backup of the coordinators' log",
    "hostile: for another seat",
    "hostile: wrong round",
    "hostile: wrong base",
    "hostile: not a number",
    "hostile: garbage",
    "hostile: too loud",
    "hostile: late",
    "hostile: another digest",
    "hostile: forged evaluation",
    "hostile: evaluation without a seat",
    "hostile: replay",
}


# What happens besides where rounds cost something.
BUDGET_KINDS = {
    "coordinator crash inside a commit of an account",
    "coordinator crash after a commit of an account",
    "unknown commit of an account, written",
    "unknown commit of an account, not written",
    "coordinator crash inside a charge or release",
    "coordinator crash after a charge or release",
    "unknown charge or release, written",
    "unknown charge or release, not written",
    "coordinator paused before it asks an account",
    "old backup of an account",
    "old backup of the coordinators' log",
    "old backup of a site's account",
    "old backup of a site's log",
    "site crash before its account's commit",
    "site crash after its account's commit",
}


MASKED_KINDS = {
    "site crash before its seeds are durable",
    "site crash after its seeds are durable",
    "site crash before a list is kept",
    "hostile: keys of another",
    "hostile: other keys",
    "hostile: a row of noise",
    "hostile: a row that is too short",
    "hostile: a wrong signature",
    "hostile: a wrong answer",
    "hostile: an answer for strangers",
    "hostile: late",
    "hostile: another digest",
    "old backup of a site's log",
    "old backup of the coordinators' log",
}


def _run(
    seeds: Sequence[int], *, has_budgets: bool = False, is_masked: bool = False
) -> tuple[Counter[str], Counter[str]]:
    """(faults by kind, rounds by how they ended)."""
    faults: Counter[str] = Counter()
    rounds: Counter[str] = Counter()
    for seed in seeds:
        result = run_seed(seed, has_budgets=has_budgets, is_masked=is_masked)
        assert not result.rule, f"seed {seed} broke {result.rule}: {result.message}"
        faults.update(result.faults)
        rounds.update(completed=result.completed, failed=result.failed)
    return faults, rounds


@pytest.mark.parametrize("first", range(0, 6 * BLOCK, BLOCK))
def test_rules_hold_among_faults(first: int) -> None:
    faults, rounds = _run(range(first, first + BLOCK))
    assert faults.total() >= 50 * BLOCK
    assert rounds["completed"] > BLOCK / 2
    assert rounds["failed"] > 0


def test_every_kind_of_fault_happens() -> None:
    faults, _ = _run(range(1000, 1000 + BLOCK))
    assert not KINDS - faults.keys()


@pytest.mark.parametrize("first", [0, 60])
def test_rules_hold_where_rounds_cost_something(first: int) -> None:
    faults, rounds = _run(range(first, first + 60), has_budgets=True)
    assert not BUDGET_KINDS - faults.keys()
    assert rounds["completed"] > 60
    assert rounds["failed"] > 0


def test_budgets_are_spent_freed_and_shared() -> None:
    """The rules about limits would be idle in worlds that never come to them."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        world = World(seed, has_budgets=True)
        world.run()
        purse, money = world.purse, world.money
        assert purse is not None and money is not None
        seen["central" if purse.is_central else "at sites"] += 1
        seen["drawn twice, told once"] += sum(len(draws) > 1 for draws in money.draws.values())
        seen["neighbour"] += any(who == "neighbour" for who, _ in money.book.entries)
        seen["weeks"] += any("days pass" in line for line in world.lines)
        seen["declined"] += any("InvitationDeclined" in line for line in world.lines)
        seen["plan changed while an account was asked"] += world.watch.past.state.voided > 0
        told = {type(decode(record)).__name__ for record in world.records()}
        seen.update(told & {"BudgetRefused", "BudgetCharged", "BufferingAdopted"})
    assert min(seen.values()) > 2 and len(seen) == 10, seen


def test_rules_hold_where_sums_are_secret() -> None:
    faults, rounds = _run(range(80), is_masked=True)
    assert not MASKED_KINDS - faults.keys()
    assert rounds["completed"] > 40
    assert rounds["failed"] > 20


def test_secret_sums_lose_sites_and_fail_in_every_step() -> None:
    """The rules about splits would be idle in worlds in which everybody answers."""
    seen: Counter[str] = Counter()
    reasons = {"NO_QUORUM", "MEMBER_REVOKED", "CANCELLED", "AGGREGATION"}
    reasons |= {"NOT_AGREED", "NOT_ANSWERED"}
    sums = {"left out while sharing", "sum without all who shared", "sum of all"}
    for seed in range(400):  # until all were seen: some are rare
        if seen.keys() >= reasons | sums:
            break
        world = World(seed, is_masked=True)
        world.run()
        sharers: tuple[Seat, ...] = ()
        keys = dropped = 0
        for fact in map(decode, world.records()):
            match fact:
                case m.KeysClosed():
                    keys = len(fact.seats)
                case m.SharesClosed():
                    sharers = fact.seats
                    seen["left out while sharing"] += len(sharers) < keys
                case f.RoundClosed():
                    dropped = len(set(sharers) - set(fact.members))
                case f.Aggregated():
                    seen["sum without all who shared" if dropped else "sum of all"] += 1
                case f.RoundFailed():
                    seen[fact.reason.name] += 1
                case _:
                    pass
    assert seen.keys() >= reasons | sums, seen


def test_every_planted_bug_is_found() -> None:
    missed = [catch.bug for catch in map(hunt, range(len(BUGS))) if not catch.seeds]
    assert not missed, f"not found within {MAX_HUNT} seeds"


def test_planted_bugs_leave_no_trace() -> None:
    before = run_seed(3).digest
    for bug in BUGS:
        with planted(bug):
            pass
    assert run_seed(3).digest == before


# ---- seeds --------------------------------------------------------------------------


def test_a_seed_replays() -> None:
    assert run_seed(11) == run_seed(11)
    assert run_seed(11).digest != run_seed(12).digest


def test_a_seed_does_not_depend_on_hash_randomisation() -> None:
    command = [sys.executable, "-m", "consortium.testing.world", "--seed", "5"]
    outputs = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": value},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for value in ("1", "2")
    }
    assert len(outputs) == 1
    assert run_seed(5).digest in outputs.pop()


# ---- a plan, an aggregation and a formula of one's own ------------------------------


def test_terms_of_ones_own_are_used() -> None:
    terms = Terms(
        rounds=1,
        quorum=2,
        wait_for=3,
        target=3,
        duration_ms=5 * MINUTE_MS,
        close=Close.QUORUM,
    )
    world = World(1, terms=terms, sites=9)
    world.run()
    assert world.watch.past.state.terms == terms
    assert len(world.sites) == 9


def _half_step(blobs: Blobs, clock: Clock) -> Hands:
    layout = Layout.of({"w": np.zeros(5)})
    strategy = StrategySection(server_lr=0.5)
    return CoordinatorHands(layout, strategy, blobs, clock, lambda number: bytes(32))


def _half(base: Vector, steps: Sequence[tuple[Vector, float]]) -> Vector:
    return base + 0.5 * (weighted_mean(base, steps) - base)


def test_an_aggregation_of_ones_own_is_held_against_its_formula() -> None:
    runs = [World(seed, sites=5, make_hands=_half_step, combine=_half).run() for seed in range(10)]
    assert sum(run.completed for run in runs) > 0  # `run` raises when a sum is not its formula


def test_an_aggregation_that_differs_from_its_formula_is_noticed() -> None:
    world = World(0, sites=5, make_hands=_half_step)
    with pytest.raises(Violation, match="I-R3"):
        world.run()


# ---- the command line ---------------------------------------------------------------


def test_trace_tells_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4", "--trace"]) == 0
    told = capsys.readouterr().out
    for word in ("RoundOpened", "FAULT", "site 1 →", "the faults stop", "trace digest"):
        assert word in told


def test_a_broken_rule_says_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    twice = next(bug for bug in BUGS if "counted twice" in bug.name)
    with planted(twice):
        assert main(["--seeds", "6", "--first", "40", "--workers", "1"]) == 1
        told = capsys.readouterr().out
        assert "I-R3" in told
        replay = told.rpartition("replay: python -m consortium.testing.world ")[2].split()
        assert main(replay) == 1
    assert "BROKEN I-R3" in capsys.readouterr().out


def test_a_broken_budget_says_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    again = next(bug for bug in BUGS if "noise is drawn again" in bug.name)
    with planted(again):
        assert main(["--seeds", "3", "--budgets", "--workers", "1"]) == 1
        told = capsys.readouterr().out
        assert "I-P2" in told
        replay = told.rpartition("replay: python -m consortium.testing.world ")[2].split()
        assert "--budgets" in replay and main(replay) == 1
    assert "BROKEN I-P2" in capsys.readouterr().out


def test_a_broken_secret_says_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    bare = next(bug for bug in BUGS if "without its masks" in bug.name)
    with planted(bare):
        assert main(["--seeds", "2", "--masked", "--workers", "1"]) == 1
        told = capsys.readouterr().out
        assert "I-X1" in told
        replay = told.rpartition("replay: python -m consortium.testing.world ")[2].split()
        assert "--masked" in replay and main(replay) == 1
    assert "BROKEN I-X1" in capsys.readouterr().out


def test_an_unexpected_error_is_a_broken_rule_too() -> None:
    key = next(bug for bug in BUGS if "does not learn" in bug.name)
    with planted(key):
        broken = [run_seed(seed) for seed in range(30)]
    assert any("NoteError" in result.message for result in broken)


def test_json_over_two_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "6", "--workers", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == 6
    assert told["violations"] == 0
    assert told["faults"]
