"""What a simulated run is asked for beyond its plan: who falls out, how fast, how recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consortium.errors import UsageError

if TYPE_CHECKING:
    from consortium.drive.engine import SimulatedSite
    from consortium.drive.study import Study
    from consortium.tasks import Task

_SHOWN = 8  # names in a hint


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of `simulate` that hold for one run as for all of a study."""

    record: bool
    dropout: float
    away: tuple[str, ...]
    pace: float
    workers: int | None
    engine: str | None

    def told(self) -> dict[str, object]:
        """Those that can change the model, as far as they were made."""
        made: dict[str, object] = {"record": self.record, "dropout": self.dropout}
        made |= {"away": list(self.away), "engine": self.engine}
        return {name: value for name, value in made.items() if value}

    def task_of(self, study: Study) -> Task:
        from consortium.drive.study import Paced

        return Paced(study.task, self.pace) if self.pace else study.task

    def options(self, study: Study, seed: int) -> dict[str, Any]:
        """For `Options`, of a run of this study."""
        from consortium.tasks import AUTO

        return {
            "record": self.record,
            "engine": self.engine or AUTO,
            "workers": self.workers,
            "drops": self._drops(study.sites, seed),
            "task_hash": study.task_hash,
        }

    def check(self, sites: Sequence[SimulatedSite]) -> None:
        """Refuse what does not fit these sites."""
        self._absent(sites)

    def _drops(
        self, sites: Sequence[SimulatedSite], seed: int
    ) -> Callable[[int, str], bool] | None:
        """Who falls out of which round: by name, or by chance, the same for the same seed."""
        absent = self._absent(sites)
        if self.dropout == 0.0 and not absent:
            return None
        from consortium.drive.rng import stream

        def falls_out(number: int, site: str) -> bool:
            if (number, site) in absent:
                return True
            return bool(stream(seed, f"dropout/{site}", number).random() < self.dropout)

        return falls_out

    def _absent(self, sites: Sequence[SimulatedSite]) -> set[tuple[int, str]]:
        """(round, site) pairs of `--away NAME:ROUNDS`."""
        from consortium.drive.population import place_of

        pairs = set()
        for text in self.away:
            name, _, rounds = text.rpartition(":")
            numbers = rounds.split(",")
            is_known = place_of(sites, name) is not None
            if not is_known or not all(number.isdecimal() for number in numbers):
                what = "not NAME:ROUNDS" if is_known else f"there is no site `{name}`"
                known = [site.name for site in sites[:_SHOWN]]
                raise UsageError(
                    f"--away {text}: {what}",
                    hint=f"--away {known[0]}:3,4    # sites: {', '.join(known)}",
                )
            pairs |= {(int(number), name) for number in numbers}
        return pairs
