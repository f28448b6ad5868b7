"""Models made fit for private training: the same names and marks, and one record at a time."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from opacus.layers import DPLSTM
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from consortium.errors import TaskResultError
from consortium.plan.values import PersonalSection
from consortium.torch import HospitalNet, private
from consortium.torch.marks import batch_norms, sort_tensors
from consortium.torch.private_models import in_steps, without_batch_norm
from consortium.torch.private_training import has_closed_form
from consortium.torch.reproducible import reproducibly
from consortium.torch.training import Method
from tests.torch.private_sums import CROSS, place_of, private_site


class Seed(nn.Module):
    """The model that privacy.md's traps were found with."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter = private(nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU()))
        self.body = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.adapter(x)))
        return out


def test_names_values_and_marks_stay() -> None:
    model = Seed()
    with torch.no_grad():
        model.body[1].weight.fill_(0.3)
    model.body[1].bias.requires_grad_(False)
    model.eval()
    before = dict(model.named_parameters())
    parts = sort_tensors(model, PersonalSection())
    changed = without_batch_norm(deepcopy(model))
    after = dict(changed.named_parameters())
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [p.requires_grad for p in after.values()] == [p.requires_grad for p in before.values()]
    found = sort_tensors(changed, PersonalSection())
    assert (found.shared, found.private, found.buffers) == (parts.shared, parts.private, ())
    assert not list(batch_norms(changed)) and not changed.body[1].training


def test_a_mark_on_the_layer_itself_stays() -> None:
    model = without_batch_norm(nn.Sequential(nn.Linear(3, 4), private(nn.BatchNorm1d(4))))
    assert sort_tensors(model, PersonalSection()).private == ("1.bias", "1.weight")


@pytest.mark.parametrize("size", [32, 64])
def test_records_are_normalised_and_not_wiped_out(size: int) -> None:
    """What Opacus puts in place of BatchNorm1d makes every row of (n, 32) zero, and every number
    of (n, 64) plus or minus one."""
    with reproducibly(0):
        x = torch.randn(5, size)
    theirs = ModuleValidator.fix(nn.Sequential(nn.BatchNorm1d(size)))(x)
    assert len(theirs.detach().abs().round(decimals=1).unique()) <= 4
    ours = without_batch_norm(nn.Sequential(nn.BatchNorm1d(size)))(x)
    assert len(ours.detach().abs().round(decimals=1).unique()) > 15
    assert torch.allclose(ours.std(1, correction=0), torch.ones(5), atol=1e-3)


@pytest.mark.parametrize(
    ("layer", "shape", "wanted"),
    [
        (nn.BatchNorm1d(6), (6,), nn.LayerNorm),
        (nn.BatchNorm2d(12), (12, 3, 3), nn.GroupNorm),
        (nn.BatchNorm3d(12), (12, 3, 3, 3), nn.GroupNorm),
        (nn.BatchNorm2d(3, affine=False), (3, 3, 3), nn.GroupNorm),
    ],
    ids=["1d", "2d", "3d", "bare"],
)
def test_each_record_is_normalised_by_itself(
    layer: nn.Module, shape: tuple[int, ...], wanted: type[nn.Module]
) -> None:
    model = without_batch_norm(nn.Sequential(layer))
    assert type(model[0]) is wanted
    with reproducibly(0):
        x = torch.randn(4, *shape)
    alone = torch.cat([model(x[at : at + 1]) for at in range(4)])
    assert torch.allclose(model(x), alone, atol=1e-6)
    assert float(model(x).detach().std()) == pytest.approx(1.0, abs=0.1)


def test_series_are_normalised_over_their_length_too() -> None:
    model = without_batch_norm(nn.Sequential(nn.Conv1d(2, 6, 3), nn.BatchNorm1d(6)))
    assert isinstance(model[1], nn.GroupNorm) and model[1].num_groups == 1
    model(torch.randn(3, 2, 9))


def test_a_layer_that_is_used_twice_is_replaced_once() -> None:
    layer = nn.BatchNorm1d(4)
    model = without_batch_norm(nn.Sequential(layer, nn.Linear(4, 4), layer))
    assert model[0] is model[2]
    bare = without_batch_norm(nn.BatchNorm1d(4))
    assert isinstance(bare, nn.LayerNorm)


def test_a_lazy_layer_is_refused() -> None:
    with pytest.raises(TaskResultError, match="lazy"):
        without_batch_norm(nn.Sequential(nn.LazyBatchNorm1d()))


def test_the_hospitals_model_has_a_closed_form_then() -> None:
    model = without_batch_norm(HospitalNet(6, classes=2))
    x, y = torch.randn(9, 6), torch.arange(9) % 2
    assert has_closed_form(place_of(model, (x, y)), private_site(), Method(CROSS))


# ---- recurrent layers ------------------------------------------------------------------

RECURRENT: list[tuple[Any, dict[str, Any]]] = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.GRU, {"bias": False}),
    (nn.GRU, {"num_layers": 2}),
    (nn.RNN, {"nonlinearity": "relu"}),
]


@pytest.mark.parametrize(("kind", "options"), RECURRENT)
def test_recurrent_layers_compute_the_same_in_steps(kind: Any, options: dict[str, Any]) -> None:
    with reproducibly(0):
        model = kind(3, 4, batch_first=True, **options).double()
        x = torch.randn(5, 7, 3).double()
    changed = in_steps(deepcopy(model))
    assert torch.allclose(model(x)[0], changed(x)[0], atol=1e-12)
    names = {name for name, _ in model.named_parameters()}
    assert {name for name, _ in changed.named_parameters()} == names


def test_marks_of_recurrent_layers_stay() -> None:
    model = nn.Module()
    model.reader, model.head = private(nn.LSTM(3, 4)), nn.Linear(4, 2)
    changed = in_steps(model)
    assert isinstance(changed.reader, DPLSTM)
    parts = sort_tensors(changed, PersonalSection())
    assert parts.shared == ("head.bias", "head.weight") and len(parts.private) == 4
