"""The codec: one encoding per fact, for ever, and nothing else is read."""

from __future__ import annotations

import math
import struct
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consortium.core import codec
from consortium.core import facts as f
from consortium.core import site_facts as s
from consortium.core.codec import decode, encode, kinds_in, site_kinds
from consortium.core.ids import Digest, Seat, Secret
from consortium.core.terms import Condition
from consortium.errors import CodecError

from .fact_text import (
    ACCOUNT_FACTS,
    EVERY_FACT,
    FACTS,
    SITE_FACTS,
    any_fact,
    from_text,
    read,
    to_text,
)
from .small import TERMS, digest

# Records are small: many more than the profile asks for.
MANY = settings(max_examples=6 * settings.default.max_examples, deadline=None)
VECTORS = Path(__file__).parent / "vectors" / "facts.txt"


def _vectors() -> list[tuple[str, str, str]]:
    lines = [line for line in VECTORS.read_text().splitlines() if line and line[0] != "#"]
    return list(zip(lines[::3], lines[1::3], lines[2::3], strict=True))


# ---- known answers ------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text", "record"), _vectors(), ids=lambda value: value[:24])
def test_known_fact_has_its_known_bytes_in_both_directions(
    name: str, text: str, record: str
) -> None:
    fact = from_text(EVERY_FACT[name], text)
    assert encode(fact).hex() == record
    assert read(bytes.fromhex(record)) == fact
    assert to_text(read(bytes.fromhex(record))) == text


def test_every_kind_of_fact_has_a_vector() -> None:
    assert [name for name, _, _ in _vectors()] == list(EVERY_FACT)


def test_bytes_worked_out_by_hand() -> None:
    # kind 27; round 300 = 0b10_0101100; two runs: gap 1, length 3; gap 3, length 1; time 5
    closed = f.RoundClosed(300, (Seat(1), Seat(2), Seat(3), Seat(7)), 5)
    assert encode(closed) == bytes([27, 0xAC, 0x02, 2, 1, 3, 3, 1, 5])


def test_sites_own_facts_are_read_with_their_own_table() -> None:
    settled = s.RoundSettled(3, True, 5)
    assert decode(encode(settled), site_kinds) == settled
    with pytest.raises(CodecError):
        decode(encode(settled))


def test_kind_numbers_are_unique_and_tell_the_two_logs_apart() -> None:
    kinds = [cls.KIND for cls in EVERY_FACT.values()]
    assert len(set(kinds)) == len(kinds)
    assert max(cls.KIND for cls in FACTS) < 96  # 96–127 are kept
    assert {cls.KIND for cls in ACCOUNT_FACTS} <= set(range(64, 72))
    assert min(cls.KIND for cls in SITE_FACTS) == 128


def test_site_fact_is_not_read_as_a_coordinators() -> None:
    record = bytes.fromhex(next(row[2] for row in _vectors() if row[0] == "SiteHeld"))
    with pytest.raises(CodecError, match="unknown fact kind 130"):
        decode(record)


def test_two_facts_of_one_kind_are_noticed() -> None:
    with pytest.raises(CodecError, match="same kind"):
        kinds_in(f.RoundClosed, f.RoundClosed)


# ---- properties ---------------------------------------------------------------------


@given(any_fact())
@MANY
def test_every_fact_comes_back_as_it_was(fact: Any) -> None:
    record = encode(fact)
    again = read(record)
    assert again == fact and type(again) is type(fact)
    assert encode(again) == record


def _damaged(record: bytes, how: str, at: int, value: int) -> bytes:
    at %= len(record)
    match how:
        case "change":
            return record[:at] + bytes([value]) + record[at + 1 :]
        case "insert":
            return record[:at] + bytes([value]) + record[at:]
        case "remove":
            return record[:at] + record[at + 1 :]
        case "truncate":
            return record[:at]
        case _:
            return record + bytes([value]) * (at + 1)


@given(
    any_fact(),
    st.lists(
        st.tuples(
            st.sampled_from(["change", "insert", "remove", "truncate", "extend"]),
            st.integers(0, 400),
            st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF]) | st.integers(0, 255),
        ),
        min_size=1,
        max_size=3,
    ),
)
@MANY
def test_damaged_record_is_refused_or_canonical(
    fact: Any, damage: list[tuple[str, int, int]]
) -> None:
    record = encode(fact)
    for how, at, value in damage:
        record = _damaged(record, how, at, value) or b"\0"
    _refused_or_canonical(record)


@given(st.sampled_from(list(EVERY_FACT.values())), st.binary(max_size=120))
@MANY
def test_random_bytes_are_refused_or_canonical(cls: type[Any], tail: bytes) -> None:
    head = bytes([cls.KIND]) if cls.KIND < 128 else bytes([cls.KIND & 0x7F | 0x80, 1])
    _refused_or_canonical(head + tail)


def _refused_or_canonical(record: bytes) -> None:
    try:
        fact = read(record)
    except CodecError:
        return
    assert encode(fact) == record


def test_every_truncation_of_every_vector_is_refused() -> None:
    for _, _, text in _vectors():
        record = bytes.fromhex(text)
        for end in range(len(record)):
            with pytest.raises(CodecError):
                read(record[:end])


@pytest.mark.parametrize(
    "record",
    [
        bytes([27, 1, 0x80, 0x80, 0x80, 0x80, 0x10]),  # 2³² runs of seats
        bytes([27, 1, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x10, 5]),  # one run of 2³² seats
        bytes([6, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]),  # 2³² reported things
        bytes([1, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]),  # a text of 4 GiB
    ],
)
def test_small_record_that_claims_much_costs_no_memory(record: bytes) -> None:
    codec.fact_kinds()
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode(record)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# ---- what is not read ---------------------------------------------------------------

HELD = f.FederationHeld.KIND
CLOSED = f.RoundClosed.KIND
FINISHED = f.FederationFinished.KIND
TRAINED = f.CohortTrained.KIND


def _trained(weight: bytes) -> bytes:
    return bytes([TRAINED, 1, 1, 1, 1]) + weight + bytes(32) + bytes([5])


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"", "ends in the middle"),
        (bytes([0]), "unknown fact kind 0"),
        (bytes([0x7F, 5]), "unknown fact kind 127"),
        (bytes([HELD, 5, 0]), "1 bytes follow the FederationHeld"),
        (bytes([0x80 | HELD, 0, 5]), "shortest form"),
        (bytes([HELD, 0x85, 0x00]), "shortest form"),
        (bytes([HELD, 0x85]), "ends in the middle"),
        (bytes([HELD, *[0xFF] * 8, 0xFF, 0x01]), "too large"),  # 2⁶⁴ − 1
        (bytes([HELD, *[0x80] * 9, 0x01]), "too large"),  # 2⁶³
        (bytes([HELD, *[0x80] * 10, 0x01]), "too long"),
        (bytes([FINISHED, 0, 5]), "unknown Finish 0"),
        (bytes([FINISHED, 99, 5]), "unknown Finish 99"),
        (bytes([CLOSED, 1, 1, 0, 1, 5]), "shortest form"),  # seat 0, or two runs that touch
        (bytes([CLOSED, 1, 2, 1, 1, 0, 1, 5]), "shortest form"),
        (bytes([CLOSED, 1, 1, 1, 0, 5]), "shortest form"),  # an empty run
        (_trained(struct.pack(">d", math.nan)), "not finite"),
        (_trained(struct.pack(">d", math.inf)), "not finite"),
        (_trained(struct.pack(">d", -0.0)), "negative zero"),
        (_trained(struct.pack(">d", 1.0))[:20], "ends in the middle"),
        (bytes([1, 1, 0xFF, 5]), "not UTF-8"),
        (bytes([1, 2, 0xC0, 0x80, 5]), "not UTF-8"),  # an overlong NUL
        (bytes([1, 0x81, 0x08]) + bytes(1025) + bytes([5]), "too long"),
        (bytes([6, 1, 1, 1, 97, 4, 0, 5]), "unknown type tag 4"),
        (bytes([6, 1, 1, 1, 97, 0, 2, 5]), "neither 0 nor 1"),
        (bytes([22, 1, 1, 2, 0, 5]), "neither 0 nor 1"),  # an optional that is half there
        (bytes([6, 1, 9, 1, 97, 0, 1, 5]), "claims more items"),
    ],
)
def test_record_that_no_encoder_wrote_is_refused(record: bytes, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        decode(record)


def test_list_of_too_many_items_is_refused_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = f.Judged(1, f.Outcome.KEPT, 1, (1.0, 2.0, 3.0), (), False, 5)
    seats = f.RoundClosed(1, (Seat(1), Seat(2), Seat(3)), 5)
    records = [encode(judged), encode(seats)]
    monkeypatch.setattr(codec, "MAX_ITEMS", 2)
    for fact, record in zip((judged, seats), records, strict=True):
        with pytest.raises(CodecError, match="too long"):
            encode(fact)
        with pytest.raises(CodecError, match="too many"):
            decode(record)


# ---- what is not written ------------------------------------------------------------


class Text(str):
    """A text that could encode itself as it likes."""


TRAINED_FACT = f.CohortTrained(1, (Seat(1), Seat(2)), 1.0, digest("p"), 5)
REPORT = f.SiteReported(Seat(1), (("memory_gb", 16),), 5)
SECRET = Secret(b"a noise seed")


@pytest.mark.parametrize(
    "fact",
    [
        f.FederationHeld(-1),
        f.FederationHeld(2**63),
        f.FederationHeld(True),
        f.FederationHeld(5.0),  # type: ignore[arg-type]
        f.FederationHeld(f.Finish.STOPPED),
        f.FederationHeld(None),  # type: ignore[arg-type]
        f.FederationFinished(4, 5),  # type: ignore[arg-type]
        f.FederationFinished(f.Fault.FORMAT, 5),  # type: ignore[arg-type]
        f.FederationFounded(Text("f"), 5),
        f.FederationFounded(b"f", 5),  # type: ignore[arg-type]
        f.FederationFounded("x" * 1025, 5),
        f.FederationFounded("\ud800", 5),
        f.SelectionStarted(1, bytearray(32), 5),
        f.SelectionStarted(1, bytes(1025), 5),
        replace(TRAINED_FACT, weight=math.nan),
        replace(TRAINED_FACT, weight=-math.inf),
        replace(TRAINED_FACT, weight=1),
        replace(TRAINED_FACT, weight=True),
        replace(TRAINED_FACT, partial=Digest(bytes(31))),
        replace(TRAINED_FACT, partial=Digest("x" * 32)),  # type: ignore[arg-type]
        replace(TRAINED_FACT, seats=(2, 1)),
        replace(TRAINED_FACT, seats=(1, 1)),
        replace(TRAINED_FACT, seats=(0, 1)),
        replace(TRAINED_FACT, seats=(-3,)),
        replace(TRAINED_FACT, seats=(True, 2)),
        replace(TRAINED_FACT, seats=(1, 2.0)),
        replace(TRAINED_FACT, seats=[1, 2]),
        replace(TRAINED_FACT, seats=(2**63,)),
        replace(REPORT, report=[("memory_gb", 16)]),
        replace(REPORT, report=(("memory_gb",),)),
        replace(REPORT, report=(["memory_gb", 16],)),
        replace(REPORT, report=(("memory_gb", 2**62),)),
        replace(REPORT, report=(("memory_gb", -(2**62) - 1),)),
        replace(REPORT, report=(("memory_gb", math.nan),)),
        replace(REPORT, report=(("memory_gb", None),)),
        replace(REPORT, report=(("memory_gb", Text("x")),)),
        f.PlanAdopted(digest("p"), digest("t"), digest("l"), "terms", 5),  # type: ignore[arg-type]
        f.PlanAdopted(digest("p"), digest("t"), digest("l"), replace(TERMS, patience=-1), 5),
        f.PlanAdopted(digest("p"), digest("t"), digest("l"), replace(TERMS, conditions=("x",)), 5),
    ],
    ids=lambda fact: repr(fact)[:60],
)
def test_value_of_the_wrong_kind_is_not_written(fact: Any) -> None:
    with pytest.raises(CodecError):
        encode(fact)


def test_negative_zero_is_written_as_zero() -> None:
    assert encode(replace(TRAINED_FACT, weight=-0.0)) == encode(replace(TRAINED_FACT, weight=0.0))


@pytest.mark.parametrize(
    "fact",
    [
        f.FederationHeld(SECRET),  # type: ignore[arg-type]
        f.FederationFounded(SECRET, 5),  # type: ignore[arg-type]
        f.FederationFinished(SECRET, 5),  # type: ignore[arg-type]
        f.SelectionStarted(1, SECRET, 5),  # type: ignore[arg-type]
        f.UpdateReceived(1, Seat(1), digest("u"), SECRET, 5),  # type: ignore[arg-type]
        f.Judged(1, f.Outcome.KEPT, 1, (SECRET,), (), False, 5),  # type: ignore[arg-type]
        f.Judged(1, f.Outcome.KEPT, 1, (), (), SECRET, 5),  # type: ignore[arg-type]
        replace(TRAINED_FACT, seats=(SECRET,)),
        replace(TRAINED_FACT, seats=SECRET),
        replace(TRAINED_FACT, weight=SECRET),
        replace(TRAINED_FACT, partial=SECRET),
        replace(REPORT, report=(("memory_gb", SECRET),)),
        replace(REPORT, report=((SECRET, 1),)),
        replace(REPORT, report=SECRET),
        f.PlanAdopted(digest("p"), digest("t"), digest("l"), SECRET, 5),  # type: ignore[arg-type]
        SECRET,
    ],
    ids=lambda fact: repr(fact)[:60],
)
def test_secret_is_never_written_and_never_shown(fact: Any) -> None:
    with pytest.raises(CodecError) as refusal:
        encode(fact)
    assert "noise" not in str(refusal.value)


def test_secret_hides_its_value_until_asked() -> None:
    assert repr(SECRET) == "Secret(…)" == str(SECRET)
    assert SECRET.reveal() == b"a noise seed"


@dataclass(frozen=True)
class Leaky:
    KIND = 99
    seed: Secret


@dataclass(frozen=True)
class DeeplyLeaky:
    KIND = 99
    seeds: tuple[tuple[int, Secret | None], ...]


@dataclass(frozen=True)
class Anything:
    KIND = 99
    bag: dict[str, int]


@dataclass(frozen=True)
class Either:
    KIND = 99
    value: int | str


@dataclass(frozen=True)
class Plain:
    """A dataclass, but no fact."""

    value: int


@pytest.mark.parametrize("cls", [Leaky, DeeplyLeaky, Anything, Either])
def test_class_with_a_field_that_has_no_encoding_is_no_fact(cls: type[Any]) -> None:
    with pytest.raises(CodecError, match=f"{cls.__name__}.*cannot be part of a fact"):
        encode(cls(None))
    with pytest.raises(CodecError, match="cannot be part of a fact"):
        decode(bytes([99, 1]), lambda: {99: cls})


@pytest.mark.parametrize("value", [Plain(1), 5, None, TERMS, Condition])
def test_what_is_no_fact_is_refused(value: Any) -> None:
    with pytest.raises(CodecError, match="not a fact"):
        encode(value)
