"""The public sets: in small files of the same form, and in the real ones where they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from consortium.data import (
    Engine,
    heart,
    intrusion,
    load_bundled,
    load_heart,
    load_intrusion,
    load_turbofan,
    turbofan,
    windows,
)
from consortium.errors import MissingExtraError, SiteDataError
from tests.data.made import (
    REAL,
    digests,
    heart_files,
    intrusion_files,
    turbofan_files,
    write,
    zipped,
)
from tests.data.server import publisher

real = pytest.mark.skipif(not REAL.is_dir(), reason="the published files are not on this machine")
LOADERS: list[tuple[ModuleType, Callable[..., object], Callable[[], dict[str, bytes]]]] = [
    (heart, load_heart, heart_files),
    (turbofan, load_turbofan, turbofan_files),
    (intrusion, load_intrusion, intrusion_files),
]


def placed(
    module: ModuleType, files: dict[str, bytes], folder: Path, patch: pytest.MonkeyPatch
) -> Path:
    """Made files in a folder, and the loader told that these are the published ones."""
    patch.setattr(module, "SOURCE", replace(module.SOURCE, sha256=digests(files)))
    return write(folder / "set", files)


@pytest.mark.parametrize(("module", "load", "files"), LOADERS)
def test_a_set_is_fetched_from_its_publisher_and_kept(
    module: ModuleType,
    load: Callable[..., object],
    files: Callable[[], dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with publisher() as shop:
        shop.body = zipped(files())
        source = replace(module.SOURCE, sha256=digests(files()), url=shop.url)
        monkeypatch.setattr(module, "SOURCE", source)
        load()
        load()
        assert len(shop.asked) == 1
    assert set(files()) == {path.name for path in (tmp_path / "consortium").glob("*/*")}


@pytest.mark.parametrize(("module", "load", "files"), LOADERS)
def test_files_of_another_checksum_are_not_loaded(
    module: ModuleType,
    load: Callable[..., object],
    files: Callable[[], dict[str, bytes]],
    tmp_path: Path,
) -> None:
    with pytest.raises(SiteDataError, match="is not the published file"):
        load(write(tmp_path / "set", files()))


@pytest.mark.parametrize("module", [heart, turbofan, intrusion])
def test_a_source_names_its_licence_and_has_whole_digests(module: ModuleType) -> None:
    assert re.search(r"[Ll]icence|Open data|Free for", module.__doc__ or "")
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in module.SOURCE.sha256.values())


# ---- heart --------------------------------------------------------------------------


def test_hospitals_lose_three_columns_and_then_records_with_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = load_heart(placed(heart, heart_files(), tmp_path, monkeypatch))
    assert list(tables) == ["cleveland", "hungarian", "switzerland", "va"]
    assert tables["va"].columns == heart.COMMON
    assert tables["va"].labels.tolist() == [1, 1, 0, 1, 0, 1, 1, 0]


def test_chest_pain_and_ecg_can_be_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = load_heart(placed(heart, heart_files(), tmp_path, monkeypatch), form="encoded")
    table = tables["cleveland"]
    pain = [table.columns.index(f"cp={number}") for number in (1, 2, 3, 4)]
    assert table.features[:, pain].argmax(axis=1).tolist() == [1, 2, 3, 0, 2, 3, 0, 1]


def test_raw_hospitals_have_all_columns_gaps_and_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load_heart(placed(heart, heart_files(), tmp_path, monkeypatch), form="raw")["va"]
    assert (len(table), table.n_features, table.n_classes) == (10, 13, 5)
    assert np.isnan(table.features).sum(axis=0).tolist() == [0, 0, 0, 0, 0, 2] + [0] * 5 + [10, 0]


@real
def test_real_hospitals_have_the_published_sizes() -> None:
    tables = load_heart(REAL / "heart_disease")
    assert [len(table) for table in tables.values()] == [303, 261, 46, 130]
    assert [int(table.labels.sum()) for table in tables.values()] == [139, 98, 45, 101]


@real
def test_real_hospitals_as_published_have_920_patients() -> None:
    tables = load_heart(REAL / "heart_disease", form="raw")
    assert [len(table) for table in tables.values()] == [303, 294, 123, 200]


# ---- turbofan -----------------------------------------------------------------------


def test_engines_have_their_useful_sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = load_turbofan(placed(turbofan, turbofan_files(), tmp_path, monkeypatch)).train
    assert [(engine.unit, engine.sensors.shape) for engine in engines] == [
        (1, (3, 14)),
        (2, (2, 14)),
    ]
    # The file's 21 sensors are 100·unit + cycle + 0.01·(number - 1).
    np.testing.assert_allclose(
        engines[1].sensors[0], [201 + 0.01 * (number - 1) for number in turbofan.USEFUL], rtol=1e-6
    )


def test_life_counts_down_to_the_end_or_to_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = load_turbofan(placed(turbofan, turbofan_files(), tmp_path, monkeypatch))
    assert fleet.train[0].rul.tolist() == [2, 1, 0]
    assert fleet.test[0].rul.tolist() == [9, 8, 7]
    assert fleet.rul.tolist() == [7, 9]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("RUL_FD001.txt", b"7\n", "2 engines, but the life of 1"),
        ("RUL_FD001.txt", b"7 1\n9 1\n", "2 columns instead of 1"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: bytes, message: str
) -> None:
    files = {**turbofan_files(), name: text}
    with pytest.raises(SiteDataError, match=message):
        load_turbofan(placed(turbofan, files, tmp_path, monkeypatch))


def small_engine(cycles: int) -> Engine:
    sensors = np.arange(cycles * 14, dtype=np.float32).reshape(cycles, 14)
    return Engine(1, sensors, np.arange(cycles - 1, -1, -1).astype(np.float32))


def test_a_window_ends_at_its_cycle() -> None:
    engine = small_engine(6)
    x, y = windows(engine, 3)
    assert x.shape == (6, 3, 14)
    assert (x[4] == engine.sensors[2:5]).all() and y[4] == 1


def test_a_window_before_the_first_cycle_repeats_it() -> None:
    engine = small_engine(6)
    first = windows(engine, 3)[0][0]
    assert (first == engine.sensors[0]).all()


def test_a_window_may_be_longer_than_the_life() -> None:
    assert windows(small_engine(2), 5)[0].shape == (2, 5, 14)


def test_life_is_capped_in_windows() -> None:
    assert windows(small_engine(6), 2, cap=3)[1].tolist() == [3, 3, 3, 2, 1, 0]


def test_a_window_without_cycles_is_refused() -> None:
    with pytest.raises(SiteDataError, match="one cycle or more"):
        windows(small_engine(2), 0)


@real
def test_real_engines_have_the_published_sizes() -> None:
    fleet = load_turbofan(REAL / "cmapss")
    assert (len(fleet.train), len(fleet.test)) == (100, 100)
    assert (sum(map(len, fleet.train)), sum(map(len, fleet.test))) == (20_631, 13_096)
    assert fleet.rul[:3].tolist() == [112, 98, 69]


@real
def test_every_useful_sensor_of_real_engines_changes() -> None:
    sensors = np.concatenate([engine.sensors for engine in load_turbofan(REAL / "cmapss").train])
    assert (sensors.std(axis=0) > 0).all()


# ---- intrusion ----------------------------------------------------------------------


def test_connections_are_encoded_alike_in_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = load_intrusion(placed(intrusion, intrusion_files(), tmp_path, monkeypatch))
    assert train.columns == test.columns
    assert train.n_features == 41 - 3 + 3 + 70 + 11


def test_an_attack_of_any_name_is_positive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = load_intrusion(placed(intrusion, intrusion_files(), tmp_path, monkeypatch))
    assert train.labels.tolist() == [0, 1] * 5


def test_durations_are_logarithms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = load_intrusion(placed(intrusion, intrusion_files(), tmp_path, monkeypatch))
    np.testing.assert_allclose(train.features[:, 0], np.log1p(np.arange(10)), rtol=1e-6)


@real
def test_real_connections_have_the_published_sizes() -> None:
    train, test = load_intrusion(REAL / "nslkdd")
    assert (len(train), len(test)) == (25_192, 22_544)
    assert (int(train.labels.sum()), int(test.labels.sum())) == (11_743, 12_833)


@real
def test_published_categories_cover_every_real_connection() -> None:
    for table in load_intrusion(REAL / "nslkdd"):
        encoded = [place for place, name in enumerate(table.columns) if "=" in name]
        assert (table.features[:, encoded].sum(axis=1) == 3).all()


# ---- bundled ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("breast_cancer", (569, 30), 2),
        ("diabetes", (442, 10), 0),
        ("digits", (1797, 64), 10),
        ("wine", (178, 13), 3),
    ],
)
def test_bundled_sets_are_tables(name: str, shape: tuple[int, int], classes: int) -> None:
    pytest.importorskip("sklearn")
    table = load_bundled(name)  # type: ignore[arg-type]  # one of its names
    assert (table.features.shape, table.n_classes) == (shape, classes)


def test_a_bundled_set_that_is_not_known_is_refused() -> None:
    with pytest.raises(SiteDataError, match="no data set `iris`"):
        load_bundled("iris")  # type: ignore[arg-type]  # on purpose


def test_bundled_sets_without_scikit_learn_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match="not installed") as caught:
        load_bundled("wine")
    assert "consortium[examples]" in caught.value.hint
