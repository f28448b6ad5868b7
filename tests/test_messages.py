"""Bodies are read strictly: one meaning, no coercion, nothing without end."""

from __future__ import annotations

import json

import pytest

from consortium.errors import WireError
from consortium.wire.messages import (
    MAX_DEPTH,
    MAX_JSON_BYTES,
    Ask,
    Enrol,
    Invite,
    Message,
    NewToken,
    Report,
    ScoreNote,
    read_body,
)

HEX = "0" * 64
ASK = '{"seen_size":%s,"own_size":0}'


class Anything(Message):
    inside: object


def test_what_is_said_is_read() -> None:
    assert read_body(Ask, b'{"seen_size":1,"own_size":2}') == Ask(seen_size=1, own_size=2)
    told = read_body(Report, b'{"report":{"a":true,"b":1,"c":1.0,"d":"x"}}').report
    assert told == {"a": True, "b": 1, "c": 1.0, "d": "x"}
    assert [type(value) for value in told.values()] == [bool, int, float, str]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_none_are_refused_everywhere(number: str) -> None:
    score = f'{{"model":"{HEX}","samples":1,"candidate":[{number}],"base":[1.0]}}'
    bodies = {Report: f'{{"report":{{"a":{number}}}}}', ScoreNote: score, Ask: ASK % number}
    for kind, body in bodies.items():
        with pytest.raises(WireError):
            read_body(kind, body.encode())
    with pytest.raises(WireError):
        read_body(Anything, f'{{"inside":{number}}}'.encode())


@pytest.mark.parametrize("value", ['"1"', "1.0", "true", "null", "[]", "{}", "-1", str(1 << 62)])
def test_nothing_is_made_into_a_count(value: str) -> None:
    with pytest.raises(WireError):
        read_body(Ask, (ASK % value).encode())


@pytest.mark.parametrize(
    "value", ["1", "true", "null", '["a"]', '"a\\n"', '"a b"', '""', '"\\ud800"']
)
def test_nothing_is_made_into_a_name(value: str) -> None:
    with pytest.raises(WireError):
        read_body(Invite, f'{{"name":{value}}}'.encode())


@pytest.mark.parametrize(
    "body",
    [
        '{"name":"a","name":"a"}',
        '{"name":"a","nam\\u0065":"b"}',
        '{"name":"a","more":1}',
        '{"Name":"a"}',
        '["a"]',
        '"a"',
        "",
        "{",
        '{"name":"a"}{}',
        '{"name":"a",}',
        "{'name':'a'}",
        '{"name":"a"} // and so on',
        '﻿{"name":"a"}',
    ],
)
def test_what_is_not_exactly_one_message_is_refused(body: str) -> None:
    with pytest.raises(WireError):
        read_body(Invite, body.encode())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_only_utf_8_is_read(encoding: str) -> None:
    with pytest.raises(WireError):
        read_body(Report, '{"report":{"a":"ü"}}'.encode(encoding))
    assert read_body(Report, '{"report":{"a":"ü"}}'.encode()).report == {"a": "ü"}


def test_key_that_stands_twice_inside_is_refused_too() -> None:
    with pytest.raises(WireError):
        read_body(Report, b'{"report":{"a":1,"a":1}}')


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 500, 100_000])
def test_nesting_has_an_end(depth: int) -> None:
    """The object itself is one level."""
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        inner = opened * (depth - 1) + "1" + closed * (depth - 1)
        body = f'{{"inside":{inner}}}'.encode()
        if depth <= MAX_DEPTH:
            assert read_body(Anything, body)
        else:
            with pytest.raises(WireError):
                read_body(Anything, body)


def test_length_has_an_end() -> None:
    with pytest.raises(WireError):
        read_body(Report, b" " * MAX_JSON_BYTES + b'{"report":{}}')
    with pytest.raises(WireError):
        read_body(Report, b'{"report":{"a":' + b"9" * 5000 + b"}}")


@pytest.mark.parametrize("federation", ["f" * 31, "f" * 33, "F" * 32, "g" * 32, "../" + "f" * 29])
def test_ids_have_one_form(federation: str) -> None:
    body = {"federation": federation, "name": "a", "secret": "A" * 27, "certificate_request": ""}
    with pytest.raises(WireError):
        read_body(Enrol, json.dumps(body).encode())


@pytest.mark.parametrize("label", ["", "a b", "a/b", "a.b", "a" * 65, "ü", "a\n"])
def test_labels_have_one_form(label: str) -> None:
    body = {"label": label, "role": "lead", "everywhere": True}
    with pytest.raises(WireError):
        read_body(NewToken, json.dumps(body).encode())


def test_refusal_does_not_repeat_what_was_sent() -> None:
    with pytest.raises(WireError) as refused:
        read_body(Invite, b'{"name":"a patient\'s name!"}')
    assert "patient" not in refused.value.message
