"""Who may do what: every cell of docs/reference/access.md, and the attacks that it has no
columns for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consortium.coordinator.matrix import read_table, rows
from tests.coordinator.access_attacks import HEARS, Attack, heard
from tests.coordinator.access_cells import PAGE, complaints
from tests.coordinator.access_world import World, world


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("access") / "data") as found:
        yield found


@pytest.mark.parametrize("attack", HEARS, ids=lambda attack: attack.__name__)
def test_attack_hears_what_it_must(there: World, attack: Attack) -> None:
    assert heard(there, attack) == HEARS[attack]


def test_every_route_has_a_row() -> None:
    assert set(read_table(PAGE.read_text())) == {(row.method, row.path) for row in rows()}


def test_everybody_hears_what_the_page_says(there: World) -> None:
    """The last one: whoever is allowed to leave has left then."""
    assert list(complaints(there)) == []
