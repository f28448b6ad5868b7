"""The complete model at a site: predict, save, load, export; and the models we ship."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consortium.errors import MissingExtraError, ModelFileError
from consortium.plan.values import PersonalSection
from consortium.tasks import Site
from consortium.torch import HospitalNet, RemainingLife, SiteModel, load_complete, task
from consortium.torch import onnx as onnx_export
from consortium.torch.losses import Kind
from tests.torch.sites import DATA, data, first, linear, mixed, site

X, Y = DATA


def complete() -> tuple[SiteModel, Site]:
    trained = mixed.train(site(epochs=10), first(mixed))
    at = site(state=trained.state)
    return mixed.complete(at, dict(trained.shared)), site(state=trained.state)


def test_probabilities_of_classes() -> None:
    model, _ = complete()
    found = model.predict(X)
    assert found.shape == (37, 2)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    assert (found.argmax(1) == Y).mean() > 0.7
    np.testing.assert_allclose(model.predict(torch.tensor(X)), found)


def test_prediction_is_what_evaluation_measures() -> None:
    trained = mixed.train(site(epochs=10), first(mixed))
    shared = dict(trained.shared)
    for personal in (PersonalSection(), PersonalSection(name="finetune", epochs=3)):
        means, _ = mixed.evaluate(site(state=trained.state, personal=personal), shared)
        model = mixed.complete(site(state=trained.state, personal=personal), shared)
        assert (model.predict(X).argmax(1) == Y).mean() == pytest.approx(means["accuracy"])


def test_a_probability_and_values() -> None:
    def column(at: Site) -> Any:
        return nn.Linear(4, 1), at.data, at.data

    binary = task(loss=nn.BCEWithLogitsLoss())(column)
    shared = binary.first(site())
    found = binary.complete(site(), shared).predict(X)
    assert found.shape == (37,)
    assert ((found > 0) & (found < 1)).all()
    values = task(loss=nn.MSELoss())(column).complete(site(), shared).predict(X)
    np.testing.assert_allclose(1 / (1 + np.exp(-values)), found, rtol=1e-5)
    own = task(loss=lambda o, t: o.mean())(column).complete(site(), shared).predict(X)
    np.testing.assert_allclose(own, values[:, None])


def test_many_records_are_predicted_in_parts() -> None:
    model, _ = complete()
    many = np.tile(X, (60, 1))
    np.testing.assert_allclose(model.predict(many)[-37:], model.predict(X), atol=1e-6)


def test_a_complete_model_is_not_touched_by_later_rounds() -> None:
    model, at = complete()
    before = model.predict(X)
    mixed.train(site(state=at.state, seed=4), first(mixed))  # the same bench
    np.testing.assert_array_equal(model.predict(X), before)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model, at = complete()
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = load_complete(mixed, at, path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert [found.name for found in tmp_path.iterdir()] == ["model.safetensors"]
    first_bytes = path.read_bytes()
    again.save(path)
    assert path.read_bytes() == first_bytes


def test_other_libraries_read_the_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model, _ = complete()
    model.save(tmp_path / "model.safetensors")
    assert set(load_file(tmp_path / "model.safetensors")) == set(model.module.state_dict())


def test_files_of_another_model_are_refused(tmp_path: Path) -> None:
    model, at = complete()
    path = tmp_path / "model.safetensors"
    model.save(path)
    for wrong in (site(data=data(9)), at):
        other = mixed if wrong is not at else linear
        with pytest.raises(ModelFileError, match="not a complete model"):
            load_complete(other, wrong, path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelFileError, match="header"):
        load_complete(mixed, at, path)
    with pytest.raises(ModelFileError, match="No such file"):
        load_complete(mixed, at, tmp_path / "none")


# ---- ONNX ---------------------------------------------------------------------------


def run(path: Path, rows: Any) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"inputs": rows})[0]


def test_a_model_with_batch_norm_and_dropout_is_exported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, _ = complete()
    path = tmp_path / "model.onnx"
    model.to_onnx(path, X[:1])
    for rows in (X[:1], X[:5], X):
        found = torch.softmax(torch.tensor(run(path, rows)), 1)
        np.testing.assert_allclose(found, model.predict(rows), atol=1e-5)
    assert capfd.readouterr() == ("", "")  # torch talks about itself; we do not pass it on


def test_an_lstm_is_exported(tmp_path: Path) -> None:
    model = SiteModel(RemainingLife(6, hidden=8).eval(), Kind.VALUES)
    windows = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    before = model.predict(windows)
    model.to_onnx(tmp_path / "life.onnx", windows)
    for count in (1, 2, 4):
        found = run(tmp_path / "life.onnx", windows[:count])
        np.testing.assert_allclose(found, before[:count], atol=1e-5)
    np.testing.assert_array_equal(model.predict(windows), before)


def test_an_export_that_gives_other_outputs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a session that is wrong for seven records only."""
    model, _ = complete()

    class Wrong:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def run(self, _: Any, given: dict[str, Any]) -> list[Any]:
            with torch.no_grad():
                outputs = model.module(torch.tensor(given["inputs"])).numpy()
            return [outputs + (2e-3 if len(outputs) == 7 else 0)]

    monkeypatch.setattr("onnxruntime.InferenceSession", Wrong)
    monkeypatch.setattr(onnx_export, "_exported", lambda *_: b"")
    with pytest.raises(ModelFileError, match="for 7 records"):
        model.to_onnx(tmp_path / "model.onnx", X)
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_exported_says_so(tmp_path: Path) -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(ModelFileError, match="cannot export"):
        SiteModel(Branching(), Kind.VALUES).to_onnx(tmp_path / "model.onnx", X)
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = complete()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="onnxruntime") as caught:
        model.to_onnx(tmp_path / "model.onnx", X)
    assert caught.value.hint == "pip install 'consortium[onnx]'"


# ---- models -------------------------------------------------------------------------


def layers(model: nn.Module) -> list[str]:
    found = [module for module in model.modules() if not list(module.children())]
    return [str(layer).partition(", bias")[0].partition(", eps")[0] for layer in found]


def test_the_hospital_model_has_the_layers_of_its_description() -> None:
    assert layers(HospitalNet(10)) == [
        "Linear(in_features=10, out_features=64", "ReLU()", "BatchNorm1d(64",
        "Dropout(p=0.2, inplace=False)", "Linear(in_features=64, out_features=128", "ReLU()",
        "Linear(in_features=128, out_features=256", "ReLU()", "BatchNorm1d(256",
        "Dropout(p=0.3, inplace=False)", "Linear(in_features=256, out_features=128", "ReLU()",
        "BatchNorm1d(128", "Dropout(p=0.3, inplace=False)",
        "Linear(in_features=128, out_features=64", "ReLU()", "Dropout(p=0.3, inplace=False)",
        "Linear(in_features=64, out_features=2",
    ]  # fmt: skip
    assert HospitalNet(3, classes=5)(torch.zeros(2, 3)).shape == (2, 5)


@pytest.mark.parametrize("window", [1, 31, 50])
def test_remaining_life_is_one_number_for_windows_of_any_length(window: int) -> None:
    model = RemainingLife(6)
    assert (model.lstm.hidden_size, model.lstm.num_layers) == (128, 2)
    life: Tensor = model(torch.zeros(3, window, 6))
    assert life.shape == (3,)


def test_remaining_life_learns() -> None:
    rng = np.random.default_rng(0)
    windows = rng.normal(size=(60, 5, 2)).astype(np.float32)
    target = windows[:, -1, 0].astype(np.float64)
    made = task(loss=nn.MSELoss(), metrics=["rmse"])(
        lambda s: (RemainingLife(2, hidden=8, layers=1), s.data, s.data)
    )
    at: Any = {"data": (windows, target), "optimizer": "adam", "lr": 0.03, "epochs": 20}
    shared = made.first(site(**at))
    before, _ = made.evaluate(site(**at), shared)
    after, _ = made.evaluate(site(**at), dict(made.train(site(**at), shared).shared))
    assert after["rmse"] < before["rmse"] / 2
