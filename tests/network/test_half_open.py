"""Peers that begin and do not go on, at a real coordinator with the real deadlines."""

from __future__ import annotations

from consortium.testing import half_open
from consortium.testing.half_open import Size


def test_half_open_connections_end_while_honest_rounds_go_on() -> None:
    """Forty and twenty here; `make soak` has five hundred and two hundred."""
    told = half_open.campaign(Size(bodies=40, headers=20, handshakes=10, silent=50))
    assert told["violations"] == []


def test_campaign_finds_what_it_looks_for() -> None:
    told = {
        "opened": {"body": 3, "header": 1},
        "closed": {"body": 2, "header": 1},
        "slowest_s": {"body": 2.0, "header": 30.1},
        "honest_rounds": 0,
        "slowest_probe_s": 5.1,
        "growth_mib": 64.1,
    }
    assert len(half_open._violations(told)) == 5
