"""The roster: seats, reports, and who may be invited."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import MAX_ITEMS
from consortium.core.ids import Seat, SiteId
from consortium.core.roster import SEEN_GRAIN_MS, Member, eligible, meets
from consortium.core.terms import DAY_MS, Comparison, Condition, ReportValue
from consortium.errors import InvalidInputError, UnauthorizedClientError

from .small import START_MS, TERMS, World, ready

MOBILE = (
    Condition("battery", Comparison.GREATER, 0.3),
    Condition("network", Comparison.EQUAL, "wifi"),
)


def _report(world: World, seat: int, **report: ReportValue) -> tuple[object, ...]:
    return world.give(i.Report(Seat(seat), tuple(sorted(report.items())), world.now_ms))


# ---- seats --------------------------------------------------------------------------


def test_seats_are_given_in_order_and_never_again() -> None:
    world = ready(sites=2)
    world.dismiss(2)
    (admitted,) = world.give(i.Admit(SiteId("s2"), b"new key", START_MS))
    assert admitted.seat == 3
    assert world.state.roster.seat_of == {"s1": 1, "s2": 3}
    assert Seat(2) not in world.state.roster


def test_admitting_a_site_again_with_its_key_changes_nothing() -> None:
    world = ready(sites=2)
    assert world.give(i.Admit(SiteId("s1"), b"key 1", START_MS)) == ()


def test_admitting_a_site_again_with_another_key_is_refused() -> None:
    with pytest.raises(UnauthorizedClientError, match="another key"):
        ready(sites=2).give(i.Admit(SiteId("s1"), b"key of a thief", START_MS))


def test_site_without_an_id_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        ready().give(i.Admit(SiteId(""), b"key", START_MS))


@pytest.mark.parametrize("count", [0, -1, MAX_ITEMS, 2**62])
def test_cohort_that_is_empty_or_too_large_to_name_is_refused(count: int) -> None:
    world = ready()
    world.give(i.AdmitCohort(1, START_MS))
    with pytest.raises(InvalidInputError):
        world.give(i.AdmitCohort(count, START_MS))


def test_simulated_cohort_takes_a_range_of_seats() -> None:
    world = ready(sites=2)
    world.give(i.AdmitCohort(5, START_MS))
    world.give(i.Admit(SiteId("s8"), b"", START_MS))
    roster = world.state.roster
    assert len(roster) == 8
    assert [roster.is_simulated(Seat(seat)) for seat in (0, 2, 3, 7, 8)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert Seat(7) in roster and Seat(8) in roster and Seat(9) not in roster
    assert roster.attributes(Seat(3)) == {}


def test_dismissing_twice_changes_nothing_and_a_stranger_is_refused() -> None:
    world = ready(sites=2)
    world.give(i.AdmitCohort(2, START_MS))
    assert [type(fact) for fact in world.dismiss(2)] == [f.SiteDeparted]
    assert world.dismiss(2) == ()
    for stranger in (0, 3, 99):  # seat 3 is simulated: there is nobody to revoke
        with pytest.raises(UnauthorizedClientError):
            world.dismiss(stranger)


# ---- reports ------------------------------------------------------------------------


def test_report_is_written_when_it_is_news_or_an_hour_after_the_last() -> None:
    world = ready()
    assert _report(world, 1, memory_gb=16) != ()
    world.now_ms += SEEN_GRAIN_MS - 1
    assert _report(world, 1, memory_gb=16) == ()
    assert _report(world, 1, memory_gb=32) != ()
    world.now_ms += SEEN_GRAIN_MS
    assert _report(world, 1, memory_gb=32) != ()
    assert world.state.roster.members[Seat(1)].seen_ms == world.now_ms
    assert world.state.roster.attributes(Seat(1)) == {"memory_gb": 32}


def test_report_of_a_stranger_is_refused() -> None:
    with pytest.raises(UnauthorizedClientError):
        _report(ready(sites=2), 3)


@pytest.mark.parametrize("names", [("b", "a"), ("a", "a")])
def test_report_out_of_order_is_refused(names: tuple[str, ...]) -> None:
    report = tuple((name, 1) for name in names)
    with pytest.raises(InvalidInputError):
        ready().give(i.Report(Seat(1), report, START_MS))


# ---- eligibility --------------------------------------------------------------------


def test_site_is_eligible_while_it_was_seen_within_a_day() -> None:
    world = ready(sites=2)
    world.now_ms += DAY_MS - 1000
    _report(world, 2)
    roster = world.state.roster
    assert eligible(roster, TERMS, START_MS + DAY_MS) == [1, 2]
    assert eligible(roster, TERMS, START_MS + DAY_MS + 1) == [2]


def test_clock_that_jumped_back_makes_nobody_ineligible() -> None:
    assert eligible(ready(sites=2).state.roster, TERMS, START_MS - DAY_MS * 9) == [1, 2]


@pytest.mark.parametrize(
    "report",
    [
        (("battery", float("nan")),),
        (("battery", float("-inf")),),
        (("samples", 10**16),),
        (("region", "x" * 300),),
        (("x" * 300, 1),),
        tuple((f"name-{number:03}", 1) for number in range(65)),
    ],
)
def test_report_that_is_too_much_is_refused(report: tuple[tuple[str, Any], ...]) -> None:
    world = ready()
    with pytest.raises(InvalidInputError, match="at most 64"):
        world.give(i.Report(Seat(1), report, START_MS))


def test_site_that_does_not_report_what_the_plan_names_is_not_eligible() -> None:
    world = ready(sites=4)
    terms = replace(TERMS, conditions=MOBILE)
    _report(world, 1, battery=0.9, network="wifi")
    _report(world, 2, battery=0.9)
    _report(world, 3, battery=0.3, network="wifi")
    assert eligible(world.state.roster, terms, START_MS) == [1]


def test_simulated_sites_are_eligible_unless_the_plan_names_conditions() -> None:
    world = ready(sites=1)
    world.give(i.AdmitCohort(2, START_MS))
    world.give(i.Admit(SiteId("late"), b"", START_MS))
    _report(world, 1, battery=0.9, network="wifi")
    roster = world.state.roster
    assert eligible(roster, TERMS, START_MS) == [1, 2, 3, 4]
    assert eligible(roster, replace(TERMS, conditions=MOBILE), START_MS) == [1]


def test_one_simulated_cohort_by_itself_is_a_range() -> None:
    world = ready(sites=0)
    world.give(i.AdmitCohort(100_000, START_MS))
    roster = world.state.roster
    assert eligible(roster, TERMS, START_MS) == range(1, 100_001)
    assert eligible(roster, replace(TERMS, conditions=MOBILE), START_MS) == []
    world.give(i.AdmitCohort(1, START_MS))
    assert eligible(roster, TERMS, START_MS) == list(range(1, 100_002))


@pytest.mark.parametrize(
    ("reported", "comparison", "wanted", "holds"),
    [
        (16, Comparison.AT_LEAST, 16, True),
        (16, Comparison.AT_LEAST, 16.5, False),
        (15.9, Comparison.AT_LEAST, 16, False),
        (16, Comparison.GREATER, 16, False),
        (16, Comparison.LESS, 17, True),
        (16, Comparison.AT_MOST, 16.0, True),
        (16, Comparison.EQUAL, 16.0, True),
        (16, Comparison.UNEQUAL, 16, False),
        (16, Comparison.UNEQUAL, 17, True),
        ("wifi", Comparison.EQUAL, "wifi", True),
        ("wifi", Comparison.UNEQUAL, "lan", True),
        (True, Comparison.EQUAL, True, True),
        (False, Comparison.EQUAL, True, False),
        # What cannot be compared does not hold, not even as "unequal".
        (True, Comparison.EQUAL, 1, False),
        (1, Comparison.EQUAL, True, False),
        ("16", Comparison.EQUAL, 16, False),
        (16, Comparison.UNEQUAL, "16", False),
        ("yes", Comparison.UNEQUAL, True, False),
        ("z", Comparison.GREATER, 1, False),
    ],
)
def test_condition_compares_like_with_like(
    reported: ReportValue, comparison: Comparison, wanted: ReportValue, holds: bool
) -> None:
    member = Member(SiteId("s"), b"", 0, (("it", reported),))
    assert meets(member, (Condition("it", comparison, wanted),)) is holds
    assert not meets(member, (Condition("other", comparison, wanted),))
    assert meets(member, ())
