"""Metrics against scikit-learn, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference
from torch import nn
from torch.nn import functional

from consortium.core.terms import Metric
from consortium.errors import TaskResultError
from consortium.torch.losses import Kind, fitted, kind_of
from consortium.torch.metrics import Measures, measures, named_metric

SEEDS = st.integers(0, 10_000)


def drawn(seed: int, classes: int, n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with many ties, and labels of which every class occurs."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    logits = np.round(rng.normal(size=(n, classes)) + np.eye(classes)[labels], 1)
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(labels)


@given(SEEDS)
@settings(max_examples=15)
def test_two_classes_agree_with_scikit_learn(seed: int) -> None:
    outputs, targets = drawn(seed, 2)
    guesses = outputs.argmax(1)
    score = (outputs[:, 1].double() - outputs[:, 0].double()).numpy()
    found = measures(nn.CrossEntropyLoss(), ["accuracy", "f1", "auroc"]).of(outputs, targets)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(targets, guesses))
    assert found["f1"] == pytest.approx(reference.f1_score(targets, guesses))
    assert found["auroc"] == pytest.approx(reference.roc_auc_score(targets, score))
    assert found["loss"] == pytest.approx(functional.cross_entropy(outputs, targets).item())


@given(SEEDS)
@settings(max_examples=15)
def test_several_classes_agree_with_scikit_learn(seed: int) -> None:
    outputs, targets = drawn(seed, 4)
    guesses = outputs.argmax(1)
    probability = torch.softmax(outputs.double(), 1).numpy()
    found = measures(nn.CrossEntropyLoss(), ["accuracy", "f1", "auroc"]).of(outputs, targets)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(targets, guesses))
    assert found["f1"] == pytest.approx(reference.f1_score(targets, guesses, average="macro"))
    assert found["auroc"] == pytest.approx(
        reference.roc_auc_score(targets, probability, multi_class="ovr", average="macro")
    )


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
@given(seed=SEEDS)
@settings(max_examples=15)
def test_a_logit_agrees_with_scikit_learn(shape: tuple[int, ...], seed: int) -> None:
    pair, targets = drawn(seed, 2)
    logits = pair[:, 1]
    found = measures(nn.BCEWithLogitsLoss(), ["accuracy", "f1", "auroc"]).of(
        logits.reshape(shape), targets
    )
    guesses = (logits > 0).long()
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(targets, guesses))
    assert found["f1"] == pytest.approx(reference.f1_score(targets, guesses, zero_division=0))
    assert found["auroc"] == pytest.approx(reference.roc_auc_score(targets, logits))
    probability = measures(nn.BCELoss(), ["accuracy", "auroc"]).of(torch.sigmoid(logits), targets)
    assert probability["accuracy"] == pytest.approx(found["accuracy"])
    assert probability["loss"] == pytest.approx(found["loss"], rel=1e-4)


@pytest.mark.parametrize("shape", [(30,), (30, 1)])
def test_values_agree_with_scikit_learn(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    outputs, targets = torch.tensor(rng.normal(size=(2, 30)), dtype=torch.float32)
    found = measures(nn.MSELoss(), ["mse", "rmse", "mae"]).of(outputs.reshape(shape), targets)
    assert found["mse"] == pytest.approx(reference.mean_squared_error(targets, outputs))
    assert found["loss"] == pytest.approx(found["mse"], rel=1e-5)
    assert found["rmse"] == pytest.approx(reference.root_mean_squared_error(targets, outputs))
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(targets, outputs))


def test_large_logits_are_still_ranked() -> None:
    outputs = torch.tensor([[0.0, 50.0], [0.0, 51.0]])
    assert named_metric("auroc", Kind.CLASSES, outputs, torch.tensor([0, 1])) == 1.0


@pytest.mark.parametrize("classes", [2, 3])
def test_one_class_alone_has_an_auroc_of_a_half(classes: int) -> None:
    outputs = torch.randn(5, classes, generator=torch.Generator().manual_seed(0))
    assert named_metric("auroc", Kind.CLASSES, outputs, torch.ones(5, dtype=torch.int64)) == 0.5


def test_f1_without_the_class_is_zero() -> None:
    zeros = torch.zeros(3, dtype=torch.int64)
    assert named_metric("f1", Kind.LOGIT, torch.tensor([-1.0, -1.0, -1.0]), zeros) == 0.0


def test_the_loss_comes_first_and_once() -> None:
    names = [metric.name for metric in measures(nn.MSELoss(), ["mae", "loss"]).metrics]
    assert names == ["loss", "mae"]


def test_a_metric_of_the_users_own() -> None:
    brier = Metric("brier", higher_is_better=False)
    found: Measures = measures(
        nn.BCEWithLogitsLoss(),
        ["accuracy", (brier, lambda o, t: ((torch.sigmoid(o) - t) ** 2).mean())],
    )
    assert found.metrics[-1] == brier
    assert found.of(torch.zeros(4), torch.tensor([0, 1, 1, 1]))["brier"] == pytest.approx(0.25)


def test_a_summed_loss_is_reported_as_a_mean() -> None:
    outputs, targets = torch.zeros(4), torch.ones(4)
    assert measures(nn.MSELoss(reduction="sum"), []).of(outputs, targets)["loss"] == 1.0


def test_a_loss_of_the_users_own_is_understood_by_its_targets() -> None:
    def own(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets)

    outputs, targets = drawn(0, 3)
    assert measures(own, ["accuracy"]).of(outputs, targets)["accuracy"] > 0.3
    values = measures(lambda o, t: (o - t).abs().mean(), ["mae"])
    assert values.of(torch.zeros(3), torch.ones(3))["mae"] == 1.0


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (["brier"], "`brier` is not known"),
        ([Metric("brier", higher_is_better=False)], "nothing says how to compute"),
        (["accuracy", "accuracy"], "given twice"),
    ],
)
def test_metrics_that_cannot_be_computed_are_refused(chosen: list[str], says: str) -> None:
    with pytest.raises(TaskResultError, match=says):
        measures(nn.CrossEntropyLoss(), chosen)


def test_metrics_that_do_not_fit_the_outputs_are_refused() -> None:
    outputs, targets = drawn(0, 2)
    with pytest.raises(TaskResultError, match="does not fit") as caught:
        measures(nn.CrossEntropyLoss(), ["mse"]).of(outputs, targets)
    assert "accuracy, f1, auroc" in caught.value.hint
    with pytest.raises(TaskResultError, match="does not fit"):
        measures(nn.MSELoss(), ["accuracy"]).of(torch.zeros(3), torch.zeros(3))
    with pytest.raises(TaskResultError, match="not one number"):
        measures(nn.MSELoss(), [(Metric("x", True), lambda o, t: o)]).of(
            torch.zeros(3), torch.zeros(3)
        )
    with pytest.raises(TaskResultError, match="not one for each record"):
        named_metric("auroc", Kind.LOGIT, torch.zeros(3, 2), torch.zeros(3, 2))


def test_targets_are_brought_into_the_form_of_the_outputs() -> None:
    column, labels = torch.zeros(3, 1), torch.tensor([0, 1, 1])
    for loss in (nn.MSELoss(), functional.mse_loss, nn.BCEWithLogitsLoss()):
        assert fitted(kind_of(loss), column, labels).shape == (3, 1)
        assert fitted(kind_of(loss), column, labels).dtype == torch.float32
    assert fitted(Kind.CLASSES, torch.zeros(3, 2), labels[:, None]).shape == (3,)
    with pytest.raises(TaskResultError, match=r"gives \[3, 2\] outputs for \[3\] targets"):
        fitted(Kind.LOGIT, torch.zeros(3, 2), labels)
