"""Choosing whom to invite, from a recorded seed: anybody with the log can redo it.

The random numbers are SHA-256 in counter mode over (seed, purpose): one definition on
every machine and in every version of Python, which `random.Random` does not promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct

from consortium.core.ids import Seat, Seats
from consortium.core.roster import Pool, Roster, eligible
from consortium.core.state import Round
from consortium.core.terms import PPM, Selection, Terms

_CONTEXT = b"consortium/selection/v1\0"
_BLOCK = Struct(">4Q")  # the words of one digest
_WORDS = 1 << 64


@dataclass(frozen=True, slots=True)
class Choice:
    """Whom to invite, of how many eligible, and how many are to train at a time."""

    seats: Seats
    eligible: int
    target: int


def choice(terms: Terms, roster: Roster, open_round: Round, seed: bytes, now_ms: int) -> Choice:
    """The invitations of a round. Without a barrier they make up for those who have answered
    since the last: who is training still, or is in the buffer, is not asked again."""
    pool = eligible(roster, terms, now_ms)
    target, count = invitation_size(terms, len(pool))
    if terms.is_buffered:
        count = max(0, target - len(open_round.waiting))
        free = [seat for seat in pool if seat not in open_round.invited]
        return Choice(choose(terms, roster, free, count, seed), len(pool), target)
    return Choice(choose(terms, roster, pool, count, seed), len(pool), target)


def invitation_size(terms: Terms, eligible: int) -> tuple[int, int]:
    """(target, how many to invite) when `eligible` sites are there."""
    least = max(terms.quorum, terms.buffer)
    target = terms.target or max(least, _ceil_ppm(eligible, terms.fraction_ppm))
    target = min(target, eligible)
    return target, min(eligible, _ceil_ppm(target, terms.overselect_ppm))


def choose(terms: Terms, roster: Roster, pool: Pool, count: int, seed: bytes) -> Seats:
    """`count` seats of `pool` (ascending) by the plan's strategy; ascending."""
    if count >= len(pool):
        return tuple(pool)
    draw = _Draw(seed, terms.selection.name)
    return tuple(sorted(_STRATEGIES[terms.selection](terms, roster, pool, count, draw)))


def choose_backups(pool: Pool, count: int, seed: bytes, attempt: int) -> Seats:
    """`count` backups of `pool` (ascending), at random; each attempt draws afresh."""
    return tuple(sorted(_sample(pool, count, _Draw(seed, f"backup-{attempt}"))))


class _Draw:
    """Uniform integers below a bound, without bias."""

    def __init__(self, seed: bytes, purpose: str) -> None:
        self._words = _words(_CONTEXT + seed + purpose.encode())

    def below(self, bound: int) -> int:
        limit = _WORDS - _WORDS % bound  # numbers past this would favour small results
        word = next(self._words)
        while word >= limit:
            word = next(self._words)
        return word % bound


def _words(key: bytes) -> Iterator[int]:
    counter = 0
    while True:
        yield from _BLOCK.unpack(sha256(key + counter.to_bytes(8, "big")).digest())
        counter += 1


def _sample(pool: Pool, count: int, draw: _Draw) -> list[Seat]:
    """A uniform sample without replacement: Fisher–Yates on a sparse table."""
    moved: dict[int, Seat] = {}
    picked = []
    size = len(pool)
    for position in range(min(count, size)):
        other = position + draw.below(size - position)
        picked.append(moved.get(other, pool[other]))
        moved[other] = moved.get(position, pool[position])
    return picked


def _random(terms: Terms, roster: Roster, pool: Pool, count: int, draw: _Draw) -> list[Seat]:
    return _sample(pool, count, draw)


def _fair(terms: Terms, roster: Roster, pool: Pool, count: int, draw: _Draw) -> list[Seat]:
    """Those who took part least; ties are broken at random."""
    by_rounds: dict[int, list[Seat]] = {}
    for seat in pool:
        by_rounds.setdefault(roster.taken_part.get(seat, 0), []).append(seat)
    picked: list[Seat] = []
    for rounds in sorted(by_rounds):
        picked += _sample(by_rounds[rounds], count - len(picked), draw)
    return picked


def _diverse(terms: Terms, roster: Roster, pool: Pool, count: int, draw: _Draw) -> list[Seat]:
    """One of each kind in turn, kinds and sites within a kind in random order."""
    kinds: dict[tuple[object, ...], list[Seat]] = {}
    for seat in pool:
        declared = roster.attributes(seat)
        kind = tuple(repr(declared.get(name)) for name in terms.spread)
        kinds.setdefault(kind, []).append(seat)
    queues = [_sample(group, len(group), draw) for _, group in sorted(kinds.items())]
    order = _sample([Seat(number) for number in range(len(queues))], len(queues), draw)
    picked: list[Seat] = []
    while len(picked) < min(count, len(pool)):
        picked += [queues[number].pop() for number in order if queues[number]]
    return picked[:count]


_Strategy = Callable[[Terms, Roster, Pool, int, _Draw], list[Seat]]
_STRATEGIES: dict[Selection, _Strategy] = {
    Selection.RANDOM: _random,
    Selection.FAIR: _fair,
    Selection.DIVERSE: _diverse,
}


def _ceil_ppm(value: int, ppm: int) -> int:
    return -(-value * ppm // PPM)
