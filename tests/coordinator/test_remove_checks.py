"""The script that takes checks out finds them, and sees when nobody misses one. All of them are
tried in `make soak`."""

from __future__ import annotations

import pytest

from scripts.remove_checks import SPARE, Bench, _likely_first, probes, removals

ALL = {one.name: one for one in removals()}


def test_spare_checks_are_there() -> None:
    assert SPARE.keys() <= ALL.keys()
    assert len(ALL) > 90


@pytest.mark.parametrize(
    "name",
    [
        "access.allowed: … and is_inside",
        "auth.site_of: signed.verify(site.key, office.audience)",
        "operators.operator_of: … and is_open",
        "RULES: officer may run",
    ],
)
def test_check_that_is_taken_out_is_missed(name: str) -> None:
    bench = Bench()
    try:
        assert bench.notice(ALL[name], _likely_first(ALL[name], probes())) is not None
    finally:
        bench.renew()


def test_spare_check_is_not_missed() -> None:
    bench = Bench()
    try:
        assert bench.notice(ALL[next(iter(SPARE))], probes()[:40]) is None
    finally:
        bench.renew()
