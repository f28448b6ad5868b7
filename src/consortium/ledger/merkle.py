"""The Merkle tree of RFC 6962, section 2: roots, inclusion and consistency proofs.

A tree is seen through `Hashes`: the hash of any complete, aligned subtree. Where those
come from (a database, memory, a list in a test) is somebody else's affair; with them a
root or a proof costs the logarithm of the tree's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from consortium.errors import ProofError

# The hash of the complete subtree of 2**level leaves that starts at leaf index * 2**level.
Hashes = Callable[[int, int], bytes]

_LEAF, _NODE = b"\x00", b"\x01"
EMPTY_ROOT = sha256(b"").digest()


def leaf_hash(record: bytes) -> bytes:
    """The hash of one log record as a leaf of the Merkle tree."""
    return sha256(_LEAF + record).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees; it can never be mistaken for a leaf's."""
    return sha256(_NODE + left + right).digest()


def fold(hashes: Sequence[bytes]) -> bytes:
    """The hash of a complete subtree from the hashes one or more levels below it."""
    level = list(hashes)
    while len(level) > 1:
        level = [node_hash(level[at], level[at + 1]) for at in range(0, len(level), 2)]
    return level[0]


def root(size: int, hashes: Hashes) -> bytes:
    """The root of the first `size` leaves."""
    return _span(0, size, hashes) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, hashes: Hashes) -> tuple[bytes, ...]:
    """PATH(index, D[size]): what a holder of leaf `index` needs to reach the root."""
    if not 0 <= index < size:
        raise ProofError(f"leaf {index} is not in a tree of {size}")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(_span(middle, end, hashes))
            end = middle
        else:
            path.append(_span(start, middle, hashes))
            start = middle
    return tuple(reversed(path))


def consistency_proof(old: int, new: int, hashes: Hashes) -> tuple[bytes, ...]:
    """PROOF(old, D[new]): that the first `old` leaves are still the first `old` leaves."""
    if not 0 < old <= new:
        raise ProofError(f"no consistency proof from {old} to {new}")
    path: list[bytes] = []
    start, end = 0, new
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(_span(middle, end, hashes))
            end = middle
        else:
            path.append(_span(start, middle, hashes))
            start = middle
    if start > 0:
        path.append(_span(start, end, hashes))
    return tuple(reversed(path))


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected_root: bytes
) -> None:
    """Returns when `leaf` is at `index` of the tree with that root; raises otherwise.

    The algorithm of RFC 9162, section 2.1.3.2.
    """
    if not 0 <= index < size:
        raise ProofError(f"leaf {index} is not in a tree of {size}")
    node, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise ProofError("the inclusion proof is too long")
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    if last != 0 or found != expected_root:
        raise ProofError("the inclusion proof does not lead to the root")


def verify_consistency(
    old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]
) -> None:
    """Returns when the tree of `new` leaves begins with that of `old`; raises otherwise.

    The algorithm of RFC 9162, section 2.1.4.2.
    """
    if not 0 < old <= new:
        raise ProofError(f"no consistency proof from {old} to {new}")
    if old == new:
        if proof or old_root != new_root:
            raise ProofError("two trees of one size have two roots")
        return
    path = list(proof)
    if old & (old - 1) == 0:
        path.insert(0, old_root)
    if not path:
        raise ProofError("the consistency proof is empty")
    node, last = old - 1, new - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    first = second = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise ProofError("the consistency proof is too long")
        if node & 1 or node == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        node, last = node >> 1, last >> 1
    if last != 0 or first != old_root or second != new_root:
        raise ProofError("the consistency proof does not lead to both roots")


def _span(start: int, end: int, hashes: Hashes) -> bytes:
    """The hash of leaves [start, end), where start is a multiple of the size's ceiling power:
    complete subtrees from left to right, joined from the right."""
    parts = []
    while start < end:
        size = end - start
        level = size.bit_length() - 1
        parts.append(hashes(level, start >> level))
        start += 1 << level
    found = parts.pop()
    while parts:
        found = node_hash(parts.pop(), found)
    return found


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)
