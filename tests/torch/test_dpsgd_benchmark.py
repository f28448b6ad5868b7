"""The parts of `benchmarks.dpsgd`, in sizes that take seconds."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import dpsgd, report
from consortium.torch.private_clipping import ClippedChain

SMALL = dpsgd.Setting(sizes=(5, 7, 3), batches=(6,), turns=2, peer_turns=1)


def test_lines_have_the_form_of_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(dpsgd.measure(SMALL), as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(
        set(line) == {"name", "ours", "base", "ratio", "unit", "detail"} and line["ours"] > 0
        for line in lines
    )
    assert [line["name"] for line in lines] == [
        "clip 6",
        "noise 6",
        "noise 6 against opacus hooks",
        "noise 6 against opacus ghost",
        "error float64 6",
        "error float32 6",
    ]
    assert all(line["ratio"] > 1 for line in lines if line["name"].startswith("error"))


def test_an_error_of_the_sum_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    add = ClippedChain.add

    def twice(self: ClippedChain, x: torch.Tensor, y: torch.Tensor) -> int:
        add(self, x[:1], y[:1])
        return add(self, x, y)

    monkeypatch.setattr(ClippedChain, "add", twice)
    assert dpsgd.error(SMALL, 6, torch.float32).ratio < 1


def test_ours_and_the_base_learn_from_the_same_batches() -> None:
    """The step that is measured is one that trains: without noise it lowers the loss."""
    (x, y), model = dpsgd.batches_of(SMALL, 6, 1)[0], dpsgd.model_of(SMALL.sizes)
    ours = dpsgd.Ours(model, x, y)
    loss = torch.nn.CrossEntropyLoss()
    before = float(loss(model(x), y).detach())
    for _ in range(50):
        ours.clip(x, y)
    ours.space.bring_back(dict(model.named_parameters()))
    assert float(loss(model(x), y).detach()) < before
    assert not bool(ours.space.gradient.any())
