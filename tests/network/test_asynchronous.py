"""Real processes that do not wait for each other: a slow site holds up nobody, and counts once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.drive.directory import DataDirectory
from consortium.drive.verify import verify_directory
from consortium.model import Layout, load_model
from consortium.testing.processes import Network, Shape, wait_until

BUFFER, SLOW_S = 2, 3.0
SHAPE = Shape(
    sites=4,
    rounds=30,
    size=8,
    pace_s=0.4,
    quorum=2,
    duration="60s",
    buffer=BUFFER,
    slow={"site-3": SLOW_S},
)


def facts_of(folder: Path) -> tuple[list[Any], list[float]]:
    """The log that the coordinator leaves, and the numbers of the last model."""
    directory = DataDirectory(folder)
    (stream,) = (name for name in directory.log.streams() if "/" not in name)
    facts = [decode(record) for record in directory.log.read(stream)]
    model = [fact.model for fact in facts if isinstance(fact, f.ModelPublished)][-1]
    plan = next(fact for fact in facts if isinstance(fact, f.PlanAdopted))
    layout = Layout.from_canonical(directory.blobs.get(plan.layout))
    numbers = load_model(layout, directory.blobs.get(model)).tolist()
    directory.close()
    return facts, numbers


def test_a_slow_site_holds_up_nobody_and_counts_once(tmp_path: Path) -> None:
    with Network(tmp_path / "n", SHAPE) as network:
        network.start_coordinator()
        for name in network.site_names():
            network.join(name)
        wait_until(network.is_finished, 90.0, "the study ends")
    facts, numbers = facts_of(network.data)
    first = {fact.seat: at for at, fact in reversed(list(enumerate(facts))) if _is_update(fact)}
    seat = max(first, key=first.__getitem__)  # whose first update came last
    received = first[seat]
    assert facts[received].round == 1, "it answers the invitation that it was given"
    before = [fact for fact in facts[:received] if isinstance(fact, f.ModelPublished)]
    assert len(before) >= 3, "the others went on while it trained"
    counted = Counter(
        member for fact in facts if isinstance(fact, f.RoundClosed) for member in fact.members
    )
    sent = Counter(fact.seat for fact in facts if _is_update(fact))
    assert all(counted[one] <= sent[one] for one in sent), "nothing counts twice"
    assert 1 <= counted[seat] <= sent[seat] < min(sent[one] for one in sent if one != seat)
    # One-hot steps: number i of the model says how often site i was counted, in halves.
    assert sorted(numbers[:4]) == sorted(counted[one] / BUFFER for one in sent)
    audit = verify_directory(network.data)
    assert audit.findings == []


def _is_update(fact: Any) -> bool:
    return isinstance(fact, f.UpdateReceived)
