"""Which models are chains of known layers, and which only look like one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import Tensor, nn, tanh

from consortium.torch.chain import chain_of, shapes_through
from consortium.torch.layers import Kind, Layer


def kinds(model: nn.Module) -> list[str] | None:
    chain = chain_of(model)
    return None if chain is None else [layer.kind.value for layer in chain]


class Cnn(nn.Module):
    """As people write them, with every way to flatten."""

    def __init__(self, flat: Any) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 4, 5), nn.Conv2d(4, 6, 5, padding=1, stride=(1, 2))
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(6 * 5 * 2, 3)
        self.flat = flat

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.c1(x)))
        x = F.max_pool2d(torch.relu(self.c2(x)), 2)
        size = x.size(0)
        if self.flat == "view":
            x = x.view(size, -1)
        elif self.flat == "shape":
            x = x.reshape(x.shape[0], -1)
        elif self.flat == "number":
            x = x.view(-1, 6 * 5 * 2)
        elif self.flat == "function":
            x = torch.flatten(x, 1)
        else:
            x = x.flatten(start_dim=1)
        logits: Tensor = self.fc(F.dropout(x, 0.5, self.training))
        return logits


@pytest.mark.parametrize("flat", ["view", "shape", "number", "function", "method"])
def test_a_forward_that_a_user_wrote_is_a_chain(flat: str) -> None:
    model = Cnn(flat)
    model.eval()  # the chain is that of training all the same
    chain = chain_of(model)
    assert chain is not None
    convolved = ["conv2d", "relu", "max_pool2d"]
    expected = [*convolved, *convolved, "flatten", "dropout", "linear"]
    assert [layer.kind.value for layer in chain] == expected
    assert not model.training
    second = chain[3]
    assert (second.weight, second.bias) == ("c2.weight", "c2.bias")
    assert (second.padding, second.stride, second.kernel) == ((1, 1), (1, 2), (5, 5))
    shapes = shapes_through(chain, (1, 28, 28))
    assert shapes is not None
    assert shapes[5:7] == ((6, 5, 2), (60,))
    assert shapes[-1] == (3,)
    with torch.no_grad():
        assert model(torch.zeros(2, 1, 28, 28)).shape == (2, *shapes[-1])


def test_records_that_do_not_fit_have_no_shapes() -> None:
    chain = chain_of(Cnn("number"))
    assert chain is not None
    assert shapes_through(chain, (1, 32, 32)) is None  # view(-1, 60) would mix records
    assert shapes_through(chain, (3, 28, 28)) is None
    assert shapes_through(chain, (28, 28)) is None
    assert shapes_through(chain, (1, 4, 4)) is None


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("size", [5, 6, 7, 8, 9])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 3, 1), (2, 3, 1)]
)
def test_windows_are_counted_as_torch_counts_them(
    ceil_mode: bool, size: int, kernel: int, stride: int, padding: int
) -> None:
    pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil_mode)
    chain = chain_of(nn.Sequential(pool, nn.Flatten(), nn.LazyLinear(1)))
    assert chain is None  # a lazy layer has no form yet
    model = nn.Sequential(nn.Conv2d(1, 1, 1), pool)
    chain = chain_of(model)
    assert chain is not None
    assert shapes_through(chain, (1, size, size)) == (
        (1, size, size),
        tuple(model(torch.zeros(1, 1, size, size)).shape[1:]),
    )


def test_layers_of_every_kind() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same", bias=False),
        nn.BatchNorm2d(4, eps=1e-3, momentum=0.2),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.AvgPool2d(2), nn.LeakyReLU(0.2), nn.ELU(0.5)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Identity(),
        nn.Linear(4, 5),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.GELU(approximate="tanh"),
        nn.SiLU(),
        nn.LayerNorm(5),
        nn.Dropout(0.3),
        nn.Dropout(0.0),
        nn.LogSoftmax(dim=1),
    )
    chain = chain_of(model)
    assert chain == (
        Layer(Kind.CONV2D, "0.weight", size_in=3, size_out=4, kernel=(3, 3), padding=(1, 1)),
        Layer(
            Kind.BATCH_NORM,
            "1.weight",
            "1.bias",
            ("1.running_mean", "1.running_var", "1.num_batches_tracked"),
            size_in=4,
            size_out=4,
            eps=1e-3,
            momentum=0.2,
        ),
        Layer(Kind.RELU),
        Layer(Kind.AVG_POOL2D, kernel=(2, 2), stride=(2, 2)),
        Layer(Kind.LEAKY_RELU, slope=0.2),
        Layer(Kind.ELU, slope=0.5),
        Layer(Kind.GLOBAL_AVG_POOL2D),
        Layer(Kind.FLATTEN),
        Layer(Kind.LINEAR, "7.weight", "7.bias", size_in=4, size_out=5),
        Layer(Kind.TANH),
        Layer(Kind.SIGMOID),
        Layer(Kind.GELU, approximates_tanh=True),
        Layer(Kind.SILU),
        Layer(Kind.LAYER_NORM, "12.weight", "12.bias", eps=1e-5, shape=(5,)),
        Layer(Kind.DROPOUT, p=0.3),
        Layer(Kind.LOG_SOFTMAX),
    )
    assert hash(chain) == hash(chain_of(model))


def test_a_single_layer_is_a_chain_with_its_own_names() -> None:
    assert chain_of(nn.Linear(3, 2)) == (
        Layer(Kind.LINEAR, "weight", "bias", size_in=3, size_out=2),
    )


def test_words_are_looked_up_first() -> None:
    model = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2))
    chain = chain_of(model)
    assert chain is not None
    assert shapes_through(chain, (2,)) == ((2, 3), (6,), (2,))


class _Wrapped(nn.Module):
    """A linear layer, and something around it that tests put in."""

    def __init__(self, around: Any = None) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.around = around


class DropoutAlways(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.fc(x), 0.25)


class DropoutNever(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.fc(x), 0.25, training=False)


def test_dropout_by_a_call_is_as_the_call_says() -> None:
    assert kinds(DropoutAlways()) == ["linear", "dropout"]
    assert kinds(DropoutNever()) == ["linear"]
    assert kinds(nn.Sequential(nn.Linear(1, 1), nn.Dropout(1.0))) is None


class MaskedByDefault(_Wrapped):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.fc(x)
        return x if mask is None else x * mask


def test_arguments_that_have_a_default_get_it() -> None:
    assert kinds(MaskedByDefault()) == ["linear"]


def step(x: Tensor, layer: nn.Module) -> Tensor:
    return tanh(F.relu(layer(x)))


class WithHelper(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return step(x, self.fc)


def test_functions_that_a_forward_calls_are_looked_into() -> None:
    assert kinds(WithHelper()) == ["linear", "relu", "tanh"]


# ---- models that are no chain -----------------------------------------------------------


class Residual(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(x)


class Twice(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.fc(x))
        return out


class ThrownAway(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        self.fc(x)
        return x.relu()


class TwoOutputs(_Wrapped):
    def forward(self, x: Tensor) -> Any:
        x = self.fc(x)
        return x, x


class LooksAtNumbers(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return x.relu() if x.sum() > 0 else x


class Unknown(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(self.fc(x), 1)


class WithoutGradient(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.fc(x)
        return x.relu()


class DecoratedWithoutGradient(_Wrapped):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(x))


class Draws(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return x.relu() if torch.rand(()) < 0.5 else x


class DrawsElsewhere(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return x.relu() if random.random() < 0.5 else x


class DrawsFromItsOwn(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return x.relu() if self.around.random() < 0.5 else x


class DrawsFromATorchGenerator(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return x.relu() if torch.rand((), generator=self.around) < 0.5 else x


class CountsInATensor(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        self.around.add_(1)
        out: Tensor = self.fc(x)
        return out


class CountsInABuffer(_Wrapped):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        out: Tensor = self.fc(x)
        return out


class AsksItsChild(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = WithHelper(np.random.default_rng(0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.child(x)
        return x.relu() if self.child.around.random() < 0.5 else x


class Counts(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        self.around = (self.around or 0) + 1
        return F.relu(self.fc(x)) if self.around > 3 else self.fc(x)


class CountsInAMethod(_Wrapped):
    def count(self) -> None:
        self.around = (self.around or 0) + 1

    def forward(self, x: Tensor) -> Tensor:
        self.count()
        return F.relu(self.fc(x)) if self.around > 3 else self.fc(x)


class OwnTrain(_Wrapped):
    def train(self, mode: bool = True) -> OwnTrain:
        super().train(False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.fc(x), 0.5, self.training)


class ByProperty(_Wrapped):
    @property
    def is_on(self) -> bool:
        return bool(random.getrandbits(1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(x)) if self.is_on else self.fc(x)


class MyLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class WithBuffer(_Wrapped):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x + self.shift)
        return out


@pytest.mark.parametrize(
    "model",
    [
        Residual(),
        Twice(),
        ThrownAway(),
        TwoOutputs(),
        LooksAtNumbers(),
        Unknown(),
        WithoutGradient(),
        DecoratedWithoutGradient(),
        Draws(),
        DrawsElsewhere(),
        DrawsFromItsOwn(np.random.default_rng(0)),
        DrawsFromATorchGenerator(torch.Generator()),
        CountsInATensor(torch.zeros(())),
        CountsInABuffer(),
        AsksItsChild(),
        Counts(),
        CountsInAMethod(),
        OwnTrain(),
        ByProperty(),
        MyLinear(3, 3),
        nn.Sequential(MyLinear(3, 3)),
        WithBuffer(),
        nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=1)),
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)),
        nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2)),
        nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
        nn.Sequential(nn.Conv2d(2, 2, 4, padding="same")),
        nn.Sequential(nn.Embedding(3, 2, padding_idx=0)),
        nn.Sequential(nn.Linear(3, 3), nn.Flatten(0)),
        nn.LSTM(3, 3),
        nn.Linear(3, 3).half(),
        nn.ReLU(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_what_is_not_plainly_a_chain_is_none(model: nn.Module) -> None:
    before, rng = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    assert chain_of(model) is None
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_tied_and_unused_weights_make_no_chain() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    unused = _Wrapped(nn.Linear(2, 2))
    unused.forward = unused.fc.forward  # type: ignore[method-assign]
    assert chain_of(tied) is None
    assert chain_of(unused) is None
    spare = WithHelper()
    spare.more = nn.Linear(2, 2)
    assert chain_of(spare) is None


def test_hooks_and_parametrisations_make_no_chain() -> None:
    for plant in (
        lambda layer: layer.register_forward_hook(lambda *_: None),
        lambda layer: layer.register_forward_pre_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
        lambda layer: layer.weight.register_hook(lambda gradient: gradient),
        lambda layer: layer.weight.register_post_accumulate_grad_hook(lambda _: None),
        lambda layer: nn.utils.parametrizations.weight_norm(layer),
    ):
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        assert chain_of(model) is not None
        plant(model[0])
        assert chain_of(model) is None
