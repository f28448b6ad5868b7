"""The campaigns against hostile peers at the size that CI has time for; `make soak` runs all."""

from __future__ import annotations

from consortium.testing import hostile, joins, replay, tamper


def test_hostile_files_and_requests() -> None:
    told = hostile.campaign(size=100_000, sites=10, every=4, seed=1)
    assert told["violations"] == []
    assert told["files"] >= 20 and told["requests"] >= 55


def test_one_token_has_one_winner() -> None:
    told = joins.campaign(runs=2, joiners=20)
    assert told["violations"] == []


def test_signed_requests_with_a_bit_turned() -> None:
    told = tamper.campaign(every=29)
    assert told["violations"] == []
    assert told["requests"] > 300


def test_a_recorded_federation_again() -> None:
    told = replay.campaign(shuffles=5, fresh=1, seed=1)
    assert told["violations"] == []
    assert told["trace"] > 60
