"""A whole secure sum once more, plain and slow, with nothing of the product.

`python -m tests.secagg.plain_round` writes the vectors: all that is said in two rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.secagg.plain_primitives import BASE, digest, gcm, hkdf, keystream, x25519

FILE = Path(__file__).parent / "vectors" / "rounds.txt"
P = 2**130 - 5
Words = list[int]
Said = dict[str, str]  # what was said, in hexadecimal


@dataclass(frozen=True)
class Case:
    """Who leaves in which phase: 2 before shares, 3 before the vector, 4 before the answer."""

    name: str
    sites: str
    threshold: int
    quorum: int
    degree: int | None
    leaves: dict[str, int]
    size: int = 11
    federation: str = "f-1"
    round: int = 7

    @property
    def seed(self) -> bytes:
        return digest(f"{self.name} seed".encode()) if self.degree else b""

    def seeds(self, site: str) -> bytes:
        """Of the mask, own, of the seal, of the shares: sixteen bytes each."""
        return b"".join(digest(f"{self.name} {site} {part}".encode()) for part in "ab")

    def vector(self, site: str) -> Words:
        raw = b"".join(digest(f"{self.name} {site} {at}".encode())[:4] for at in range(self.size))
        return words_of(raw)

    def present(self, phase: int) -> str:
        return "".join(site for site in self.sites if self.leaves.get(site, 9) > phase)


CASES = (
    Case("full", "abcdef", 4, 4, None, {"b": 3, "f": 2}),
    Case("sparse", "abcdefghi", 3, 5, 4, {"c": 3, "g": 4}, size=6),
)


def words_of(raw: bytes) -> Words:
    return [int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)]


def raw_of(words: Words) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


def framed(purpose: str, *fields: bytes | str | int) -> bytes:
    out = b"consortium/secure-sum/v1/" + purpose.encode() + b"\0"
    for field in fields:
        raw = field.to_bytes(8, "big") if isinstance(field, int) else field
        raw = raw.encode() if isinstance(raw, str) else raw
        out += len(raw).to_bytes(4, "big") + raw
    return out


class Plain:
    """One case, from the sites' seeds to the sum."""

    def __init__(self, case: Case) -> None:
        self.case, self.where = case, (case.federation, case.round)
        self.part = {
            site: [case.seeds(site)[at : at + 16] for at in (0, 16, 32, 48)] for site in case.sites
        }
        self.mask_private = {s: self._private("mask-pair", s, self.part[s][0]) for s in case.sites}
        self.seal_private = {s: self._private("seal-pair", s, self.part[s][2]) for s in case.sites}
        self.mask_public = {s: x25519(self.mask_private[s], BASE) for s in case.sites}
        self.seal_public = {s: x25519(self.seal_private[s], BASE) for s in case.sites}
        self.commitment = {
            s: digest(framed("commitment", *self.where, s, self.part[s][1])) for s in case.sites
        }
        self.digest = self._digest()

    def _private(self, purpose: str, site: str, seed: bytes) -> bytes:
        return hkdf(seed, framed(purpose, *self.where, site), 32)

    def _digest(self) -> bytes:
        case, fields = self.case, list[bytes | str]()
        for s in case.sites:
            fields += [s, self.mask_public[s], self.seal_public[s], self.commitment[s]]
        agreed = (case.threshold, case.quorum, case.degree or 0, case.seed)
        return digest(framed("session", *self.where, *agreed, *fields))

    def holders(self, owner: str) -> str:
        if self.case.degree is None:
            return self.case.sites
        order = framed("circle", self.digest)
        circle = "".join(sorted(self.case.sites, key=lambda s: digest(order + s.encode())))
        half = self.case.degree // 2
        middle = circle.index(owner) + len(circle)
        return (circle * 3)[middle - half : middle + half + 1]

    def shares(self, owner: str) -> dict[str, list[int]]:
        """(of the mask's seed, of the own seed), by holder."""
        count = self.case.threshold - 1
        info = framed("coefficients", *self.where, self.digest, owner)
        stream = keystream(hkdf(self.part[owner][3], info, 16), 66 * count)
        drawn = [int.from_bytes(stream[33 * at : 33 * at + 33], "big") for at in range(2 * count)]
        both = []
        for secret, row in zip(self.part[owner][:2], (drawn[:count], drawn[count:]), strict=True):
            terms = [int.from_bytes(secret, "big"), *row]
            points = range(1, len(self.holders(owner)) + 1)
            both.append([sum(c * x**at for at, c in enumerate(terms)) % P for x in points])
        return {s: [both[0][at], both[1][at]] for at, s in enumerate(self.holders(owner))}

    def sealed(self, sender: str, receiver: str) -> bytes:
        shared = x25519(self.seal_private[sender], self.seal_public[receiver])
        keys = self.seal_public[sender], self.seal_public[receiver]
        info = framed("seal", *self.where, self.digest, sender, receiver, *keys)
        text = b"".join(one.to_bytes(17, "big") for one in self.shares(sender)[receiver])
        about = framed("shares", *self.where, sender, receiver)
        return gcm(hkdf(shared, info, 32), bytes(12), text, about)

    def own_mask(self, site: str) -> Words:
        info = framed("own-mask", *self.where, self.digest, site)
        return words_of(keystream(hkdf(self.part[site][1], info, 16), 4 * self.case.size))

    def pair_mask(self, site: str, peer: str) -> Words:
        """As `site` adds it."""
        first, second = sorted((site, peer))
        keys = self.mask_public[first], self.mask_public[second]
        info = framed("pair-mask", *self.where, self.digest, first, second, *keys)
        shared = x25519(self.mask_private[site], self.mask_public[peer])
        words = words_of(keystream(hkdf(shared, info, 16), 4 * self.case.size))
        return words if site == first else [-word % 2**32 for word in words]

    def masked(self, site: str) -> Words:
        peers = [s for s in self.holders(site) if s != site and s in self.case.present(2)]
        rows = [self.case.vector(site), self.own_mask(site)]
        return added(rows + [self.pair_mask(site, peer) for peer in peers])

    def answer(self, site: str) -> dict[str, bytes]:
        """One share of every owner among those who shared."""
        owners = [s for s in self.case.present(2) if site in self.holders(s)]
        return {
            s: self.shares(s)[site][s in self.case.present(3)].to_bytes(17, "big") for s in owners
        }

    def total(self) -> Words:
        """The sum of what survivors sent, less their own masks and the pairs of the dropped."""
        survivors, rows = self.case.present(3), []
        for site in survivors:
            rows.append(self.masked(site))
            rows.append([-word % 2**32 for word in self.own_mask(site)])
        for gone in set(self.case.present(2)) - set(survivors):
            rows += [self.pair_mask(gone, s) for s in self.holders(gone) if s in survivors]
        return added(rows)

    def said(self) -> Iterator[tuple[str, bytes]]:
        case = self.case
        for site in case.sites:
            yield f"{site} mask key", self.mask_public[site]
            yield f"{site} seal key", self.seal_public[site]
            yield f"{site} commitment", self.commitment[site]
        yield "session", self.digest
        for site in case.present(2):
            for peer in sorted(set(self.holders(site)) - {site}):
                yield f"{site} to {peer}", self.sealed(site, peer)
        for site in case.present(3):
            yield f"{site} masked", raw_of(self.masked(site))
        for site in case.present(4):
            for owner, share in self.answer(site).items():
                yield f"{site} answers for {owner}", share
        yield "sum", raw_of(self.total())


def added(rows: list[Words]) -> Words:
    return [sum(column) % 2**32 for column in zip(*rows, strict=True)]


def plain_said(case: Case) -> Said:
    return {f"{case.name}: {what}": raw.hex() for what, raw in Plain(case).said()}


def read_vectors() -> Said:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" = ") for line in lines if not line.startswith("#"))


def main() -> None:
    lines = ["# All that is said in two secure sums. Made by: python -m tests.secagg.plain_round"]
    for case in CASES:
        lines += [f"{what} = {raw}" for what, raw in plain_said(case).items()]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
