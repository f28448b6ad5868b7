"""A round whose plan screens: between closing and sum, updates that stand out are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.answers import Status, receipt
from consortium.core.codec import decode
from consortium.core.federation import evolve, owed, owed_by
from consortium.core.ids import Seat
from consortium.core.legal import why_illegal
from consortium.core.state import Federation
from consortium.core.tables import Phase, Step
from consortium.errors import InvalidInputError, UnauthorizedClientError

from .small import JUDGED, SCREENED, START_MS, World, digest, ready, screening, summing, training

JUDGED_TOO = replace(JUDGED, target=5, is_screened=True)
NORM, DIRECTION, DISTANCE = f.Fault.NORM, f.Fault.DIRECTION, f.Fault.DISTANCE


def kinds(facts: tuple[Any, ...]) -> list[type[Any]]:
    return [type(fact) for fact in facts]


def excluding(world: World, *found: tuple[int, f.Fault], count: int = 5) -> tuple[Any, ...]:
    excluded = tuple((Seat(seat), fault) for seat, fault in found)
    return world.give(i.Screened(1, count, excluded, START_MS))


# ---- the way to the screen ----------------------------------------------------------


def test_closed_round_is_screened_before_it_is_summed() -> None:
    world = screening()
    assert (world.round.step, world.round.step.phase) == (Step.SCREENING, Phase.AGGREGATING)
    assert world.give(i.Summed(1, 5, digest("early"), None, START_MS)) == ()
    assert world.give(i.NotSummed(1, 5, f.RoundEnd.NOT_FINITE, START_MS)) == ()
    assert world.tick(world.round.deadline_ms + 1) == ()


def test_round_of_a_plan_without_a_screen_is_summed_at_once() -> None:
    world = summing()
    assert world.round.step is Step.SUMMING
    assert excluding(world, (1, NORM), count=3) == ()


def test_screen_has_every_members_update_in_the_order_of_summation() -> None:
    world = training(sites=5, terms=replace(SCREENED, target=3))
    first = list(world.round.invited)
    world.send(*first[1:])
    (_, backups) = world.fail(first[0])
    world.send(*backups.seats)
    ranks = world.round.invited
    assert owed(world.state) == (
        d.Screen(
            1,
            3,
            digest("model 0"),
            tuple(
                (seat, ranks[seat], digest(f"update {seat}"))
                for seat in (*first[1:], *backups.seats)
            ),
        ),
    )


def test_simulated_sites_are_screened_one_by_one() -> None:
    world = ready(sites=0, terms=SCREENED)
    world.give(i.AdmitCohort(5, START_MS))
    world.open()
    seats = tuple(world.round.waiting)
    with pytest.raises(InvalidInputError, match="one by one"):
        world.give(i.TrainedCohort(1, seats, 5.0, digest("partial"), START_MS))
    world.send(*seats)
    assert len(owed(world.state)[0].updates) == 5  # type: ignore[union-attr]
    assert world.give(i.TrainedCohort(1, seats, 5.0, digest("partial"), START_MS)) == ()


# ---- what it finds ------------------------------------------------------------------


def test_screen_that_finds_nothing_leads_to_the_sum_of_all() -> None:
    world = screening()
    assert world.screen() == (f.UpdatesScreened(1, 5, START_MS),)
    (duty,) = owed(world.state)
    assert isinstance(duty, d.Aggregate) and duty.count == 5


def test_excluded_updates_are_not_summed_and_each_has_its_reason() -> None:
    world = screening(terms=JUDGED_TOO)
    assert excluding(world, (2, DIRECTION), (5, DISTANCE)) == (
        f.UpdateExcluded(1, Seat(2), DIRECTION, START_MS),
        f.UpdateExcluded(1, Seat(5), DISTANCE, START_MS),
        f.UpdatesScreened(1, 3, START_MS),
    )
    (duty,) = owed(world.state)
    assert isinstance(duty, d.Aggregate)
    assert [update for _, update in duty.updates] == [digest(f"update {s}") for s in (1, 3, 4)]
    told = receipt(world.state, 1, Seat(5))
    assert told is not None and (told.status, told.why) == (Status.NOT_COUNTED, DISTANCE)
    kept = receipt(world.state, 1, Seat(1))
    assert kept is not None and kept.status is Status.ACCEPTED
    world.sum()
    assert owed_by(world.state, Seat(2)) is None
    with pytest.raises(UnauthorizedClientError, match="only members"):
        world.score(2)


def test_norm_of_the_excluded_is_forgotten() -> None:
    world = training(sites=5, terms=SCREENED)
    world.send(1, 2, 3, norm=1.0)
    world.send(4, norm=2.0)
    world.send(5, norm=None)
    world.screen(4, 5)
    assert world.round.norms == [1.0, 1.0, 1.0]
    assert world.state == world.replayed()


def test_loud_update_is_out_before_the_screen() -> None:
    world = training(sites=5, terms=SCREENED)
    world.send(1, 2, 3, 4, norm=1.0)
    world.send(5, norm=99.0)
    with pytest.raises(InvalidInputError, match="members"):
        world.screen(5)
    world.screen(4)
    assert world.round.fallen == {5: f.Fault.MAGNITUDE, 4: NORM}


@pytest.mark.parametrize("seats", [(1, 2, 3), (1, 2, 3, 4, 5)])
def test_round_fails_when_fewer_than_the_quorum_are_left(seats: tuple[int, ...]) -> None:
    world = screening()
    facts = world.screen(*seats)
    assert kinds(facts) == [*[f.UpdateExcluded] * len(seats), f.RoundFailed]
    assert facts[-1].reason is f.RoundEnd.NO_QUORUM
    assert world.state.current == 0 and world.state.round is None


def test_last_round_that_fails_so_ends_the_federation() -> None:
    world = screening(terms=replace(SCREENED, rounds=1))
    facts = world.screen(1, 2, 3)
    assert facts[-1] == f.FederationFinished(f.Finish.ROUNDS_DONE, START_MS)


# ---- repeats, old news and nonsense -------------------------------------------------


@pytest.mark.parametrize("seats", [(), (2,), (1, 2, 3)])
def test_same_screen_again_changes_nothing_and_the_first_one_stands(seats: tuple[int, ...]) -> None:
    world = screening()
    found = [(seat, NORM) for seat in seats]
    excluding(world, *found)
    assert excluding(world, *found) == ()
    assert excluding(world, (4, DISTANCE), count=5 - len(seats)) == ()
    assert world.state == world.replayed()


@pytest.mark.parametrize(("number", "count"), [(1, 4), (1, 6), (0, 5), (2, 5)])
def test_screen_of_others_than_the_members_is_old_news(number: int, count: int) -> None:
    world = screening()
    item = i.Screened(number, count, ((Seat(99), f.Fault.FORMAT),), START_MS)
    assert world.give(item) == ()
    assert world.round.step is Step.SCREENING


def test_screen_before_the_closing_is_old_news() -> None:
    world = training(sites=5, terms=SCREENED)
    assert excluding(world, count=0) == ()


@pytest.mark.parametrize(
    "found",
    [
        [(6, NORM)],
        [(2, NORM), (1, NORM)],
        [(1, NORM), (1, NORM)],
        [(1, NORM), (1, DISTANCE)],
        [(1, f.Fault.MAGNITUDE)],
        [(1, NORM), (2, f.Fault.FORMAT)],
    ],
)
def test_screen_that_makes_no_sense_is_refused(found: list[tuple[int, f.Fault]]) -> None:
    world = screening()
    with pytest.raises(InvalidInputError):
        excluding(world, *found)
    assert world.round.step is Step.SCREENING


def test_numbers_of_the_reasons_are_for_ever() -> None:
    assert [(fault.name, fault.value) for fault in sorted(f.ANOMALIES)] == [
        ("NORM", 7),
        ("DIRECTION", 8),
        ("DISTANCE", 9),
    ]


# ---- revocation and the lead --------------------------------------------------------


def test_revoked_while_screening_makes_the_screen_start_again() -> None:
    world = screening()
    assert kinds(world.dismiss(2)) == [f.SiteDeparted, f.MemberRemoved]
    assert world.round.step is Step.SCREENING
    assert excluding(world, (3, NORM), count=5) == ()  # made with the one that is gone
    (duty,) = owed(world.state)
    assert isinstance(duty, d.Screen)
    assert (duty.count, [seat for seat, _, _ in duty.updates]) == (4, [1, 3, 4, 5])
    with pytest.raises(InvalidInputError):
        world.screen(2)
    assert world.screen(3)[-1] == f.UpdatesScreened(1, 3, START_MS)


def test_excluded_site_that_is_revoked_later_keeps_its_first_reason() -> None:
    world = screening()
    world.screen(2)
    assert kinds(world.dismiss(2)) == [f.SiteDeparted]
    assert world.round.fallen == {2: NORM}
    assert kinds(world.dismiss(3)) == [f.SiteDeparted, f.MemberRemoved]


def test_revocation_that_breaks_the_quorum_while_screening_fails_the_round() -> None:
    world = screening(sites=3, terms=replace(SCREENED, target=3))
    facts = world.dismiss(1)
    assert kinds(facts) == [f.SiteDeparted, f.RoundFailed]
    assert facts[1].reason is f.RoundEnd.MEMBER_REVOKED


def test_lead_can_cancel_a_round_that_is_screened() -> None:
    world = screening()
    (failed,) = world.give(i.CancelRound(1, START_MS))
    assert failed.reason is f.RoundEnd.CANCELLED


def test_next_round_is_of_its_own_plan() -> None:
    world = screening()
    world.screen(4)
    world.finish_round()
    world.adopt(replace(SCREENED, is_screened=False), "without")
    world.open()
    world.send(*world.round.invited)
    assert world.round.step is Step.SUMMING


def test_invitation_names_the_server_state_that_goes_with_the_base() -> None:
    world = screening()
    world.screen()
    world.finish_round()
    world.open()
    duty = owed_by(world.state, next(iter(world.round.waiting)))
    assert isinstance(duty, d.Train)
    assert (duty.base, duty.server_state) == (digest("model 1"), digest("state"))


# ---- a verifier ---------------------------------------------------------------------


def complaint(world: World, *forged: f.Fact) -> str | None:
    """What a verifier says of the last of these facts after the log of `world`."""
    state = Federation()
    for fact in (*map(decode, world.records), *forged[:-1]):
        assert why_illegal(state, fact) is None
        evolve(state, fact)
    return why_illegal(state, forged[-1])


def excluded(seat: int, fault: f.Fault = NORM) -> f.UpdateExcluded:
    return f.UpdateExcluded(1, Seat(seat), fault, START_MS)


def test_honest_screen_is_legal() -> None:
    left = f.UpdatesScreened(1, 4, START_MS)
    assert complaint(screening(), excluded(1), left) is None


@pytest.mark.parametrize(
    "forged",
    [
        [excluded(9)],
        [excluded(1), excluded(1)],
        [excluded(1, f.Fault.MAGNITUDE)],
        [f.UpdatesScreened(1, 4, START_MS)],
        [excluded(1), f.UpdatesScreened(1, 5, START_MS)],
        [excluded(1), excluded(2), excluded(3), f.UpdatesScreened(1, 2, START_MS)],
        [f.SiteDeparted(Seat(1), f.Departure.LEFT, START_MS), f.UpdatesScreened(1, 5, START_MS)],
        [f.Aggregated(1, 5, digest("m"), None, 0, START_MS)],
        [f.UpdatesScreened(1, 5, START_MS), excluded(1)],
        [f.UpdatesScreened(1, 5, START_MS), f.UpdatesScreened(1, 5, START_MS)],
    ],
)
def test_forged_screen_is_found(forged: list[f.Fact]) -> None:
    assert complaint(screening(), *forged) is not None


def test_anomaly_before_the_closing_is_found() -> None:
    world = training(sites=5, terms=SCREENED)
    world.send(1)
    assert complaint(world, excluded(1)) is not None
    assert complaint(world, excluded(1, f.Fault.MAGNITUDE)) is None


def test_partial_sum_in_a_screened_round_is_found() -> None:
    world = ready(sites=0, terms=SCREENED)
    world.give(i.AdmitCohort(5, START_MS))
    world.open()
    seats = tuple(world.round.waiting)
    trained = f.CohortTrained(1, seats, 5.0, digest("partial"), START_MS)
    assert complaint(world, trained) == "it does not fit the round"
