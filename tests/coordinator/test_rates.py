"""How often somebody may ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consortium.coordinator.access import Role
from consortium.coordinator.matrix import Person, Reach
from consortium.coordinator.rates import LIMITS, Buckets, Limit, Limits, Rates, network_of
from consortium.errors import NotEnrolledError, RateLimitError
from tests.coordinator.access_attacks import (
    REPORT,
    changed_signature,
    good_invitation,
    unknown_invitation,
)
from tests.coordinator.access_world import ALPHA, Told, Wanted, World, world

STATUS = f"/v1/federations/{ALPHA}"
FEW = Limits(
    strangers=Limit(3, 1), known=Limit(5, 1), wrong_tokens=Limit(2, 1), wrong_signatures=Limit(2, 1)
)


class Time:
    """A monotonic clock."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


# ---- buckets ------------------------------------------------------------------------


def test_bucket_gives_its_burst_and_fills_up_again(time: Time) -> None:
    buckets = Buckets(Limit(burst=3, per_s=2), clock=time)
    for _ in range(3):
        buckets.take("a")
    with pytest.raises(RateLimitError) as refused:
        buckets.take("a")
    assert refused.value.details == {"retry_after_s": 1}
    buckets.take("b")  # another's is full
    time.now_s += 0.5
    buckets.take("a")
    with pytest.raises(RateLimitError):
        buckets.take("a")
    time.now_s += 1000
    for _ in range(3):  # and no fuller than full
        buckets.take("a")
    with pytest.raises(RateLimitError):
        buckets.take("a")


def test_refusal_takes_nothing(time: Time) -> None:
    buckets = Buckets(Limit(burst=1, per_s=0.1), clock=time)
    buckets.take("a")
    for _ in range(100):
        with pytest.raises(RateLimitError) as refused:
            buckets.take("a")
    assert refused.value.details == {"retry_after_s": 10}
    time.now_s += 10
    buckets.take("a")


def test_buckets_are_bounded_and_the_idle_ones_go_first(time: Time) -> None:
    buckets = Buckets(Limit(burst=1, per_s=0.001), most=100, clock=time)
    buckets.take("busy", 0.1)
    for number in range(1000):
        buckets.take(f"address {number}")
        buckets.take("busy", 0.0001)
    assert len(buckets) == 100
    with pytest.raises(RateLimitError):  # it is remembered, and empty but for a little
        buckets.take("busy", 0.9)
    buckets.take("address 5")  # it is forgotten, and so full


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network


def test_good_token_is_not_refused_for_the_wrong_ones_of_others(time: Time) -> None:
    rates = Rates(FEW, time)
    for refusal in (NotEnrolledError, NotEnrolledError, RateLimitError):
        with pytest.raises(refusal), rates.guess("192.0.2.1"):
            raise NotEnrolledError("wrong")
    with rates.guess("192.0.2.1"):
        pass


def test_a_site_may_send_chunks_as_fast_as_any_line() -> None:
    """A gigabyte a second in chunks of a megabyte, and a question now and then."""
    assert LIMITS.known.per_s / LIMITS.chunk_cost >= 1000


# ---- over the application -----------------------------------------------------------


@pytest.fixture
def there(tmp_path: Path, time: Time) -> Iterator[World]:
    with world(tmp_path / "data") as found:
        found.edge.gate.rates = Rates(FEW, time)
        yield found


def is_limited(told: Told) -> bool:
    if told.status != 429:
        return False
    body = json.loads(told.body)
    return (body["code"], body["details"]["retry_after_s"] >= 1) == ("E0821", True)


def test_strangers_are_limited_by_address(there: World, time: Time) -> None:
    health = Wanted("GET", "/health")
    heard = [there.call(health, {}).status for _ in range(4)]
    assert heard == [200, 200, 200, 429]
    assert is_limited(there.call(Wanted("GET", "/v1/authority"), {}))
    assert there.call(health, {}, client="192.0.2.9").status == 200
    # Who has signed, or has a token, does not pay for the strangers of its address.
    assert there.signed(there.sites[ALPHA][0], REPORT).status == 200
    admin = there.tokens[Person(Role.ADMIN, Reach.ALL)]
    assert there.order(admin, "GET", STATUS).status == 200
    time.now_s += 1
    assert there.call(health, {}).status == 200


def test_each_site_and_each_token_has_its_own_limit(there: World) -> None:
    first, second = there.sites[ALPHA][:2]
    assert [there.signed(first, REPORT).status for _ in range(6)] == [200] * 5 + [429]
    assert there.signed(second, REPORT).status == 200
    tokens = [there.tokens[Person(Role.VIEWER, reach)] for reach in (Reach.OWN, Reach.ALL)]
    assert [there.order(tokens[0], "GET", STATUS).status for _ in range(6)] == [200] * 5 + [429]
    assert there.order(tokens[1], "GET", STATUS).status == 200


def test_guessing_tokens_is_slowed_down(there: World, time: Time) -> None:
    """Whoever guesses soon hears nothing more of it; a good token is not kept out by that."""
    heard = [there.order(f"co1.{number}", "GET", STATUS).status for number in range(3)]
    assert heard == [401, 401, 429]
    admin = there.tokens[Person(Role.ADMIN, Reach.ALL)]
    assert there.order(admin, "GET", STATUS).status == 200
    assert is_limited(there.order("co1.x", "GET", STATUS))
    time.now_s += 1
    assert there.order("co1.x", "GET", STATUS).status == 401


def test_guessing_invitations_is_slowed_down(there: World, time: Time) -> None:
    there.edge.gate.rates = Rates(replace(FEW, strangers=Limit(burst=100, per_s=1)), time)
    assert [unknown_invitation(there).status for _ in range(3)] == [403, 403, 429]
    assert good_invitation(there).status == 200  # from the same address
    time.now_s += 1
    assert unknown_invitation(there).status == 403


def test_wrong_signatures_do_not_keep_good_ones_out(there: World) -> None:
    assert [changed_signature(there).status for _ in range(3)] == [401, 401, 429]
    assert there.signed(there.sites[ALPHA][0], REPORT).status == 200


def test_answer_says_when_to_come_again(there: World) -> None:
    from consortium.coordinator.problems import refusal

    error = RateLimitError("too many requests")
    error.details = {"retry_after_s": 7}
    assert refusal(error).headers["retry-after"] == "7"
