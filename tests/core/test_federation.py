"""The federation between rounds: founding, plans, versions, opening, holding, ending."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import decide, owed, owed_by
from consortium.core.ids import Seat, SiteId
from consortium.core.state import Federation
from consortium.core.tables import Standing, Step
from consortium.core.terms import DAY_MS, Comparison, Condition
from consortium.errors import (
    FederationOverError,
    InsufficientParticipantsError,
    InvalidInputError,
    NoModelError,
    OnHoldError,
    RoundOpenError,
    UnknownVersionError,
    WrongPhaseError,
)

from .small import (
    SEED,
    START_MS,
    TERMS,
    World,
    digest,
    evaluating,
    founded,
    ready,
    summing,
    training,
)


def kinds(facts: tuple[Any, ...]) -> list[type[Any]]:
    return [type(fact) for fact in facts]


# ---- founding, plan, model ----------------------------------------------------------


def test_founding_twice_with_one_id_changes_nothing() -> None:
    world = founded("f1")
    assert world.give(i.Found("f1", START_MS)) == ()


def test_founding_another_federation_in_the_same_stream_is_refused() -> None:
    with pytest.raises(WrongPhaseError):
        founded("f1").give(i.Found("f2", START_MS))


def test_founding_without_an_id_is_refused() -> None:
    for world in (World(), founded("f1")):
        with pytest.raises(InvalidInputError):
            world.give(i.Found("", START_MS))


def test_plan_needs_a_founded_federation() -> None:
    with pytest.raises(WrongPhaseError, match="found the federation"):
        World().adopt(TERMS)


def test_adopting_the_same_plan_again_changes_nothing() -> None:
    world = ready()
    assert world.adopt(TERMS) == ()
    assert kinds(world.adopt(replace(TERMS, rounds=7), "plan 2")) == [f.PlanAdopted]


@pytest.mark.parametrize(
    "change",
    [
        {"judged_by": "auroc"},
        {"stop_below": 0.1},
        {"quorum": 0},
        {"wait_for": 2},
        {"gate_window": 0},
    ],
)
def test_terms_that_the_core_cannot_work_with_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="cannot be"):
        founded().adopt(replace(TERMS, **change))


def test_plan_whose_rounds_have_all_been_run_is_refused() -> None:
    world = training()
    world.give(i.CancelRound(1, START_MS))
    with pytest.raises(WrongPhaseError, match="1 have been run"):
        world.adopt(replace(TERMS, rounds=1), "plan 2")


def test_plan_with_another_layout_than_the_model_is_refused() -> None:
    world = ready()
    other = i.AdoptPlan(digest("p"), digest("t"), digest("other layout"), TERMS, START_MS)
    with pytest.raises(WrongPhaseError, match="another layout"):
        world.give(other)


def test_layout_may_change_while_there_is_no_model() -> None:
    world = founded()
    world.adopt(TERMS)
    world.give(i.AdoptPlan(digest("p"), digest("t"), digest("other layout"), TERMS, START_MS))
    assert world.state.layout == digest("other layout")
    assert world.state.standing is Standing.PLANNED


@pytest.mark.parametrize(
    "item",
    [
        i.AdoptPlan(digest("p2"), digest("t"), digest("layout"), TERMS, START_MS),
        i.InstallModel(digest("m2"), START_MS),
        i.RollBack(1, START_MS),
        i.Stop(START_MS),
        i.OpenRound(START_MS),
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_belongs_between_rounds_is_refused_while_one_is_open(item: i.Input) -> None:
    world = ready()
    world.give(i.InstallModel(digest("model 1"), START_MS))
    world.give(i.RollBack(0, START_MS))
    world.open()
    with pytest.raises(RoundOpenError, match="round 1 is open"):
        world.give(item)


def test_model_is_installed_once_a_plan_is_there() -> None:
    world = founded()
    with pytest.raises(WrongPhaseError):
        world.give(i.InstallModel(digest("m"), START_MS))
    world.adopt(TERMS)
    (installed,) = world.give(i.InstallModel(digest("m"), START_MS))
    assert installed.version == 0
    assert world.give(i.InstallModel(digest("m"), START_MS)) == ()
    (warm,) = world.give(i.InstallModel(digest("warm start"), START_MS))
    assert warm.version == 1
    assert world.state.current == 1


def test_before_a_plan_there_is_nothing_to_do() -> None:
    world = founded()
    assert owed(world.state) == ()
    assert world.tick() == ()
    with pytest.raises(NoModelError):
        world.give(i.OpenRound(START_MS))
    with pytest.raises(NoModelError):
        world.give(i.Submit(1, Seat(1), digest("u"), None, START_MS))


def test_round_needs_a_model() -> None:
    world = founded()
    world.adopt(TERMS)
    with pytest.raises(NoModelError):
        world.give(i.OpenRound(START_MS))
    assert world.tick() == ()


# ---- opening (R2) -------------------------------------------------------------------


def test_round_records_number_version_base_quorum_target_and_deadline() -> None:
    world = ready()
    (opened,) = world.give(i.OpenRound(START_MS))
    deadline_ms = START_MS + TERMS.duration_ms
    assert opened == f.RoundOpened(1, 0, digest("model 0"), None, 3, 3, deadline_ms, START_MS)
    assert owed(world.state) == (d.Draw(1),)


def test_round_waits_for_the_plans_number_of_sites() -> None:
    world = ready(sites=2)
    with pytest.raises(InsufficientParticipantsError, match="2 sites have joined; a round needs 3"):
        world.give(i.OpenRound(START_MS))
    assert owed(world.state) == ()
    world.give(i.Admit(SiteId("s3"), b"", START_MS))
    assert owed(world.state) == (d.WakeAt(0),)
    assert kinds(world.tick()) == [f.RoundOpened]


def test_seed_of_the_wrong_length_is_refused() -> None:
    world = ready()
    world.give(i.OpenRound(START_MS))
    with pytest.raises(InvalidInputError):
        world.give(i.Drawn(1, SEED[:31], START_MS))


def test_first_seed_stands() -> None:
    world = training()
    assert world.give(i.Drawn(1, bytes(32), START_MS)) == ()
    assert world.round.seed == SEED


def test_seed_for_another_round_is_old_news() -> None:
    world = ready()
    assert world.give(i.Drawn(1, SEED, START_MS)) == ()
    world.give(i.OpenRound(START_MS))
    assert world.give(i.Drawn(2, SEED, START_MS)) == ()
    assert world.round.step is Step.INITIALIZED


def test_time_alone_does_not_move_a_round_without_a_seed() -> None:
    world = ready()
    world.give(i.OpenRound(START_MS))
    assert world.tick(START_MS + 10 * DAY_MS) == ()


def test_invitations_name_seats_eligible_target_and_a_fresh_deadline() -> None:
    world = ready(sites=5)
    world.give(i.OpenRound(START_MS))
    _, invited = world.give(i.Drawn(1, SEED, START_MS + 5000))
    assert len(invited.seats) == 3
    assert (invited.eligible, invited.target) == (5, 3)
    assert invited.deadline_ms == START_MS + 5000 + TERMS.duration_ms
    assert world.round.deadline_ms == invited.deadline_ms


# ---- selecting: too few are eligible ------------------------------------------------

NEEDS_POWER = replace(TERMS, conditions=(Condition("has_power", Comparison.EQUAL, True),))


def _selecting() -> World:
    world = ready(sites=3, terms=NEEDS_POWER)
    world.open()
    assert world.round.step is Step.SELECTING
    return world


def _power(world: World, seat: int) -> tuple[Any, ...]:
    return world.give(i.Report(Seat(seat), (("has_power", True),), world.now_ms))


def test_round_invites_when_the_last_needed_site_reports() -> None:
    world = _selecting()
    assert owed(world.state) == (d.WakeAt(world.round.deadline_ms + 1),)
    assert kinds(_power(world, 1)) == [f.SiteReported]
    assert kinds(_power(world, 2)) == [f.SiteReported]
    assert kinds(_power(world, 3)) == [f.SiteReported, f.SitesInvited]
    assert world.round.step is Step.TRAINING


def test_round_invites_when_a_newcomer_makes_it_enough() -> None:
    world = ready(sites=3)
    world.now_ms += DAY_MS + 1  # nobody was seen for a day
    world.open()
    assert world.round.step is Step.SELECTING
    world.give(i.Report(Seat(1), (), world.now_ms))
    world.give(i.Admit(SiteId("s4"), b"", world.now_ms))
    assert world.round.step is Step.SELECTING
    facts = world.give(i.AdmitCohort(1, world.now_ms))
    assert kinds(facts) == [f.CohortAdmitted, f.SitesInvited]
    assert facts[1].seats == (1, 4, 5)


def test_round_without_eligible_sites_fails_at_its_deadline() -> None:
    world = _selecting()
    deadline_ms = world.round.deadline_ms
    assert world.tick(deadline_ms) == ()
    (failed,) = world.tick(deadline_ms + 1)
    assert failed.reason is f.RoundEnd.NO_ELIGIBLE_SITES


def test_round_invites_those_who_are_there_at_the_last_moment() -> None:
    world = ready(sites=3)
    world.now_ms += DAY_MS + 1
    world.open()
    for seat in (1, 2):
        world.give(i.Report(Seat(seat), (), world.now_ms))
    world.now_ms = world.round.deadline_ms + 1
    facts = world.give(i.Report(Seat(3), (), world.now_ms))
    assert kinds(facts) == [f.SiteReported, f.SitesInvited]


def test_roster_that_shrank_below_the_minimum_is_not_invited() -> None:
    world = ready(sites=3)
    world.give(i.OpenRound(START_MS))
    world.dismiss(3)
    world.give(i.Drawn(1, SEED, START_MS))
    assert world.round.step is Step.SELECTING


# ---- cadence, retry, hold, stop -----------------------------------------------------


def test_next_round_opens_at_once_without_a_cadence() -> None:
    world = summing()
    world.finish_round()
    assert owed(world.state) == (d.WakeAt(START_MS),)
    assert kinds(world.tick()) == [f.RoundOpened]


def test_rounds_open_on_the_cadence_counted_from_opening_to_opening() -> None:
    world = summing(terms=replace(TERMS, every_ms=DAY_MS))
    world.now_ms += 7_000_000  # a slow round does not shift the next one
    world.finish_round()
    assert owed(world.state) == (d.WakeAt(START_MS + DAY_MS),)
    assert world.tick(START_MS + DAY_MS - 1) == ()
    assert kinds(world.tick(START_MS + DAY_MS)) == [f.RoundOpened]


def test_lead_may_open_a_round_before_it_is_due() -> None:
    world = summing(terms=replace(TERMS, every_ms=DAY_MS))
    world.finish_round()
    assert kinds(world.give(i.OpenRound(START_MS + 1))) == [f.RoundOpened]
    assert world.state.next_due_ms == START_MS + 1 + DAY_MS


def test_after_a_failed_round_comes_a_pause() -> None:
    world = training()
    (failed,) = world.give(i.CancelRound(1, START_MS + 10))
    assert failed.reason is f.RoundEnd.CANCELLED
    assert owed(world.state) == (d.WakeAt(START_MS + 10 + TERMS.retry_ms),)
    assert world.tick(START_MS + 9 + TERMS.retry_ms) == ()
    assert kinds(world.tick(START_MS + 10 + TERMS.retry_ms)) == [f.RoundOpened]


def test_pause_after_a_failed_round_does_not_shorten_the_cadence() -> None:
    world = training(terms=replace(TERMS, every_ms=DAY_MS))
    world.give(i.CancelRound(1, START_MS + 10))
    assert owed(world.state) == (d.WakeAt(START_MS + DAY_MS),)


def test_a_round_that_failed_is_tried_again_before_the_cadence() -> None:
    world = training(terms=replace(TERMS, every_ms=DAY_MS))
    world.fail(1)
    assert owed(world.state) == (d.WakeAt(START_MS + TERMS.retry_ms),)


def test_what_is_so_already_is_no_error_while_a_round_is_open() -> None:
    world = training()
    assert world.adopt(TERMS) == ()
    assert world.give(i.InstallModel(digest("model 0"), START_MS)) == ()
    assert world.give(i.RollBack(0, START_MS)) == ()
    world.give(i.CancelRound(1, START_MS))
    assert world.give(i.CancelRound(1, START_MS)) == ()


def test_no_round_opens_by_itself_while_too_few_are_eligible() -> None:
    world = ready(terms=replace(TERMS, seen_within_ms=1000))
    assert world.tick(START_MS + 5000) == ()
    for seat in (1, 2, 3):
        world.give(i.Report(Seat(seat), (("gpu", True),), world.now_ms))
    assert kinds(world.tick()) == [f.RoundOpened]


def test_scores_of_withdrawn_versions_are_no_measure() -> None:
    world = evaluating()
    for seat in (1, 2, 3):
        world.score(seat)
    world.judge()
    world.release()
    assert world.state.scores == [0.2]
    world.give(i.RollBack(0, START_MS))
    assert (world.state.scores, world.state.best_score) == ([], None)


@pytest.mark.parametrize("item", [i.Hold(0), i.Admit(SiteId("s1"), b"", 0), i.Tick(0)])
def test_nothing_happens_before_the_federation_is_founded(item: i.Input) -> None:
    with pytest.raises(WrongPhaseError, match="found the federation first"):
        World().give(item)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 65])
def test_ids_are_plain(name: str) -> None:
    with pytest.raises(InvalidInputError):
        World().give(i.Found(name, START_MS))
    with pytest.raises(InvalidInputError):
        founded().give(i.Admit(SiteId(name), b"", START_MS))


@pytest.mark.parametrize("number", [0, 2])
def test_cancelling_a_round_that_is_not_open_is_refused(number: int) -> None:
    with pytest.raises(WrongPhaseError):
        training().give(i.CancelRound(number, START_MS))
    with pytest.raises(WrongPhaseError):
        ready().give(i.CancelRound(number, START_MS))


def test_held_federation_opens_no_round_until_it_is_resumed() -> None:
    world = ready()
    assert kinds(world.give(i.Hold(START_MS))) == [f.FederationHeld]
    assert world.give(i.Hold(START_MS)) == ()
    assert owed(world.state) == ()
    assert world.tick() == ()
    with pytest.raises(OnHoldError):
        world.give(i.OpenRound(START_MS))
    assert kinds(world.give(i.Resume(START_MS))) == [f.FederationResumed]
    assert world.give(i.Resume(START_MS)) == ()
    assert kinds(world.tick()) == [f.RoundOpened]


def test_hold_lets_the_open_round_end() -> None:
    world = training()
    world.give(i.Hold(START_MS))
    world.send(1, 2, 3)
    world.finish_round()
    assert world.state.current == 1
    assert owed(world.state) == ()


def test_stopped_federation_opens_no_round() -> None:
    world = ready()
    (finished,) = world.give(i.Stop(START_MS))
    assert finished.reason is f.Finish.STOPPED
    assert world.give(i.Stop(START_MS)) == ()
    assert owed(world.state) == ()
    assert world.tick() == ()
    with pytest.raises(FederationOverError, match="STOPPED"):
        world.give(i.OpenRound(START_MS))


def test_federation_that_has_not_begun_cannot_be_stopped() -> None:
    with pytest.raises(WrongPhaseError):
        founded().give(i.Stop(START_MS))


def test_last_round_ends_the_federation_and_a_longer_plan_goes_on() -> None:
    world = summing(terms=replace(TERMS, rounds=1))
    *_, finished = world.finish_round()
    assert finished == f.FederationFinished(f.Finish.ROUNDS_DONE, START_MS)
    assert world.state.standing is Standing.FINISHED
    world.adopt(replace(TERMS, rounds=2), "longer")
    assert world.state.standing is Standing.READY
    assert kinds(world.tick()) == [f.RoundOpened]
    assert world.round.number == 2


def test_failed_last_round_ends_the_federation_too() -> None:
    world = training(terms=replace(TERMS, rounds=1))
    assert kinds(world.give(i.CancelRound(1, START_MS))) == [f.RoundFailed, f.FederationFinished]


# ---- versions (L9) ------------------------------------------------------------------


def _two_versions() -> World:
    world = summing()
    world.finish_round()
    world.open()
    world.send(1, 2, 3)
    world.finish_round()
    return world


def test_every_published_model_is_kept_with_its_server_state() -> None:
    versions = _two_versions().state.versions
    assert [(version.model, version.round) for version in versions.values()] == [
        (digest("model 0"), 0),
        (digest("model 1"), 1),
        (digest("model 2"), 2),
    ]
    assert [version.server_state for version in versions.values()] == [
        None,
        digest("state"),
        digest("state"),
    ]


def test_round_after_a_roll_back_starts_from_the_older_version() -> None:
    world = _two_versions()
    assert world.give(i.RollBack(1, START_MS)) == (f.RolledBack(1, START_MS),)
    assert world.give(i.RollBack(1, START_MS)) == ()
    world.open()
    assert (world.round.version, world.round.base) == (1, digest("model 1"))
    assert world.round.server_state == digest("state")
    world.send(1, 2, 3)
    world.finish_round()
    assert world.state.current == 3  # numbers are not reused
    assert len(world.state.versions) == 4


def test_roll_back_to_a_version_that_never_was_is_refused() -> None:
    with pytest.raises(UnknownVersionError):
        _two_versions().give(i.RollBack(9, START_MS))


def test_finished_federation_may_still_be_rolled_back() -> None:
    world = _two_versions()
    world.give(i.Stop(START_MS))
    world.give(i.RollBack(0, START_MS))
    assert (world.state.current, world.state.standing) == (0, Standing.FINISHED)


# ---- what sites are asked -----------------------------------------------------------


def test_invited_site_is_asked_to_train_and_others_are_not() -> None:
    world = ready(sites=5)
    assert owed_by(world.state, Seat(1)) is None
    world.open()
    invited = set(world.round.invited)
    for seat in range(1, 7):
        duty = owed_by(world.state, Seat(seat))
        if seat not in invited:
            assert duty is None
            continue
        assert duty == d.Train(
            1,
            Seat(seat),
            digest("model 0"),
            None,
            digest("plan"),
            digest("task"),
            START_MS + TERMS.duration_ms,
            False,
        )


def test_site_that_has_answered_is_asked_for_nothing() -> None:
    world = training()
    world.submit(1)
    assert owed_by(world.state, Seat(1)) is None


# ---- isolation ----------------------------------------------------------------------


def test_two_federations_do_not_touch_each_other() -> None:
    one, other = ready(), ready()
    before = other.state.clone()
    one.open()
    one.send(*one.round.invited)
    one.finish_round()
    assert other.state == before
    other.open()
    other.dismiss(1)
    assert one.state == one.replayed()
    assert other.state == other.replayed()


def test_fresh_states_share_nothing() -> None:
    one, other = Federation(), Federation()
    one.scores.append(1.0)
    one.roster.taken_part[Seat(1)] = 1
    one.roster.cohorts.append((1, 2))
    assert other == Federation()
    assert decide(other, i.Found("f", 1)) == (f.FederationFounded("f", 1),)


# ---- the log's keys -----------------------------------------------------------------


def test_log_keys_are_adopted_in_order_and_never_again() -> None:
    world = founded()
    one, two = bytes(32), bytes([1]) * 32
    assert kinds(world.give(i.AdoptLogKey(one, START_MS))) == [f.LogKeyAdopted]
    assert world.give(i.AdoptLogKey(one, START_MS)) == ()
    world.give(i.AdoptLogKey(two, START_MS))
    assert world.state.log_keys == [one, two]
    for key in (one, b"short"):
        with pytest.raises(InvalidInputError, match="never used again"):
            world.give(i.AdoptLogKey(key, START_MS))
