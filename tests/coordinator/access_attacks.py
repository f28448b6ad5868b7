"""What the columns of the matrix cannot say: stolen, changed, replayed and borrowed things.

Each attack says what it hears; `HEARS` says what it must hear. None has an effect.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

from consortium.coordinator.access import Role, Scope
from consortium.coordinator.matrix import Person, Reach
from consortium.coordinator.operators import new_operator
from consortium.coordinator.rows import OperatorRow
from consortium.core import inputs as i
from consortium.core.facts import Departure
from consortium.core.ids import Digest, Seat
from consortium.crypto.authority import request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.errors import ConsortiumError
from consortium.wire.signing import NONCE, SIGNATURE, sign
from tests.coordinator.access_world import ALPHA, BETA, DAY_MS, Member, Told, Wanted, World

REPORT = Wanted("POST", "/v1/report", b'{"report":{"attack":1}}')
STATUS = f"/v1/federations/{ALPHA}"
OWN_SITE = Person(Role.SITE)
Attack = Callable[[World], Told | str]


# ---- signatures and certificates ----------------------------------------------------


def another_key(world: World) -> Told:
    """A member signs in another's name, and shows the other's certificate."""
    victim, thief = world.sites[ALPHA][:2]
    line = world.line(victim, REPORT)
    return world.call(REPORT, sign(line, thief.key), victim.certificate)


def changed_signature(world: World) -> Told:
    site = world.sites[ALPHA][0]
    headers = sign(world.line(site, REPORT), site.key)
    raw = bytearray(base64.b64decode(headers[SIGNATURE]))
    raw[3] ^= 1
    headers[SIGNATURE] = base64.b64encode(raw).decode()
    return world.call(REPORT, headers, site.certificate)


def changed_body(world: World) -> Told:
    site = world.sites[ALPHA][0]
    headers = sign(world.line(site, REPORT), site.key)
    other = replace(REPORT, body=b'{"report":{"attack":2}}')
    return world.call(other, headers, site.certificate)


def body_where_none_was_signed(world: World) -> Told:
    site = world.sites[ALPHA][0]
    wanted = Wanted("GET", "/v1/study")
    headers = sign(world.line(site, wanted, digest=sha256(b"x").hexdigest()), site.key)
    return world.call(wanted, headers, site.certificate)


def another_coordinator(world: World) -> Told:
    return world.signed(world.sites[ALPHA][0], REPORT, audience="0" * 32)


def no_certificate(world: World) -> Told:
    site = world.sites[ALPHA][0]
    return world.call(REPORT, sign(world.line(site, REPORT), site.key), None)


def another_certificate(world: World) -> Told:
    site, other = world.sites[ALPHA][:2]
    return world.call(REPORT, sign(world.line(site, REPORT), site.key), other.certificate)


def another_round(world: World) -> Told:
    """The path says the open round, the signature another one."""
    wanted = Wanted("POST", "/v1/rounds/1/failure", b'{"failure":"POLICY"}', 1)
    return world.signed(world.sites[BETA][2], wanted, round=2)


def another_spelling(world: World) -> Told:
    wanted = Wanted("POST", "/v1/rounds/098/failure", b'{"failure":"POLICY"}', 98)
    return world.signed(world.sites[ALPHA][0], wanted)


def another_form(world: World) -> Told:
    wanted = Wanted("POST", "/v1/rounds/98/failure", b'{ "failure":"POLICY"}', 98)
    return world.signed(world.sites[ALPHA][0], wanted)


def used_nonce(world: World) -> Told:
    site = world.sites[ALPHA][0]
    first = world.line(site, REPORT)
    world.call(REPORT, sign(first, site.key), site.certificate)
    other = replace(REPORT, body=b'{"report":{"attack":3}}')
    return world.signed(site, other, nonce=sign(first, site.key)[NONCE])


def never_there(world: World) -> Told:
    site = world.sites[ALPHA][0]
    line = replace(world.line(site, REPORT), site="c" * 32)
    return world.call(REPORT, sign(line, site.key), site.certificate)


def certificate_for_another_key(world: World) -> Told:
    request = request_certificate(SigningKey.generate()).decode()
    body = json.dumps({"certificate_request": request}).encode()
    return world.signed(world.sites[ALPHA][0], Wanted("POST", "/v1/renew", body))


def another_location(world: World) -> Told:
    body = b'{"location_id":"a-1","model_type":"task.py:study"}'
    wanted = Wanted("POST", "/federated/client/register", body)
    return world.signed(world.sites[ALPHA][0], wanted)


def another_task(world: World) -> Told:
    body = b'{"location_id":"a-0","model_type":"task.py:other"}'
    wanted = Wanted("POST", "/federated/client/register", body)
    return world.signed(world.sites[ALPHA][0], wanted)


def before_it_has_a_seat(world: World) -> Told:
    return world.signed(_seatless(world), REPORT)


def leaving_before_it_has_a_seat(world: World) -> Told:
    return world.signed(_seatless(world), Wanted("POST", "/v1/leave"))


def _seatless(world: World) -> Member:
    """A site whose enrolment was cut short between the registry and the log."""
    key, body = SigningKey.generate(), world.invite(ALPHA, world.fresh("seatless"))
    row = world.office.registry.redeem(
        body["federation"], body["secret"], token_hex(16), key.public, world.clock.now_ms()
    )
    return Member(row, key, _certified(world, row.id, key))


def _certified(world: World, site: str, key: SigningKey) -> bytes:
    made = world.office.authority.issue_site(request_certificate(key), site, world.clock.now_ms())
    return ssl.PEM_cert_to_DER_cert(made.decode())


def another_key_in_the_registry(world: World) -> Told:
    """Somebody has written a key of its own beside a site's name: the log knows better."""
    site, key = world.enrol(ALPHA, world.fresh("robbed")), SigningKey.generate()
    with world.office.registry._database.writing() as run:
        run.execute("UPDATE sites SET key = ? WHERE id = ?", (key.public, site.row.id))
    thief = Member(site.row, key, _certified(world, site.row.id, key))
    return world.signed(thief, REPORT)


def out_of_the_roster_alone(world: World) -> Told:
    """The log has put it out; the process died before the registry knew."""
    site = world.enrol(ALPHA, world.fresh("out"))
    desk, now_ms = world.office.desk_of(site.row), world.clock.now_ms()
    desk.feed(i.Dismiss(Seat(site.row.seat or 0), Departure.REVOKED, now_ms))
    return world.signed(site, REPORT)


def out_of_the_registry_alone(world: World) -> Told:
    site = world.enrol(ALPHA, world.fresh("out"))
    world.office.registry.revoke(site.row.id, world.clock.now_ms())
    return world.signed(site, REPORT)


# ---- files --------------------------------------------------------------------------


def update_of_another(world: World) -> Told:
    """One site sends its update; another asks for it by its digest."""
    owner, thief = world.sites[BETA][:2]
    data = b"an update of beta"
    digest = world.office.directory.blobs.put(data).hex()
    assert world.signed(owner, Wanted("GET", "/v1/study")).status == 200
    return world.signed(thief, Wanted("GET", f"/v1/blobs/{digest}"))


def upload_of_another(world: World) -> str:
    owner, thief = world.sites[ALPHA][:2]
    place = f"/v1/uploads/{'7' * 64}"
    sent = world.signed(owner, Wanted("PATCH", f"{place}?offset=0", b"mine"))
    seen = world.signed(thief, Wanted("GET", place))
    return f"{sent.status} {json.loads(seen.body)}"


def finished_upload_of_another(world: World) -> str:
    """That somebody has sent these bytes is not for others to know."""
    owner, thief = world.sites[ALPHA][:2]
    digest = world.office.directory.blobs.put(b"an update of alpha")
    world.office.uploads.mark_done(owner.row.id, digest)
    seen = world.signed(thief, Wanted("GET", f"/v1/uploads/{digest.hex()}"))
    return f"{seen.status} {json.loads(seen.body)}"


def other_bytes_in_a_filled_place(world: World) -> Told:
    site, place = world.sites[ALPHA][0], f"/v1/uploads/{'6' * 64}?offset=0"
    assert world.signed(site, Wanted("PATCH", place, b"first")).status == 200
    return world.signed(site, Wanted("PATCH", place, b"other"))


def upload_that_nobody_asked_for(world: World) -> Told:
    site = world.enrol(ALPHA, world.fresh("late"))  # it is not in the round
    return world.signed(site, Wanted("PATCH", f"/v1/uploads/{'8' * 64}?offset=0", b"x"))


def upload_without_end(world: World) -> Told:
    site, offset = world.sites[ALPHA][0], 1 << 40
    return world.signed(site, Wanted("PATCH", f"/v1/uploads/{'8' * 64}?offset={offset}", b"x"))


def candidate_of_others(world: World) -> str:
    """Who is not invited, and who is no member, ask for what the members are to evaluate; a
    member asks for something else."""
    blobs = world.office.directory.blobs
    candidate, other = blobs.put(b"a candidate"), blobs.put(b"something else")
    member, invited = world.sites[ALPHA][:2]
    late = world.enrol(ALPHA, world.fresh("late"))
    asked = ((late, candidate), (invited, candidate), (member, other), (member, candidate))
    seat = Seat(member.row.seat or 0)
    with _pretending(world, model=candidate, members=(seat,)):
        heard = [world.signed(site, _blob(digest)).status for site, digest in asked]
    with _pretending(world, server_state=candidate):
        heard += [world.signed(site, _blob(candidate)).status for site in (late, invited)]
    passing = {seat: SimpleNamespace(server_state=candidate)}
    state = world.office.teller_named(ALPHA).desk.state
    kept, state.passing = state.passing, passing  # type: ignore[assignment]
    try:
        heard.append(world.signed(member, _blob(other)).status)
    finally:
        state.passing = kept
    return f"{heard}"


def _blob(digest: Digest) -> Wanted:
    return Wanted("GET", f"/v1/blobs/{digest.hex()}")


@contextmanager
def _pretending(world: World, **values: Any) -> Iterator[None]:
    """The open round with other values in some fields."""
    desk = world.office.teller_named(ALPHA).desk
    with desk.lock:
        opened = desk.state.round
        kept = {name: getattr(opened, name) for name in values}
        for name, value in values.items():
            setattr(opened, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(opened, name, value)


# ---- tokens -------------------------------------------------------------------------


def token_made_elsewhere(world: World) -> Told:
    """Somebody has copied the row of a token into this registry."""
    now_ms, label = world.clock.now_ms(), world.fresh("foreign")
    row = OperatorRow(label, "admin", None, None, now_ms, now_ms + DAY_MS)
    with world.office.registry._database.writing() as run:
        token = new_operator(run, row, "d" * 32)
    return world.order(token, "GET", STATUS)


def token_that_expires(world: World) -> str:
    """The last millisecond in which it holds, and the first in which it does not."""
    token = world.new_token(Person(Role.LEAD))
    heard = []
    for step_ms in (DAY_MS - 1, 1):
        world.clock.at_ms += step_ms
        heard.append(world.order(token, "GET", STATUS).status)
    world.clock.at_ms -= DAY_MS
    return f"{heard}"


def token_that_is_revoked(world: World) -> Told:
    token, label = world.new_token(Person(Role.LEAD)), f"{Role.LEAD}-{world.count}"
    world.office.registry.revoke_operator(label)
    return world.order(token, "GET", STATUS)


def unknown_token(world: World) -> Told:
    return world.order("co1." + "A" * 27, "GET", STATUS)


def no_token(world: World) -> Told:
    return world.order("", "GET", STATUS)


def basic_instead_of_bearer(world: World) -> Told:
    token = world.tokens[Person(Role.ADMIN, Reach.ALL)]
    return world.call(Wanted("GET", STATUS), {"Authorization": f"Basic {token}"})


def tenant_and_list_that_do_not_meet(world: World) -> Told:
    """A scope of alpha's tenant and beta's id has neither."""
    beta = world.office.federation(BETA)
    assert beta is not None
    scope = Scope(f"tenant-{ALPHA}", frozenset({beta.id}))
    label, now_ms = world.fresh("neither"), world.clock.now_ms()
    token = world.office.registry.new_operator("admin", label, now_ms, DAY_MS, scope)
    told = world.order(token, "GET", f"/v1/federations/{BETA}")
    return told if told.status != 404 else world.order(token, "GET", STATUS)


def hidden_name_sounds_like_an_unknown_one(world: World) -> str:
    token = world.tokens[Person(Role.ADMIN, Reach.OTHER)]
    hidden, unknown = (
        world.order(token, "GET", f"/v1/federations/{name}").body for name in (ALPHA, "gamma")
    )
    return str(hidden == unknown.replace(b"gamma", ALPHA.encode()))


def token_without_bounds_by_accident(world: World) -> Told:
    admin = world.tokens[Person(Role.ADMIN, Reach.ALL)]
    body = {"label": world.fresh("wide"), "role": "viewer"}
    return world.order(admin, "POST", "/v1/tokens", body)


def token_for_a_tenant_that_is_not_there(world: World) -> Told:
    admin = world.tokens[Person(Role.ADMIN, Reach.ALL)]
    body = {"label": world.fresh("lost"), "role": "viewer", "tenant": "typo"}
    return world.order(admin, "POST", "/v1/tokens", body)


# ---- joining ------------------------------------------------------------------------


def _join(world: World, body: dict[str, str], key: SigningKey | None = None) -> Told:
    request = request_certificate(key or SigningKey.generate()).decode()
    data = json.dumps(body | {"certificate_request": request}).encode()
    return world.call(Wanted("POST", "/v1/enrol", data), {})


def good_invitation(world: World) -> Told:
    """No attack: what the others are compared with."""
    return _join(world, world.invite(ALPHA, world.fresh("join")))


def unknown_invitation(world: World) -> Told:
    return _join(world, world.invite(ALPHA, world.fresh("join")) | {"secret": "A" * 27})


def unknown_invitation_without_a_name(world: World) -> str:
    federation = world.invite(ALPHA, world.fresh("join"))["federation"]
    key, now_ms = SigningKey.generate().public, world.clock.now_ms()
    try:
        world.office.registry.redeem(federation, "A" * 27, world.fresh("id"), key, now_ms)
    except ConsortiumError as error:
        return error.code
    return "joined"


def used_invitation(world: World) -> Told:
    body = world.invite(ALPHA, world.fresh("join"))
    assert _join(world, body).status == 200
    return _join(world, body)


def expired_invitation(world: World) -> Told:
    body = world.invite(ALPHA, world.fresh("join"))
    world.clock.at_ms += DAY_MS
    try:
        return _join(world, body)
    finally:
        world.clock.at_ms -= DAY_MS


def invitation_of_another_name(world: World) -> Told:
    return _join(world, world.invite(ALPHA, world.fresh("join")) | {"name": "a-other"})


def invitation_of_another_federation(world: World) -> Told:
    beta = world.invite(BETA, world.fresh("join"))["federation"]
    return _join(world, world.invite(ALPHA, world.fresh("join")) | {"federation": beta})


def invitation_again_under_another_name(world: World) -> Told:
    body, key = world.invite(ALPHA, world.fresh("join")), SigningKey.generate()
    assert _join(world, body, key).status == 200
    return _join(world, body | {"name": "a-other"}, key)


def key_of_another(world: World) -> Told:
    key = world.sites[ALPHA][1].key
    return _join(world, world.invite(ALPHA, world.fresh("join")), key)


def back_after_leaving(world: World) -> Told:
    """The winner of a token may come again, but not after it has left."""
    body, key = world.invite(ALPHA, world.fresh("join")), SigningKey.generate()
    assert _join(world, body, key).status == 200
    desk = world.office.teller_named(ALPHA).desk
    row = next(one for one in world.office.registry.sites(desk.id) if one.name == body["name"])
    desk.feed(i.Dismiss(Seat(row.seat or 0), Departure.LEFT, world.clock.now_ms()))
    return _join(world, body, key)


def back_after_being_put_out(world: World) -> Told:
    body, key = world.invite(ALPHA, world.fresh("join")), SigningKey.generate()
    assert _join(world, body, key).status == 200
    desk = world.office.teller_named(ALPHA).desk
    row = next(one for one in world.office.registry.sites(desk.id) if one.name == body["name"])
    world.office.registry.revoke(row.id, world.clock.now_ms())
    return _join(world, body, key)


def redeemed_after_being_put_out(world: World) -> str:
    """As before, at the registry alone."""
    registry, now_ms = world.office.registry, world.clock.now_ms()
    body, key = world.invite(ALPHA, world.fresh("join")), SigningKey.generate().public
    place = body["federation"], body["secret"]
    row = registry.redeem(*place, token_hex(16), key, now_ms)
    registry.revoke(row.id, now_ms)
    try:
        registry.redeem(*place, token_hex(16), key, now_ms)
    except ConsortiumError as error:
        return error.code
    return "joined"


def put_out_while_it_joins(world: World) -> Told:
    """Revoked between the registry and the log."""
    desk, registry = world.office.teller_named(ALPHA).desk, world.office.registry
    body, feed = world.invite(ALPHA, world.fresh("join")), desk.feed

    def feed_late(item: i.Input) -> Any:
        if isinstance(item, i.Admit):
            registry.revoke(item.site, world.clock.now_ms())
        return feed(item)

    desk.feed = feed_late  # type: ignore[method-assign]
    try:
        return _join(world, body)
    finally:
        del desk.feed  # type: ignore[method-assign]


def weak_key(world: World) -> str:
    """A key under which one signature fits every message."""
    body = world.invite(ALPHA, world.fresh("join"))
    weak = b"\x01" + bytes(31)
    try:
        world.office.registry.redeem(
            body["federation"], body["secret"], world.fresh("id"), weak, world.clock.now_ms()
        )
    except ConsortiumError as error:
        return error.code
    return "joined"


# ---- what each must hear ------------------------------------------------------------

HEARS: dict[Attack, str] = {
    another_key: "401 E0814",
    changed_signature: "401 E0814",
    changed_body: "401 E0814",
    body_where_none_was_signed: "401 E0814",
    another_coordinator: "401 E0814",
    no_certificate: "403 E0818",
    another_certificate: "403 E0818",
    another_round: "409 E0303",
    another_spelling: "400 E0810",
    another_form: "400 E0810",
    used_nonce: "409 E0815",
    never_there: "401 E0814",
    certificate_for_another_key: "403 E0818",
    another_location: "403 E0301",
    another_task: "400 E0810",
    before_it_has_a_seat: "401 E0814",
    leaving_before_it_has_a_seat: "401 E0814",
    another_key_in_the_registry: "401 E0814",
    out_of_the_roster_alone: "401 E0814",
    out_of_the_registry_alone: "401 E0814",
    update_of_another: "404 E0602",
    upload_of_another: "200 {'offset': 0, 'is_complete': False}",
    finished_upload_of_another: "200 {'offset': 0, 'is_complete': False}",
    other_bytes_in_a_filled_place: "409 E0816",
    upload_that_nobody_asked_for: "403 E0301",
    upload_without_end: "413 E0817",
    candidate_of_others: "[404, 404, 404, 200, 404, 200, 404]",
    token_made_elsewhere: "401 E0812",
    token_that_expires: "[200, 401]",
    token_that_is_revoked: "401 E0812",
    unknown_token: "401 E0812",
    no_token: "401 E0812",
    basic_instead_of_bearer: "401 E0812",
    tenant_and_list_that_do_not_meet: "404 E0819",
    hidden_name_sounds_like_an_unknown_one: "True",
    token_without_bounds_by_accident: "400 E0003",
    token_for_a_tenant_that_is_not_there: "400 E0003",
    unknown_invitation: "403 E0813",
    unknown_invitation_without_a_name: "E0813",
    used_invitation: "403 E0813",
    expired_invitation: "403 E0813",
    invitation_of_another_name: "403 E0813",
    invitation_of_another_federation: "403 E0813",
    invitation_again_under_another_name: "403 E0813",
    key_of_another: "400 E0003",
    back_after_leaving: "403 E0813",
    back_after_being_put_out: "403 E0813",
    redeemed_after_being_put_out: "E0813",
    put_out_while_it_joins: "403 E0813",
    weak_key: "E0407",
}


def heard(world: World, attack: Attack) -> str:
    """What an attack hears, in a word."""
    told = attack(world)
    if isinstance(told, str):
        return told
    return f"{told.status} {told.code}" if told.status >= 400 else str(told.status)
