"""The Merkle tree: published vectors, a plain reference, and proofs that must fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.errors import ProofError
from consortium.ledger.merkle import (
    EMPTY_ROOT,
    consistency_proof,
    fold,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root,
    verify_consistency,
    verify_inclusion,
)
from consortium.ledger.tree import Tree
from consortium.store.memory import MemoryCache, MemoryLog

# The tree of the Certificate Transparency test suite (RFC 6962 reference implementation).
INPUTS = [
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = {
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
CONSISTENCY = {
    (1, 1): [],
    (1, 8): INCLUSION[0, 8],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
LEAVES = [leaf_hash(bytes.fromhex(text)) for text in INPUTS]


def hashes(level: int, index: int) -> bytes:
    return fold(LEAVES[index << level : (index + 1) << level])


def plain_root(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, word for word."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(plain_root(leaves[:split]), plain_root(leaves[split:]))


def test_published_roots() -> None:
    assert root(0, hashes) == EMPTY_ROOT
    assert [root(size, hashes).hex() for size in range(1, 9)] == ROOTS


@pytest.mark.parametrize(("case", "expected"), INCLUSION.items())
def test_published_inclusion_proofs(case: tuple[int, int], expected: list[str]) -> None:
    assert [part.hex() for part in inclusion_proof(*case, hashes)] == expected


@pytest.mark.parametrize(("case", "expected"), CONSISTENCY.items())
def test_published_consistency_proofs(case: tuple[int, int], expected: list[str]) -> None:
    assert [part.hex() for part in consistency_proof(*case, hashes)] == expected


def tree_of(size: int) -> tuple[Tree, list[bytes]]:
    log = MemoryLog()
    records = [b"record %d" % number for number in range(size)]
    log.append("s", 0, records)
    return Tree(log, "s", MemoryCache()), [leaf_hash(record) for record in records]


@given(st.integers(1, 700), st.data())
def test_the_tree_agrees_with_the_plain_definition(size: int, data: st.DataObject) -> None:
    tree, leaves = tree_of(size)
    assert tree.root(size) == plain_root(leaves)
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    verify_inclusion(leaves[index], index, size, tree.inclusion_proof(index, size), tree.root(size))
    proof = tree.consistency_proof(old, size)
    verify_consistency(old, plain_root(leaves[:old]), size, tree.root(size), proof)


def test_tiles_over_tiles_agree_with_the_plain_definition() -> None:
    size = 66_000  # more than 256 × 256: three levels of tiles
    tree, leaves = tree_of(size)
    expected = plain_root(leaves)
    assert tree.root(size) == expected
    assert tree.root(size) == expected  # from the cache
    verify_inclusion(leaves[65_537], 65_537, size, tree.inclusion_proof(65_537, size), expected)


@given(st.integers(2, 40), st.data())
def test_a_changed_inclusion_proof_fails(size: int, data: st.DataObject) -> None:
    tree, leaves = tree_of(size)
    index = data.draw(st.integers(0, size - 1))
    proof, expected = tree.inclusion_proof(index, size), tree.root(size)
    broken = _broken(list(proof), data)
    other = data.draw(st.integers(0, size - 1).filter(lambda number: number != index))
    for leaf, at, path, top in (
        (leaves[index], index, broken, expected),
        (leaves[other], index, proof, expected),
        (leaves[index], other, proof, expected),
        (leaves[index], index, proof, EMPTY_ROOT),
        (leaves[index], index, (*proof, EMPTY_ROOT), expected),
        (leaves[index], index, proof[:-1], expected),
    ):
        with pytest.raises(ProofError):
            verify_inclusion(leaf, at, size, path, top)


@given(st.integers(2, 40), st.data())
def test_a_changed_consistency_proof_fails(new: int, data: st.DataObject) -> None:
    tree, _ = tree_of(new)
    old = data.draw(st.integers(1, new - 1))
    proof = list(tree.consistency_proof(old, new))
    for old_root, new_root, path in (
        (tree.root(old), tree.root(new), _broken(proof, data)),
        (EMPTY_ROOT, tree.root(new), proof),
        (tree.root(old), EMPTY_ROOT, proof),
        (tree.root(old), tree.root(new), [*proof, EMPTY_ROOT]),
        (tree.root(old), tree.root(new), proof[:-1]),
    ):
        with pytest.raises(ProofError):
            verify_consistency(old, old_root, new, new_root, path)


def _broken(proof: list[bytes], data: st.DataObject) -> list[bytes]:
    at = data.draw(st.integers(0, len(proof) - 1))
    flipped = bytes([proof[at][0] ^ 1]) + proof[at][1:]
    return [*proof[:at], flipped, *proof[at + 1 :]]


def test_proofs_outside_the_tree_are_refused() -> None:
    for call in (
        lambda: inclusion_proof(8, 8, hashes),
        lambda: inclusion_proof(-1, 8, hashes),
        lambda: consistency_proof(0, 8, hashes),
        lambda: consistency_proof(9, 8, hashes),
        lambda: verify_inclusion(LEAVES[0], 8, 8, (), EMPTY_ROOT),
        lambda: verify_consistency(0, EMPTY_ROOT, 8, EMPTY_ROOT, ()),
        lambda: verify_consistency(3, EMPTY_ROOT, 3, LEAVES[0], ()),
        lambda: verify_consistency(3, EMPTY_ROOT, 3, EMPTY_ROOT, (EMPTY_ROOT,)),
        lambda: verify_consistency(3, EMPTY_ROOT, 8, EMPTY_ROOT, ()),
    ):
        with pytest.raises(ProofError):
            call()
    verify_consistency(3, EMPTY_ROOT, 3, EMPTY_ROOT, ())
