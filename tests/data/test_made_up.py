"""Made-up data: of the right form, the same for one generator, and possible to learn."""

from __future__ import annotations

import numpy as np

import consortium.data as data
from consortium.data import made_up_engines, made_up_hospitals
from consortium.data.turbofan import SENSORS


def test_engines_have_the_form_of_real_ones() -> None:
    for unit, engine in enumerate(made_up_engines(3, np.random.default_rng(0)), start=1):
        assert engine.unit == unit
        assert engine.sensors.shape == (len(engine), len(SENSORS))
        assert engine.rul[-1] == 0 and 128 <= len(engine) <= 362


def test_engines_of_one_generator_are_the_same() -> None:
    first, second = (made_up_engines(2, np.random.default_rng(3)) for _ in range(2))
    assert (first[1].sensors == second[1].sensors).all()


def test_wear_shows_in_every_sensor() -> None:
    """|correlation| with capped life; 0.82 to 0.84 where it was measured."""
    engines = made_up_engines(30, np.random.default_rng(0))
    sensors = np.concatenate([engine.sensors for engine in engines])
    life = np.concatenate([np.minimum(engine.rul, 125) for engine in engines])
    strength = [abs(np.corrcoef(column, life)[0, 1]) for column in sensors.T]
    assert min(strength) > 0.7


def test_hospitals_measure_different_things() -> None:
    hospitals = made_up_hospitals(np.random.default_rng(0), records=(50, 30))
    sizes = {name: (len(table), table.n_features) for name, table in hospitals.items()}
    assert sizes == {"north": (50, 10), "south": (30, 15)}


def test_labels_of_made_up_hospitals_can_be_learnt() -> None:
    """Least squares on half tells the other half; 0.72 to 0.82 with four seeds."""
    for table in made_up_hospitals(np.random.default_rng(0)).values():
        train, test = table.split(0.5)
        add_one = [np.column_stack([side.features, np.ones(len(side))]) for side in (train, test)]
        weights = np.linalg.lstsq(add_one[0], train.labels, rcond=None)[0]
        assert ((add_one[1] @ weights > 0.5) == test.labels).mean() > 0.65


def test_public_names_are_sorted_and_there() -> None:
    assert data.__all__ == sorted(data.__all__)
    assert all(getattr(data, name).__name__ == name for name in data.__all__)
