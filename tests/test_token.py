"""The line that a site pastes, and the words that are compared by phone."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from hashlib import sha256
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.errors import BadTokenError
from consortium.wire.token import JoinToken, is_site_name, new_secret, read_token, token_hash
from consortium.wire.words import WORDS, words_of

SECRET = base64.urlsafe_b64encode(bytes(range(20))).decode().rstrip("=")
TOKEN = JoinToken("https://fed.example.org:8443", "ab" * 32, "5f0e" * 8, "charite", SECRET)
TEXT = (
    "cj1.eyJhIjoiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYm"
    "FiYWJhYiIsImYiOiI1ZjBlNWYwZTVmMGU1ZjBlNWYwZTVmMGU1ZjBlNWYwZSIsIm4iOiJjaGFyaXRlIiwicyI6IkFB"
    "RUNBd1FGQmdjSUNRb0xEQTBPRHhBUkVoTSIsInUiOiJodHRwczovL2ZlZC5leGFtcGxlLm9yZzo4NDQzIn0"
)


def packed(values: Any, *, text: str | None = None) -> str:
    raw = text if text is not None else json.dumps(values, sort_keys=True, separators=(",", ":"))
    return "cj1." + base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")


VALUES = {
    "a": TOKEN.authority,
    "f": TOKEN.federation,
    "n": TOKEN.name,
    "s": SECRET,
    "u": TOKEN.url,
}


def test_token_is_this_text_for_ever() -> None:
    assert TOKEN.text() == TEXT == packed(VALUES)
    assert read_token(TEXT) == TOKEN


def test_line_breaks_of_a_mail_program_do_no_harm() -> None:
    assert read_token(f"  {TEXT[:70]}\r\n  {TEXT[70:]}\n") == TOKEN


def test_secret_does_not_show_itself() -> None:
    assert SECRET not in repr(TOKEN)


def test_secrets_have_160_bits_and_differ() -> None:
    drawn = {new_secret() for _ in range(100)}
    assert len(drawn) == 100
    assert {len(base64.urlsafe_b64decode(secret + "=")) for secret in drawn} == {20}


def test_hash_has_its_context() -> None:
    assert token_hash("x") == sha256(b"consortium/join/v1\0x").digest()


REFUSED = {
    "nothing": "",
    "another prefix": TEXT.replace("cj1.", "cj2."),
    "cut off": TEXT[:-1],
    "longer": TEXT + "A",
    "padded": TEXT + "=",
    "standard base64": packed(VALUES | {"n": "??>"}).replace("-", "+").replace("_", "/"),
    "not base64": "cj1.!!!!",
    "not ascii": "cj1.ääää",
    "not JSON": packed(None, text="{"),
    "not text": "cj1._w",
    "a list": packed([]),
    "deep": packed(None, text="[" * 3000),
    "too long": packed(VALUES | {"u": "https://" + "a" * 4000}),
    "another order": packed(None, text=json.dumps(dict(reversed(VALUES.items())))),
    "spaces inside": packed(None, text=json.dumps(VALUES, sort_keys=True)),
    "a key twice": packed(None, text=json.dumps(VALUES)[:-1] + ',"n":"charite"}'),
    "a key missing": packed({key: value for key, value in VALUES.items() if key != "n"}),
    "a key too many": packed(VALUES | {"x": "y"}),
    "a number": packed(VALUES | {"n": 1}),
    "http": packed(VALUES | {"u": "http://fed.example.org"}),
    "upper-case scheme": packed(VALUES | {"u": "HTTPS://fed.example.org"}),
    "no host": packed(VALUES | {"u": "https://:443"}),
    "a password": packed(VALUES | {"u": "https://a:b@fed.example.org"}),
    "a query": packed(VALUES | {"u": "https://fed.example.org/?a=b"}),
    "a fragment": packed(VALUES | {"u": "https://fed.example.org/#a"}),
    "a wrong port": packed(VALUES | {"u": "https://fed.example.org:99999"}),
    "port zero": packed(VALUES | {"u": "https://fed.example.org:0"}),
    "a broken address": packed(VALUES | {"u": "https://[::1"}),
    "a line break": packed(VALUES | {"u": "https://fed.example\n.org"}),
    "a long address": packed(VALUES | {"u": "https://" + "a" * 1100}),
    "a short authority": packed(VALUES | {"a": "ab" * 31}),
    "an upper-case authority": packed(VALUES | {"a": "AB" * 32}),
    "a strange federation": packed(VALUES | {"f": "../etc"}),
    "a strange name": packed(VALUES | {"n": "a.b.c"}),
    "a weak secret": packed(VALUES | {"s": SECRET[:20]}),
    "a huge secret": packed(VALUES | {"s": "A" * 100}),
    "a secret in another form": packed(VALUES | {"s": SECRET[:-1] + "N"}),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_token_is_refused(kind: str) -> None:
    with pytest.raises(BadTokenError) as caught:
        read_token(REFUSED[kind])
    assert caught.value.hint
    assert SECRET not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    "change", [{"url": "http://a"}, {"authority": ""}, {"name": ""}, {"secret": "AAAA"}]
)
def test_token_that_nobody_could_read_is_not_made(change: dict[str, str]) -> None:
    with pytest.raises(BadTokenError):
        replace(TOKEN, **change)


@given(st.integers(0, len(TEXT) - 1), st.characters(codec="utf-8"))
def test_one_changed_character_is_another_token_or_none(at: int, character: str) -> None:
    changed = TEXT[:at] + character + TEXT[at + 1 :]
    try:
        token = read_token(changed)
    except BadTokenError:
        return
    assert token.text() == changed
    assert (token == TOKEN) is (changed == TEXT)


@pytest.mark.parametrize("name", ["a", "charite", "Unit_3-b", "tenant.location", "a" * 64])
def test_names_of_sites(name: str) -> None:
    assert is_site_name(name)


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a.b.c", "a b", "a\n", "ä", "a" * 65])
def test_what_is_no_name_of_a_site(name: str) -> None:
    assert not is_site_name(name)


# ---- words --------------------------------------------------------------------------


def test_words_are_these_for_ever() -> None:
    assert words_of("ab" * 32, "5f0e" * 8, bytes(range(32))) == KNOWN_WORDS
    assert sha256(" ".join(WORDS).encode()).hexdigest() == LIST_DIGEST


KNOWN_WORDS = ("compass", "whisker", "muffin", "glove", "urban")
LIST_DIGEST = "7020bad5d6342e2b4e691ff621911fb649be0ab32efe7e90bbcaf4c17dc72186"


def test_words_differ_for_another_authority_federation_or_key() -> None:
    key = bytes(range(32))
    shown = {
        words_of("ab" * 32, "one", key),
        words_of("ac" * 32, "one", key),
        words_of("ab" * 32, "two", key),
        words_of("ab" * 32, "one", key[::-1]),
        words_of("ab" * 32 + "o", "ne", key),
    }
    assert len(shown) == 5
    assert {len(words) for words in shown} == {5}


def test_list_has_a_word_for_each_byte() -> None:
    assert len(set(WORDS)) == 256
    assert all(re.fullmatch("[a-z]{4,8}", word) for word in WORDS)
    assert len({word[:3] for word in WORDS}) == 256


def test_no_two_words_are_close_to_each_other() -> None:
    assert not [pair for pair in combinations(WORDS, 2) if distance(*pair) <= 2]
    close = [distance("river", word) for word in ("rivers", "raver", "rive", "robin")]
    assert close == [1, 1, 1, 4]


def test_no_word_sounds_like_another() -> None:
    """English words that have a homophone and would otherwise tempt whoever edits the list."""
    treacherous = (
        "ceiling cedar coral cousin cymbal desert gorilla kernel knight lumber medal metal morning "
        "moose muscle mussel mustard panda pigeon profit quartz sleigh"
    )
    assert not set(treacherous.split()) & set(WORDS)


def distance(left: str, right: str) -> int:
    """Levenshtein's."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        above, row = row, [i]
        for j, b in enumerate(right, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
    return row[-1]
