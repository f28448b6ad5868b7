"""`consortium serve` where something has changed since the last time."""

from __future__ import annotations

from pathlib import Path

import pytest

from consortium.cli.serve import _host
from tests.coordinator.wired import study, wire
from tests.test_cli_operator import call, new_study, serve


def test_round_that_is_open_goes_on_under_the_plan_that_it_began_with(tmp_path: Path) -> None:
    """Nobody could end it otherwise: a coordinator that does not start takes no orders."""
    with wire(tmp_path) as wired:
        wired.in_training()
        ((desk),) = wired.office.desks.values()
        before, said = desk.state.plan, list[str]()
        _host(wired.office, study(is_judged=True), None, said.append)
        assert desk.state.plan == before and desk.state.round is not None
        assert "goes on under the old plan" in said[0] and "consortium round hold" in said[1]


def test_path_that_leads_nowhere_makes_no_coordinator(tmp_path: Path) -> None:
    plan = new_study(tmp_path / "study") / "consortium.toml"
    told = call("serve", str(plan), "--data", str(tmp_path / "unmounted" / "data"))
    assert told.exit_code == 2
    assert "there is no folder" in told.stderr and "mkdir -p" in told.stderr
    assert not (tmp_path / "unmounted").exists()


def test_first_start_and_another_address_are_told(tmp_path: Path) -> None:
    folder = new_study(tmp_path / "study")
    first = serve(folder, name="first")
    assert "this is a new coordinator" in first.err
    first.end()
    assert "the same command goes on" in first.err
    second = serve(folder, name="second")
    second.end()
    assert "new coordinator" not in second.err
    assert "sites that have joined go on asking there" in second.err


@pytest.mark.parametrize("wrong", [("--role", "boss"), ("--label", "a b")])
def test_token_of_a_wrong_role_or_label_is_the_callers_mistake(
    tmp_path: Path, wrong: tuple[str, str]
) -> None:
    options = {"--label": "anna", "--role": "lead"} | dict([wrong])
    told = call("token", "new", *(word for pair in options.items() for word in pair))
    assert told.exit_code == 2 and "version of consortium" not in told.stderr
