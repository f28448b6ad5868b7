"""The other sites that this one has met in secret sums, by their keys.

A coordinator that makes up sites could fill a sum with them, and read what is left. So a site
remembers who came by which key, refuses another key for a known id, and its people may say whose
keys they have compared, by telephone or otherwise, and how many of those every sum must have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from consortium.errors import CorruptStoreError, PolicyError, VerificationError
from consortium.store.files import write_durably


class Members:
    """A file beside the site's log."""

    def __init__(self, home: Path) -> None:
        self._path = home / "members.json"

    def all(self) -> dict[str, str]:
        """Keys by site id."""
        if not self._path.exists():
            return {}
        try:
            found = json.loads(self._path.read_bytes())
        except (ValueError, OSError):
            raise CorruptStoreError(f"{self._path} is not what this site has written") from None
        return {str(site): str(key) for site, key in found.items()}

    def meet(
        self, sites: Mapping[str, str], me: str, known: Sequence[str], least_known: int
    ) -> None:
        """Remember who is there, so that people can look at them. Refuses a site whose key has
        changed, and too few that this site's people know."""
        others = {site: key for site, key in sites.items() if site != me}
        before = self.all()
        changed = [site for site, key in others.items() if before.get(site, key) != key]
        if changed:
            raise VerificationError(
                f"site {changed[0]} comes with another key than before",
                hint="ask its people: a site that joins anew has a new id",
            )
        if not others.keys() <= before.keys():
            write_durably(self._path.resolve(), json.dumps({**before, **others}).encode())
        found = len(set(others.values()) & set(known))
        if found < least_known:
            raise PolicyError(
                f"{found} of the others are known here; {least_known} are the fewest",
                hint="consortium site members    # shows their keys",
            )


def fingerprint(key: str) -> str:
    """A key in the form that people read to each other.

    >>> fingerprint("00" * 32)
    '6668 7aad f862 bd77'
    """
    text = sha256(bytes.fromhex(key)).hexdigest()[:16]
    return " ".join(text[at : at + 4] for at in range(0, 16, 4))
