"""Requests that a hostile peer may send, and what each is told: one table.

Each is sent from an address of its own while a round is open to the site that sends it. What a
peer does wrong is 4xx with a code, or the line is hung up (status 0); never 5xx. Requests that
are odd and allowed are here too, with 200.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from consortium.testing.hostile_keys import (
    NON_CANONICAL,
    OF_NO_ORDER,
    altered_request,
    another_kind,
    authority_request,
    forged_request,
)
from consortium.testing.hostile_ways import (
    ASKING,
    SENT,
    HostileRequest,
    anothers_certificate,
    append_to_anothers,
    as_anybody,
    ask,
    chunk,
    chunk_in_pieces,
    enrol,
    enrol_with,
    get,
    header_twice,
    long_chunk,
    no_certificate,
    of_another,
    old_token,
    order,
    raw,
    replaced_token,
    say,
    short_chunk,
    smuggled,
    submission,
    submit_anothers,
    unknown_token,
    used_token,
    with_foreign_certificate,
)
from consortium.wire.messages import MAX_CHUNKS_BYTES

# ---- names --------------------------------------------------------------------------

_NAMES = {
    "climbs": "../../etc/passwd",
    "climbs on Windows": "..\\..\\x",
    "is a place": "/etc/passwd",
    "is dots": "..",
    "has a NUL": "a\0b",
    "has a line break": "a\n",
    "has a space": "a b",
    "has three parts": "a.b.c",
    "is too long": "a" * 129,
    "is in wide letters": "\uff41\uff42",
    "turns round": "a\u202eb",
    "is an option": "$(id)",
    "is SQL": "' OR 1=1 --",
    "is empty": "",
}
_REGISTER = {"model_type": "task.py:study"}


def _named() -> Iterator[HostileRequest]:
    """Every such name, everywhere a name is taken."""
    for what, name in _NAMES.items():
        yield HostileRequest(
            f"invite: the name {what}", order("POST", "F/invites", {"name": name}), 400, "E0810"
        )
        body = _REGISTER | {"location_id": name}
        yield HostileRequest(
            f"register: the place {what}", say("/federated/client/register", body), 400, "E0810"
        )
        label = {"label": name, "role": "viewer", "everywhere": True}
        yield HostileRequest(
            f"token: the label {what}", order("POST", "/v1/tokens", label), 400, "E0810"
        )
        start = {"federation": name}
        yield HostileRequest(
            f"start: the federation {what}",
            order("POST", "/federated/server/start", start),
            400,
            "E0810",
        )
        yield from _named_in_paths(what, name)


def _named_in_paths(what: str, name: str) -> Iterator[HostileRequest]:
    """A control character is refused with the head of the request; an encoded slash, or
    nothing, is another path; all else is a name that nobody has."""
    spelling = quote(name, safe="")
    places = {
        "federation": (order("GET", f"/v1/federations/{spelling}"), 404, "E0819"),
        "revoke": (order("POST", f"F/sites/{spelling}/revoke"), 403, "E0301"),
        "blob": (get(f"/v1/blobs/{spelling}"), 422, "E0810"),
    }
    for place, (send, status, code) in places.items():
        if any(letter < " " for letter in name):
            status, code = 400, "E0810"
        elif not name or "/" in name:
            status, code = 404, "E0810"
        yield HostileRequest(f"{place}: the name {what}", send, status, code)


# ---- the table ----------------------------------------------------------------------

_JSON: dict[str, str | bytes] = {
    "NaN": f'{{{ASKING},"wait_ms":NaN}}',
    "infinity": f'{{{ASKING},"wait_ms":Infinity}}',
    "minus infinity": f'{{{ASKING},"wait_ms":-Infinity}}',
    "a key twice": f'{{{ASKING},"own_size":0}}',
    "1e999": f'{{{ASKING},"wait_ms":1e999}}',
    "deep": b"[" * 200_000,
    "nine levels": f'{{{ASKING},"have":' + "[" * 9 + "]" * 9 + "}",
    "an integer of 5000 digits": f'{{{ASKING},"wait_ms":{"9" * 5000}}}',
    "an integer of 64 bits": f'{{"seen_size":{1 << 63},"own_size":0}}',
    "below zero": '{"seen_size":-1,"own_size":0}',
    "a text for a number": '{"seen_size":"0","own_size":0}',
    "true for a number": '{"seen_size":true,"own_size":0}',
    "a fraction for a number": '{"seen_size":0.0,"own_size":0}',
    "null for a number": '{"seen_size":null,"own_size":0}',
    "a list for a text": f'{{{ASKING},"have":[]}}',
    "something behind it": f"{{{ASKING}}}{{}}",
    "a byte order mark": b"\xef\xbb\xbf" + f"{{{ASKING}}}".encode(),
    "UTF-16": f"{{{ASKING}}}".encode("utf-16"),
    "not UTF-8": f"{{{ASKING}}}".encode() + b"\xff",
    "half a surrogate": f'{{{ASKING},"have":"\\ud800"}}',
    "half a surrogate as a key": f'{{{ASKING},"\\ud800":1}}',
    "nothing": "",
    "a list": "[]",
    "null": "null",
    "a key that is not known": f'{{{ASKING},"more":1}}',
    "a key missing": '{"seen_size":0}',
    "single quotes": "{'seen_size':0,'own_size':0}",
    "a comment": f"{{{ASKING}/**/}}",
    "waits for ever": f'{{{ASKING},"wait_ms":1000000000}}',
    "a mark too long": f'{{{ASKING},"have":"{"x" * 65}"}}',
    "an objection that is no code": f'{{{ASKING},"objection":"E9999\\n"}}',
    "compressed": b"\x1f\x8b\x08\x00" + bytes(20),
    "a form": b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--x--",
}
_REPORTS: dict[str, object] = {
    "a name too long": {"a" * 65: 1},
    "no name": {"": 1},
    "too many": {f"n{number}": 1 for number in range(65)},
    "a text too long": {"a": "x" * 201},
    "a list": {"a": [1]},
    "a number far too large": {"a": 10**400},
}
_RANGES: dict[str, tuple[str, int, str]] = {
    "many": ("bytes=" + ",".join(f"{at}-{at}" for at in range(2000)), 200, ""),
    "overlapping": ("bytes=" + "0-," * 1000 + "0-", 200, ""),
    "turned round": ("bytes=5-2", 200, ""),
    "the last bytes": ("bytes=-5", 200, ""),
    "behind the end": ("bytes=99999999999-", 416, "E0810"),
    "beyond all numbers": ("bytes=" + "9" * 40 + "-", 200, ""),
    "too long an end": ("bytes=0-999999999999999999", 206, ""),
    "another unit": ("lines=1-2", 200, ""),
    "not a number": ("bytes=a-b", 200, ""),
}
_GOOD = '{"update":"SENT","size_bytes":7}'

REQUESTS: tuple[HostileRequest, ...] = (
    *(HostileRequest(f"JSON: {name}", ask(body), 400, "E0810") for name, body in _JSON.items()),
    HostileRequest("JSON: 1 MiB and a byte", ask(b" " * ((1 << 20) + 1)), 413, "E0817"),
    HostileRequest("JSON: 1 MiB of lists", ask(b"[" + b"[]," * 349_000 + b"0]"), 400, "E0810"),
    HostileRequest("JSON: another type told", ask(f"{{{ASKING}}}", Content_Type="text/xml"), 200),
    *(
        HostileRequest(f"report: {name}", say("/v1/report", {"report": body}), 400, "E0810")
        for name, body in _REPORTS.items()
    ),
    HostileRequest("report: 2**62", say("/v1/report", {"report": {"a": 1 << 62}}), 422, "E0311"),
    # ---- uploads --------------------------------------------------------------------
    HostileRequest("chunk: empty", chunk("?offset=0", b""), 200, says='"offset":0'),
    HostileRequest("chunk: a wrong offset", chunk("?offset=5"), 409, "E0816", '"offset": 0'),
    HostileRequest("chunk: beyond the limit", chunk("?offset=99999999999"), 413, "E0817"),
    HostileRequest("chunk: beyond all numbers", chunk(f"?offset={1 << 62}"), 422, "E0810"),
    HostileRequest("chunk: 10**40", chunk(f"?offset={10**40}"), 422, "E0810"),
    HostileRequest("chunk: offset below zero", chunk("?offset=-1"), 422, "E0810"),
    HostileRequest("chunk: no offset", chunk(""), 422, "E0810"),
    HostileRequest("chunk: two offsets", chunk("?offset=0&offset=5"), 409, "E0816"),
    HostileRequest("chunk: shorter than told", short_chunk, 200, says='"offset":0'),
    HostileRequest("chunk: longer than told", long_chunk, 0),
    HostileRequest("chunk: in pieces", chunk_in_pieces, 411, "E0810"),
    HostileRequest("chunk: two lengths", smuggled, 400, "E0810"),
    HostileRequest(
        "chunk: too large",
        chunk("?offset=0", b"", Content_Length=str(MAX_CHUNKS_BYTES + 1)),
        413,
        "E0817",
    ),
    HostileRequest(
        "chunk: length of 30 digits",
        chunk("?offset=0", b"", Content_Length="9" * 30),
        400,
        "E0810",
    ),
    HostileRequest(
        "chunk: length below zero", chunk("?offset=0", b"", Content_Length="-1"), 400, "E0810"
    ),
    HostileRequest("another's upload", of_another("/v1/uploads/DIGEST"), 200, says='"offset":0'),
    HostileRequest(
        "another's upload, gone on with", append_to_anothers, 409, "E0816", '"offset": 0'
    ),
    HostileRequest("another's upload, submitted", submit_anothers, 404, "E0602"),
    HostileRequest("another's upload, fetched", of_another("/v1/blobs/DIGEST"), 404, "E0602"),
    # ---- a round --------------------------------------------------------------------
    HostileRequest(
        "submit: nothing was sent", submission("/v1/rounds/N/update", _GOOD), 404, "E0602"
    ),
    HostileRequest(
        "submit: spaces", submission("/v1/rounds/N/update", _GOOD.replace(",", ", ")), 400, "E0810"
    ),
    HostileRequest(
        "submit: signed for another round",
        submission("/v1/rounds/N/update", _GOOD, 77),
        409,
        "E0303",
    ),
    HostileRequest(
        "submit: a round to come", submission("/v1/rounds/77/update", _GOOD, 77), 409, "E0303"
    ),
    HostileRequest("submit: round 0", submission("/v1/rounds/0/update", _GOOD, 0), 409, "E0303"),
    HostileRequest("submit: round 0N", submission("/v1/rounds/0N/update", _GOOD), 400, "E0810"),
    HostileRequest("submit: round -1", submission("/v1/rounds/-1/update", _GOOD), 422, "E0810"),
    HostileRequest("submit: round N.0", submission("/v1/rounds/N.0/update", _GOOD), 400, "E0810"),
    HostileRequest(
        "submit: round 2**62", submission(f"/v1/rounds/{1 << 62}/update", _GOOD), 422, "E0810"
    ),
    HostileRequest("submit: a query", submission("/v1/rounds/N/update?x=1", _GOOD), 400, "E0810"),
    HostileRequest(
        "score: not asked for",
        submission(
            "/v1/rounds/N/score", '{"model":"SENT","samples":1,"candidate":[1.0],"base":[1.0]}'
        ),
        403,
        "E0301",
    ),
    HostileRequest(
        "score: 101 numbers",
        say(
            "/v1/rounds/1/score",
            {"model": SENT, "samples": 1, "candidate": [1.0] * 101, "base": []},
        ),
        400,
        "E0810",
    ),
    HostileRequest(
        "failure: no such",
        submission("/v1/rounds/N/failure", '{"failure":"__CLASS__"}'),
        400,
        "E0810",
    ),
    HostileRequest("receipt: nothing was sent", get("/v1/rounds/1000/receipt"), 409, "E0303"),
    # ---- files ----------------------------------------------------------------------
    HostileRequest("blob: unknown", get(f"/v1/blobs/{SENT}"), 404, "E0602"),
    HostileRequest("blob: in capitals", get(f"/v1/blobs/{'AB' * 32}"), 422, "E0810"),
    HostileRequest("blob: a digit too few", get(f"/v1/blobs/{'ab' * 31}a"), 422, "E0810"),
    HostileRequest("blob: a line break behind", get(f"/v1/blobs/{SENT}%0a"), 400, "E0810"),
    HostileRequest("blob: plain dots", get("/v1/blobs/../../authority.key"), 404, "E0810"),
    *(
        HostileRequest(f"range: {name}", get("/v1/blobs/BASE", Range=told), status, code)
        for name, (told, status, code) in _RANGES.items()
    ),
    HostileRequest(
        "range: if another", get("/v1/blobs/BASE", Range="bytes=0-3", If_Range='"x"'), 200
    ),
    # ---- joining --------------------------------------------------------------------
    HostileRequest(
        "join: a key of small order", enrol_with(lambda: forged_request(OF_NO_ORDER)), 422, "E0407"
    ),
    HostileRequest(
        "join: a key not canonical",
        enrol_with(lambda: forged_request(NON_CANONICAL)),
        422,
        "E0407",
    ),
    HostileRequest("join: a request not signed", enrol_with(altered_request), 403, "E0818"),
    HostileRequest("join: a key of another kind", enrol_with(another_kind), 403, "E0818"),
    HostileRequest("join: no request", enrol(certificate_request="x"), 403, "E0818"),
    HostileRequest("join: a request too long", enrol(certificate_request="x" * 4001), 400, "E0810"),
    HostileRequest("join: far too long", enrol(certificate_request="x" * 20_000), 413, "E0817"),
    HostileRequest("join: asks to be an authority", enrol_with(authority_request), 200),
    HostileRequest("join: a token used", used_token, 403, "E0813"),
    HostileRequest("join: a token replaced", replaced_token, 403, "E0813"),
    HostileRequest("join: a token too old", old_token, 403, "E0813"),
    HostileRequest("join: a token unknown", unknown_token, 403, "E0813"),
    HostileRequest("join: another's name", enrol(name="site-0"), 403, "E0813"),
    HostileRequest("join: another federation", enrol(federation="0" * 32), 403, "E0813"),
    HostileRequest("join: a short secret", enrol(secret="x"), 400, "E0810"),
    # ---- who asks -------------------------------------------------------------------
    HostileRequest("no certificate", no_certificate, 403, "E0818"),
    HostileRequest("another's certificate", anothers_certificate, 403, "E0818"),
    HostileRequest("a foreign certificate", with_foreign_certificate, 0),
    HostileRequest("a header of ours twice", header_twice, 401, "E0814"),
    HostileRequest("not signed", as_anybody("GET", "/v1/study"), 401, "E0814"),
    HostileRequest("no token", as_anybody("GET", "/v1/federations"), 401, "E0812"),
    HostileRequest(
        "a wrong token",
        as_anybody("GET", "/v1/federations", Authorization="Bearer co1.x"),
        401,
        "E0812",
    ),
    HostileRequest(
        "another scheme",
        as_anybody("GET", "/v1/federations", Authorization="Basic eDp4"),
        401,
        "E0812",
    ),
    HostileRequest(
        "a token of 60 KB",
        as_anybody("GET", "/v1/federations", Authorization="Bearer " + "x" * 60_000),
        401,
        "E0812",
    ),
    HostileRequest(
        "a token not ASCII",
        as_anybody("GET", "/v1/federations", Authorization="Bearer \xff\xfe"),
        401,
        "E0812",
    ),
    # ---- orders ---------------------------------------------------------------------
    HostileRequest(
        "order: a version that is not there", order("POST", "F/models/99/rollback"), 404, "E0309"
    ),
    HostileRequest(
        "order: version 2**62", order("POST", f"F/models/{1 << 62}/rollback"), 422, "E0810"
    ),
    HostileRequest("order: open what is open", order("POST", "F/rounds/open"), 409, "E0307"),
    HostileRequest(
        "order: cancel another round", order("POST", "F/rounds/99/cancel"), 409, "E0305"
    ),
    HostileRequest(
        "order: days for ever",
        order(
            "POST",
            "/v1/tokens",
            {"label": "x", "role": "viewer", "everywhere": True, "days": 10**6},
        ),
        400,
        "E0810",
    ),
    HostileRequest(
        "order: a role that is none",
        order("POST", "/v1/tokens", {"label": "x", "role": "root", "everywhere": True}),
        400,
        "E0810",
    ),
    # ---- HTTP itself ----------------------------------------------------------------
    HostileRequest("HTTP: nothing there", as_anybody("GET", "/v1/nothing"), 404, "E0810"),
    HostileRequest("HTTP: another method", as_anybody("DELETE", "/v1/enrol"), 405, "E0810"),
    HostileRequest("HTTP: TRACE", as_anybody("TRACE", "/v1/study"), 405, "E0810"),
    HostileRequest(
        "HTTP: no method", raw(b"FOO /health HTTP/1.1\r\nHost: x\r\n\r\n"), 400, "E0810"
    ),
    HostileRequest(
        "HTTP: a body where none is", lambda s: s.site.call("GET", "/v1/study", b"x"), 413, "E0817"
    ),
    HostileRequest(
        "HTTP: not HTTP", raw(b"\x16\x03\x01\x00\xa5" + bytes(100) + b"\r\n\r\n"), 400, "E0810"
    ),
    HostileRequest("HTTP: version 2", raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 400, "E0810"),
    HostileRequest(
        "HTTP: a NUL in a header",
        raw(b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n"),
        400,
        "E0810",
    ),
    HostileRequest(
        "HTTP: a header without a name", raw(b"GET /health HTTP/1.1\r\n: x\r\n\r\n"), 400, "E0810"
    ),
    HostileRequest(
        "HTTP: a length in words",
        raw(b"POST /v1/enrol HTTP/1.1\r\nContent-Length: ten\r\n\r\n"),
        400,
        "E0810",
    ),
    HostileRequest(
        "HTTP: two lengths",
        raw(b"POST /v1/enrol HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        400,
        "E0810",
    ),
    HostileRequest("HTTP: 70 KB of headers", as_anybody("GET", "/health", X="x" * 70_000), 0),
    HostileRequest(
        "HTTP: 200 headers",
        raw(
            b"GET /health HTTP/1.1\r\n"
            + b"".join(b"h%d: x\r\n" % at for at in range(200))
            + b"\r\n"
        ),
        0,
    ),
    HostileRequest(
        "HTTP: 20,000 letters of address", as_anybody("GET", "/" + "x" * 20_000), 414, "E0810"
    ),
    HostileRequest("HTTP: 100 KB of address", as_anybody("GET", "/" + "x" * 100_000), 0),
    HostileRequest(
        "HTTP: an upgrade",
        as_anybody("GET", "/health", Connection="Upgrade", Upgrade="websocket"),
        400,
        "E0810",
    ),
    HostileRequest("HTTP: another host", as_anybody("GET", "/health", Host="evil.example"), 200),
    HostileRequest(
        "HTTP: who it says it is",
        as_anybody("GET", "/metrics", X_Forwarded_For="127.0.0.1"),
        401,
        "E0812",
    ),
    *_named(),
)
