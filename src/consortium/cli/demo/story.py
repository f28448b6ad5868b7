"""The demo from its beginning to its end."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from consortium.cli.demo.network import ADAPTERS, COMMON, DemoStudy, Network
from consortium.cli.demo.processes import Processes
from consortium.cli.demo.records import HOSPITALS, Records, write_records
from consortium.cli.demo.results import (
    Comparison,
    everywhere_table,
    everywhere_words,
    home_table,
    home_words,
)
from consortium.cli.demo.show import Show, folded
from consortium.cli.demo.watch import Watch, round_in_log
from consortium.cli.told import OpenRound
from consortium.errors import AuditError

_KILLED = "county"
_KILL_HOSPITAL_IN, _KILL_COORDINATOR_IN = 3, 6


def tell_story(folder: Path, processes: Processes, show: Show) -> dict[str, Any]:
    """Run everything; the figures for `--json`."""
    show.say("Four hospitals train one model together. Their records stay where they are.\n")
    show.doing("reading the records")
    records = write_records(folder / "records")
    _introduce(records, show)
    network = Network(folder, processes, show)
    show.say("A coordinator and four hospitals: five processes, five keys, TLS with")
    show.say("certificates on both sides. The commands are those that you would type:\n")
    has_torch = find_spec("torch") is not None
    network.lock([COMMON, ADAPTERS] if has_torch else [COMMON])
    network.serve()
    told: dict[str, Any] = {"hospitals": {found.hospital.name: _told(found) for found in records}}
    told[COMMON] = _run_one(network, records)
    if has_torch:
        told[ADAPTERS] = _run_two(network, records)
    else:
        show.say("\nRun two needs torch, which is not installed: pip install 'consortium[torch]'")
    told["audit"] = _audit(network)
    return told


def _introduce(records: list[Records], show: Show) -> None:
    show.say("569 real breast-cancer records (from scikit-learn), dealt out so that the")
    show.say("hospitals differ. No value is changed; half of each file is kept for testing.\n")
    show.data("hospital    records  malignant  columns  sees")
    for found in records:
        share = f"{found.malignant / found.count:.0%}"
        columns = len(found.hospital.columns)
        show.data(
            f"{found.hospital.name:<11} {found.count:>7}  {share:>9}  {columns:>7}  "
            f"{found.hospital.sees}"
        )
    show.say()


def _told(found: Records) -> dict[str, Any]:
    return {
        "records": found.count,
        "malignant": found.malignant,
        "tested": found.tested,
        "columns": len(found.hospital.columns),
    }


# ---- run one: what all of them have -------------------------------------------------


def _run_one(network: Network, records: list[Records]) -> dict[str, Any]:
    show, study = network.show, network.studies[0]
    tokens = network.invite(study)
    for hospital, token in zip(HOSPITALS, tokens, strict=True):
        words = network.join(study, hospital.name, token)
        if hospital is HOSPITALS[0]:
            show.say("  and so each of them. Both sides compare these words by phone:")
        show.say(f"    {hospital.name:<10} {words}")
    network.start_simulations()  # they are needed later, and there is time now
    show.say("\nRUN ONE: the seven columns that all four have. Weights and test scores travel;")
    show.say("the coordinator can read them.\n")
    watch = Watch(network, study.name)
    _lose_hospital(network, study, watch)
    _lose_coordinator(network, watch)
    model = _last_model(network, watch)
    comparison = _compared(network, study, model, records)
    for line in everywhere_table(comparison):
        show.data(line)
    show.say("\n" + folded(everywhere_words(comparison)))
    return {"model": model, "accuracy": comparison.told(has_elsewhere=True)}


def _lose_hospital(network: Network, study: DemoStudy, watch: Watch) -> None:
    """Kill one in the middle of a round, see that the round waits, and start it again."""

    def is_at_work(now: OpenRound) -> bool:
        # Rounds are short. If its training was not seen in this one, its scoring will do.
        is_training = _KILLED in now.waiting_for and _KILLED not in now.received
        is_late = now.number > _KILL_HOSPITAL_IN and _KILLED in now.waiting_for
        return now.number >= _KILL_HOSPITAL_IN and (is_training or is_late)

    watch.until_round(is_at_work, f"{_KILLED} is at work")
    network.kill_hospital(_KILLED)
    stuck = watch.until_round(
        lambda now: now.waiting_for == [_KILLED], f"the round waits for {_KILLED}"
    )
    has = f"has {len(stuck.received)} of {len(stuck.invited)} updates"
    network.show.say(f"# kill -9 {_KILLED}: round {stuck.number} waits for it; it {has}")
    network.restart_hospital(study, _KILLED)


def _lose_coordinator(network: Network, watch: Watch) -> None:
    """Kill it in the middle of a round, and start it again with the same command."""

    def has_begun(now: OpenRound) -> bool:
        is_late = now.number > _KILL_COORDINATOR_IN
        return now.number >= _KILL_COORDINATOR_IN and (bool(now.received) or is_late)

    watch.until_round(has_begun, "updates arrive")
    network.kill_coordinator()
    where = round_in_log(network.data, watch.id)
    network.show.say(f"# kill -9 coordinator: {where}")
    network.serve()


# ---- run two: what each has besides -------------------------------------------------


def _run_two(network: Network, records: list[Records]) -> dict[str, Any]:
    show, study = network.show, network.studies[1]
    widths = ", ".join(str(len(found.hospital.columns)) for found in records)
    show.say(f"\nRUN TWO: all that each hospital measures ({widths} columns), through a")
    show.say("first layer of its own that never leaves; the layers behind it are shared.")
    tokens = network.invite(study)
    for hospital, token in zip(HOSPITALS, tokens, strict=True):
        network.join(study, hospital.name, token)
    show.say("The four have joined it as they joined the first; each loads torch.\n")
    model = _last_model(network, Watch(network, study.name))
    comparison = _compared(network, study, model, records)
    for line in home_table(comparison):
        show.data(line)
    show.say("\n" + folded(home_words(comparison)))
    return {"model": model, "accuracy": comparison.told(has_elsewhere=False)}


# ---- evidence -----------------------------------------------------------------------


def _last_model(network: Network, watch: Watch) -> str:
    """The digest of the model that the network has made, when it is done."""
    model = watch.until(lambda told: told.finished is not None, "the last round").model
    watch.close()
    network.wait_for_hospitals()
    assert model is not None
    return model


def _compared(network: Network, study: DemoStudy, model: str, records: list[Records]) -> Comparison:
    """Each hospital alone, from a simulation that must give the network's model."""
    network.show.say("\nThe same study, simulated in one process with nobody killed:")
    found = network.simulated(study)
    if found["model"] != model:
        raise AuditError(f"{study.name}: the network made another model than the simulation")
    network.show.say(f"  the same model, bit for bit: {model[:16]}…\n")
    return Comparison.of(found["cross_site"], records)


def _audit(network: Network) -> Any:
    show = network.show
    show.say("\nTHE AUDIT: the coordinator is stopped, and its folder checked with the receipts")
    show.say("that the hospitals hold. Every signature, sum and proof is done again.\n")
    network.stop_coordinator()
    found = network.audit()
    show.data(
        f"ok: {found['facts']} facts, {found['blobs']} blobs, {found['signatures']} signed "
        f"requests, {found['receipts']} receipts"
    )
    return {key: found[key] for key in ("facts", "blobs", "signatures", "receipts", "checkpoints")}
