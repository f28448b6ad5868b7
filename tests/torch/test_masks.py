"""Dropout's masks: the right share, each site's own, and the same for the same seed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consortium.tasks import Site
from consortium.torch import task
from consortium.torch.masks import Masks
from tests.torch.test_side_by_side import made, plan_of, run, sites

F32 = torch.float32


def test_masks_keep_the_right_share_and_the_mean() -> None:
    for kept in (0.5, 0.7, 0.9, 0.999):
        mask = Masks([1, 2]).draw((2, 1000, 250), kept, torch.float64)
        share = (mask > 0).double().mean().item()
        assert abs(share - kept) < 5 * (kept * (1 - kept) / mask.numel()) ** 0.5
        assert set(np.unique(mask.numpy())) <= {0.0, mask.max().item()}
        assert mask.max().item() == pytest.approx(1 / kept, rel=2e-5)


def test_a_share_that_sixteen_bits_cannot_tell_from_all_or_nothing_still_drops_and_keeps() -> None:
    dense = Masks([3]).draw((1, 1 << 20), 1 - 1e-9, F32)
    assert 0 < (dense == 0).sum().item() < 100
    sparse = Masks([3]).draw((1, 1 << 20), 1e-9, F32)
    assert 0 < (sparse > 0).sum().item() < 100
    assert torch.equal(Masks([3]).draw((1, 9), 1.0, F32), torch.ones(1, 9))


def test_numbers_are_independent_of_their_neighbours_and_of_earlier_draws() -> None:
    masks = Masks([5, 6])
    first, then = (masks.draw((2, 200_000), 0.5, torch.float64) - 1 for _ in range(2))
    pairs = [(first[0], first[1]), (first[0], then[0]), (first[0, 1:], first[0, :-1])]
    pairs += [(first[0, step:], first[0, :-step]) for step in (2, 3, 4, 8)]
    for left, right in pairs:
        assert abs((left * right).mean().item()) < 5 / len(left) ** 0.5


def test_a_sites_masks_follow_from_its_seed_whoever_is_beside_it() -> None:
    alone, beside = Masks([8]), Masks([7, 8, 9])
    for shape in ((3, 5), (4, 4), (7,)):
        own = alone.draw((1, *shape), 0.6, F32)[0]
        assert torch.equal(own, beside.draw((3, *shape), 0.6, F32)[1])
    fewer = Masks([7, 8, 9])  # the last site has no records left
    assert fewer.draw((2, 10), 0.6, F32).shape == (2, 10)


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


@pytest.mark.parametrize("engine", ["batched", "fused"])
def test_with_dropout_a_run_is_the_same_again_whoever_trains_where(engine: str) -> None:
    again = [
        run(made(net), plan_of(), sites(), engine=engine, workers=workers).model_digest
        for workers in (0, 2, 0)
    ]
    assert len(set(again)) == 1
    loop = run(made(net), plan_of(), sites(), engine="loop").model_digest
    assert loop not in again  # torch's own masks


def test_models_are_built_once_for_all_workers(tmp_path: Path) -> None:
    built = tmp_path / "built"

    @task(loss=nn.CrossEntropyLoss())
    def counted(site: Site) -> tuple[nn.Module, Any, Any]:
        with built.open("a") as file:
            file.write(f"{os.getpid()} {site.name}\n")
        x, y = site.data
        data = torch.tensor(x), torch.tensor(y)
        return net(x.shape[1]).double(), data, data

    run(counted, plan_of(), sites(), engine="batched", workers=2)
    lines = [line.split() for line in built.read_text().splitlines()]
    assert {pid for pid, _ in lines} == {str(os.getpid())}
    assert {name for _, name in lines} == {site.name for site in sites()}
