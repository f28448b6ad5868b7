"""The audit of noise under masks: what a coordinator sees who works with some of the sites.

The whole way is run: weigh → clip → ring → share of the noise → masks → sum → masks away, with as
many dropouts as a round survives. Those who collude tell the coordinator what they sent, and it
takes that away: what is left has the noise of the honest alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consortium.errors import UpdateError
from consortium.privacy.keystream import Keystream
from consortium.privacy.noise import Noise
from consortium.testing.masked_rounds import secure_sum, site_ids
from consortium.update.ring import U32, Ring
from consortium.update.ring_noise import NoiseShare
from consortium.update.stage import Rows, Stage

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class UnderMasks:
    """The sums of rounds of `ring.cohort` sites, of which `survivors` stay. The last site is the
    one that is looked for; before it come those who collude.

    Neighbours differ in one row: where it is missing, its site sends zeros, because that it takes
    part is not hidden. So does a site whose update is refused.
    """

    stages: Stage
    ring: Ring
    share: NoiseShare
    survivors: int
    colluding: int
    noise: Noise

    def __call__(self, rows: Rows, draws: int) -> Floats:
        size = rows.values.shape[1]
        places = {}
        for at, site in enumerate(site_ids(self.ring.cohort)):
            # Of a full round the last row is the one that may be missing.
            is_there = at < len(rows.values)
            levels = self._levels(rows, at) if is_there else np.zeros(size, np.uint32)
            # Rounded once: what is promised holds for every way in which chance rounds.
            many = np.append(np.tile(levels, draws), np.uint32(0))
            places[site] = self.share.added(many, draws * size, self.noise)
        sites = list(places)
        stay = sites[-self.survivors :]
        total = secure_sum(places, frozenset(stay))
        for site in stay[-1 - self.colluding : -1]:
            total = total - places[site]
        return self.ring.columns(total[:-1], 0, len(total)).reshape(draws, size)

    def _levels(self, rows: Rows, at: int) -> U32:
        one = Rows(rows.values[at : at + 1], rows.samples[at : at + 1], rows.weights[at : at + 1])
        try:
            sent = self.stages.apply(one)
            words = Keystream.fresh().words
            row = self.ring.encode(sent.values[0], float(sent.weights[0]), (), words)
        except UpdateError:
            return np.zeros(rows.values.shape[1], np.uint32)
        return row[: -self.ring.extra]
