"""Sites that take their time: a simulation in which training lasts, each site at its own pace.

A site trains from the moment it is asked; when its time is over, it answers. Between two such
moments nothing happens, so the simulation's clock jumps from one to the next, and the same
plan and paces give the same order of events. What a site sends is worked out when it is due:
sites that are due together train together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.federation import owed_by
from consortium.core.ids import Seat
from consortium.core.state import Federation
from consortium.core.tables import Step
from consortium.drive.cohort import Cohort
from consortium.drive.contribution import Contribution

_Asked = tuple[int, Seat]  # the invitation's round, and the seat


class PacedCohort:
    """Plays every site, as `Cohort` does, and knows when the next one is done."""

    def __init__(self, cohort: Cohort, takes_ms: Callable[[Seat], int]) -> None:
        self._cohort, self._takes_ms = cohort, takes_ms
        self._due_ms: dict[_Asked, int] = {}  # when who trains is done
        self._done: dict[_Asked, Contribution] = {}  # trained, and not yet told

    def answer(self, state: Federation, now_ms: int) -> i.Input | None:
        """The next thing that some site says now, or None."""
        duties = {(duty.round, duty.seat): duty for duty in _training(state)}
        self._due_ms = {
            asked: self._due_ms.get(asked, now_ms + self._takes_ms(asked[1])) for asked in duties
        }
        due = sorted(
            (at_ms, seat, number)
            for (number, seat), at_ms in self._due_ms.items()
            if at_ms <= now_ms <= duties[number, seat].deadline_ms
        )
        if due:
            _, seat, number = due[0]
            together = [duties[one, other] for _, other, one in due if one == number]
            return self._tell(duties[number, seat], together, now_ms)
        open_round = state.round
        if open_round is not None and open_round.step is Step.EVALUATING:
            return self._cohort.answer(state, now_ms)
        return None

    def next_ms(self, now_ms: int) -> int | None:
        """When the next site is done that trains now."""
        return min((at_ms for at_ms in self._due_ms.values() if at_ms > now_ms), default=None)

    def _tell(self, duty: d.Train, together: list[d.Train], now_ms: int) -> i.Input:
        lost = self._cohort.lost(duty, now_ms)
        if lost is not None:
            return lost
        key = duty.round, duty.seat
        if key not in self._done:
            seats = [one.seat for one in together if self._cohort.lost(one, now_ms) is None]
            self._done = {
                (duty.round, seat): result
                for seat, result in zip(seats, self._cohort.train(duty, seats), strict=True)
            }
        return self._cohort.told(duty, self._done.pop(key), now_ms)


def _training(state: Federation) -> Iterable[d.Train]:
    """Everybody who is asked to train now."""
    seats = state.passing if state.round is None else state.round.waiting
    for seat in seats:
        duty = owed_by(state, seat)
        if isinstance(duty, d.Train):
            yield duty
