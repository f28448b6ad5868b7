"""Every mistake that a user can make in a torch task is refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from consortium.errors import LayoutError, SiteDataError, TaskEntryError, TaskResultError
from consortium.tasks import Site
from consortium.torch import TorchTask, task
from consortium.torch.metrics import MetricChoice
from tests.torch.sites import DATA, data, first, linear, mixed, site

CE = nn.CrossEntropyLoss()


def made_of(function: Any, loss: Any = CE, metrics: list[MetricChoice] | None = None) -> TorchTask:
    return task(loss=loss, metrics=metrics or [])(function)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "returned a NoneType"),
        (nn.Linear(4, 2), "returned a Linear"),
        ((nn.Linear(4, 2), DATA), r"returned \(Linear, tuple\)"),
        ((DATA, DATA, nn.Linear(4, 2)), r"returned \(tuple, tuple, Linear\)"),
    ],
)
def test_a_function_that_returns_the_wrong_thing_is_refused(returned: Any, says: str) -> None:
    with pytest.raises(TaskResultError, match=says) as caught:
        made_of(lambda _: returned).first(site())
    assert "(model, train, test)" in caught.value.hint


def test_missing_values_are_refused_with_the_sites_name() -> None:
    x = DATA[0].copy()
    x[3, 1] = np.nan
    with pytest.raises(SiteDataError, match="site a: the training data: 1 of 148 values"):
        mixed.train(site(data=(x, DATA[1])), first(mixed))


def test_a_shared_tensor_of_another_shape_is_refused() -> None:
    shared = first(mixed)
    wrong = {**shared, "head.bias": np.zeros(3, np.float32)}
    with pytest.raises(LayoutError, match=r"`head.bias` is \[3\], the model here has \[2\]"):
        mixed.train(site(), wrong)
    missing = {name: array for name, array in shared.items() if name != "head.bias"}
    with pytest.raises(LayoutError, match=r"`head.bias` is missing"):
        mixed.evaluate(site(), missing)
    with pytest.raises(LayoutError, match="`more` is not in the model"):
        mixed.train(site(), {**shared, "more": np.zeros(1, np.float32)})


def test_a_state_that_does_not_fit_is_refused_without_naming_it() -> None:
    state = mixed.train(site(data=data(9)), first(mixed)).state
    with pytest.raises(SiteDataError, match="does not fit the model any more") as caught:
        mixed.train(site(state=state), first(mixed))
    assert "adapter" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (nn.CrossEntropyLoss(reduction="none"), r"shape \[8\]"),
        (lambda o, t: 3.0, "is a float"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused(loss: Any, says: str) -> None:
    made = made_of(linear._make, loss)
    with pytest.raises(TaskResultError, match=says):
        made.train(site(), first(linear))


def test_a_model_that_returns_no_tensor_is_refused() -> None:
    made = made_of(lambda s: (nn.LSTM(4, 2), s.data, s.data))
    with pytest.raises(TaskResultError, match="returned a tuple, not a tensor"):
        made.train(site(), made.first(site()))


def test_an_error_in_the_users_code_tells_its_place_and_not_its_text() -> None:
    def make(at: Site) -> Any:
        raise ValueError(f"patient {at.data[0][0, 0]}")

    with pytest.raises(TaskResultError, match=r"ValueError in test_mistakes\.py:\d+") as caught:
        made_of(make).train(site(), {})
    assert "patient" not in caught.value.message
    wrong = made_of(lambda s: (nn.Linear(3, 2), s.data, s.data))
    with pytest.raises(TaskResultError, match="site a: RuntimeError in"):
        wrong.train(site(), wrong.first(site()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": 3}, "loss is a int"),
        ({"loss": nn.MSELoss}, "loss is a class"),
        ({"loss": CE, "step": "x"}, "step is a str"),
        ({"loss": CE, "loop": "x"}, "loop is a str"),
    ],
)
def test_a_decorator_with_the_wrong_things_is_refused(options: Any, says: str) -> None:
    with pytest.raises(TaskEntryError, match=says):
        task(**options)


def test_an_optimiser_that_is_none_is_refused() -> None:
    made: Any = task(loss=CE, optimizer=lambda p, t: None)(linear._make)  # type: ignore[arg-type, return-value]
    with pytest.raises(TaskResultError, match="no torch optimiser"):
        made.train(site(), first(linear))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    made = made_of(lambda s: (nn.Linear(4, 2).requires_grad_(False), s.data, s.data))
    with pytest.raises(TaskResultError, match="no parameter is left to train"):
        made.train(site(), made.first(site()))


def test_a_type_that_cannot_be_stored_is_refused() -> None:
    made = made_of(lambda s: (nn.Linear(4, 2).bfloat16(), s.data, s.data))
    with pytest.raises(LayoutError, match="bfloat16"):
        made.first(site())
