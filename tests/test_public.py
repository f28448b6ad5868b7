"""The public names, and the benchmark's form."""

from __future__ import annotations

import json

import pytest

import consortium
from benchmarks import core, report


def test_public_names_are_sorted_and_there() -> None:
    assert consortium.__all__ == sorted(consortium.__all__)
    assert set(consortium.__all__) == set(consortium._HOME)
    for name in consortium.__all__:
        assert getattr(consortium, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        consortium.nothing  # noqa: B018


def test_the_benchmark_prints_one_object_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core, "SITES", 200)
    monkeypatch.setattr(core, "CLOSED_ROUNDS", 5)
    monkeypatch.setattr("sys.argv", ["core", "--json"])
    report.main(core.measure, None)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 5
    for line in lines:
        assert set(line) == {"name", "ours", "base", "ratio", "unit", "detail"}
        assert line["ratio"] == pytest.approx(line["base"] / line["ours"], abs=1e-3)
