"""What was said between the parts of a federation, held against what they do later."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from consortium.crypto.authority import request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import SystemClock
from consortium.site.machine import Machine
from consortium.site.outbox import Sort, entries
from consortium.store.sqlite import SqliteLog
from consortium.testing.crash_network.line import GoneError, Words, request
from consortium.testing.crash_network.parts import Place
from consortium.wire.messages import Enrol
from consortium.wire.token import JoinToken, read_token

_ENROL = "/v1/enrol"
_LATER = 503
_UPLOAD = re.compile(r"/v1/uploads/([0-9a-f]{64})")
_TELLS = re.compile(r"/v1/(rounds/\d+/(score|failure|keys|shares|answer)|report)")


# ---- a coordinator's ----------------------------------------------------------------


def broken_promises(place: Place, tokens: dict[str, str]) -> list[str]:
    """What this coordinator answers otherwise than it did. It must be running."""
    try:
        return [*_answered_otherwise(place), *_used_twice(place, tokens)]
    except GoneError:
        return []  # it was killed meanwhile: whoever watches it says so


def _answered_otherwise(place: Place) -> Iterator[str]:
    for note in answered(place):
        if note["request"] is None or note["path"] == _ENROL:
            continue
        told, data = request(place.line, note["request"], bytes.fromhex(note["body"]))
        if told["status"] == _LATER:
            continue  # its disk fails still: it is asked again when it has been started anew
        if told["status"] >= 300 or data.decode() != note["reply"]:
            what = data.decode()[:100]
            yield f"{note['path']} of {note['site']} was answered, and is now: {what}"


def _used_twice(place: Place, tokens: dict[str, str]) -> Iterator[str]:
    """A token that somebody has used is nobody else's."""
    for note in answered(place):
        if note["path"] != _ENROL:
            continue
        told, data = request(place.line, note["request"], bytes.fromhex(note["body"]))
        if told["status"] == _LATER:
            continue
        if told["status"] >= 300:
            yield f"{note['site']} cannot enrol again: {data.decode()[:100]}"
        elif json.loads(data)["site"] != json.loads(note["reply"])["site"]:
            yield f"{note['site']} has got another place"
        told, _ = _enrol_as_another(place, read_token(tokens[note["site"]]))
        if told["status"] < 300:
            yield f"the token of {note['site']} was used twice"


def _enrol_as_another(place: Place, token: JoinToken) -> tuple[Words, bytes]:
    body = Enrol(
        federation=token.federation,
        name=token.name,
        secret=token.secret,
        certificate_request=request_certificate(SigningKey.generate()).decode(),
    )
    words = {"method": "POST", "path": _ENROL, "headers": {}, "certificate": ""}
    return request(place.line, words, body.model_dump_json().encode())


def answered(place: Place) -> list[Words]:
    return [note for note in place.notes.read() if note["what"] == "answered"]


# ---- a site's -----------------------------------------------------------------------


def left_unspooled(place: Place, name: str) -> list[str]:
    """What has left a site that its own log does not know of. The site must not be running;
    its log is looked at in a copy, because opening it would mend it."""
    source = place.home(name) / "log.sqlite"
    sent = [note for note in place.notes.read() if note["what"] == "sent" and note["site"] == name]
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        for file in source.parent.glob("log.sqlite*"):
            shutil.copy(file, folder)
        if not source.exists():
            (Path(folder) / source.name).touch()
        with closing(SqliteLog(Path(folder) / source.name)) as log:
            known = entries(Machine(log, SystemClock()))
    updates = {entry.digest.hex() for entry in known if entry.kind is Sort.UPDATE}
    others = {entry.digest.hex() for entry in known if entry.kind is not Sort.UPDATE}
    found = []
    for note in sent:
        upload = _UPLOAD.match(note["path"])
        is_lost = upload is not None and upload[1] not in updates
        if _TELLS.fullmatch(note["path"]) and note["digest"] not in others:
            is_lost = True
        if is_lost:
            found.append(f"{name} has sent {note['path'][:40]}, and its log does not know of it")
    return found
