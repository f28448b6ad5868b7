"""Small secure sums with fixed seeds, phase by phase."""

from __future__ import annotations

from consortium.crypto.secure_sum.session import RoundName, Terms, terms_for
from consortium.testing.secure_dropouts import Ids, Scene, ids

__all__ = ["Ids", "Scene", "ids", "scene", "terms_for"]


def scene(count: int, terms: Terms | None = None, *, size: int = 5, round: int = 3) -> Scene:
    return Scene(ids(count), terms or terms_for(count), size, name=RoundName("federation", round))
