"""A site that lies in secret sums: copied keys, wrong shares and answers, rows without a form, late
and second ones, and old requests of others. It tells all shares that it holds, of both kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from consortium.core import duties as d
from consortium.core.ids import Digest, Seat, Secret, SiteId
from consortium.crypto.secure_sum.keys import SEED_BYTES, Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Split
from consortium.crypto.secure_sum.site import Answer, Site
from consortium.drive import secret_sum
from consortium.errors import ConsortiumError
from consortium.model import Update, save_update
from consortium.testing.world_hostile import HostileSite
from consortium.testing.world_masks import SessionSheet, SharingSheet, Sheet, SplitSheet, signed
from consortium.testing.world_wire import (
    Answers,
    Body,
    Consents,
    Keys,
    Reply,
    Request,
    Send,
    Shares,
)

if TYPE_CHECKING:
    from consortium.testing.world import World

Lie = Body | Request | None
_HASTE = 0.3


class MaskedHostileSite(HostileSite):
    """It has keys of its own, and is mostly as good as others: else it would not get far."""

    def __init__(self, seat: Seat, world: World) -> None:
        super().__init__(seat, world)
        self.me = SiteId(f"site-{seat}")
        self._duty: d.SiteDuty | None = None  # the newest that it has seen
        self._sheets: dict[tuple[int, type[Sheet]], Sheet] = {}
        self._seeds: dict[int, Seeds] = {}
        good: tuple[str, Callable[[], Lie]] = ("", self._next)
        self._attacks = (
            *[good] * 9,
            ("keys of another", self._copied_keys),
            ("other keys", self._other_keys),
            ("shares that nobody can open", self._broken_shares),
            ("a row of noise", self._noise),
            ("a row that is too short", self._garbage),
            ("wrong round", self._wrong_round),
            ("wrong base", self._wrong_base),
            ("a wrong signature", self._wrong_signature),
            ("a wrong answer", self._wrong_answer),
            ("an answer for strangers", self._answer_of_old),
            ("for another seat", self._other_seat),
            ("replay", self._replay),
            ("replay", self._replay),
        )

    def receive(self, reply: Reply) -> None:
        super().receive(reply)
        self._duty = reply.duty or self._duty
        if reply.sheet is not None and reply.duty is not None:
            self._sheets[reply.duty.round, type(reply.sheet)] = reply.sheet
        if isinstance(reply.duty, d.Unmask) and self.world.faults.chance(_HASTE):
            lie = self._wrong_answer()  # at once: others answer soon
            if lie is not None:
                self.world.faults.happened("hostile: a wrong answer")
                self._send(lie)

    # ---- what an honest site would do -----------------------------------------------

    def _next(self) -> Lie:
        """What it is asked for; once more, and late, when it is asked for nothing new."""
        duty = self._duty
        self._kind = ""
        match duty:
            case d.JoinSum():
                return self._keys(duty.round)
            case d.Share():
                return self._shares(duty)
            case d.Train() if duty.sharing is not None:
                return self._row(duty)
            case d.Agree():
                return self._consent(duty)
            case d.Unmask():
                return self._answer(duty)
            case _:
                return None

    def _keys(self, number: int) -> Keys:
        veil = self.world.veil
        assert veil is not None
        if number not in self._seeds:
            self._seeds[number] = self._fresh()
        advert = make_keys(self._name(number), self.me, self._seeds[number])
        veil.made(self.me, number, advert.mask_key, self._seeds[number])
        return Keys(number, advert.mask_key, advert.seal_key, advert.commitment)

    def _shares(self, duty: d.Share) -> Lie:
        half = self._half(duty.round)
        if half is None:
            return None
        data = secret_sum.shares_file(half[0], self.me, half[1].make_shares())
        return Shares(duty.round, duty.session, data)

    def _row(self, duty: d.Train) -> Lie:
        """Under its masks; every time another one."""
        numbers, half = self.world.numbers, self._half(duty.round)
        sheet = self._sheets.get((duty.round, SharingSheet))
        if numbers is None or half is None or not isinstance(sheet, SharingSheet):
            return None
        self._kind = "late" if self.clock.now_ms() > duty.deadline_ms else ""
        self._kind = self._kind or ("another digest" if duty.round == self._answered else "")
        self._answered = duty.round
        step, weight = self.world.one_hot(self.seat), self.seat / self.world.setting.sites
        try:
            masked = half[1].mask(
                numbers.row(step, weight, self.seat), self._named(duty.round, sheet)
            )
        except ConsortiumError:
            return None
        return self._sent(duty, masked)

    def _consent(self, duty: d.Agree) -> Lie:
        half, split = self._half(duty.round), self._split(duty.round)
        if half is None or split is None:
            return None
        assert self.world.veil is not None
        self.world.veil.signs(self.seat, duty.round, duty.split)
        return Consents(duty.round, duty.split, signed(self.key, half[0], split))

    def _split(self, number: int) -> Split | None:
        session, sharing, closed = (
            self._sheets.get((number, kind)) for kind in (SessionSheet, SharingSheet, SplitSheet)
        )
        if not isinstance(session, SessionSheet) or not isinstance(sharing, SharingSheet):
            return None
        if not isinstance(closed, SplitSheet):
            return None
        sites = {fact.seat: site for site, fact in session.keys}
        members = [sites[seat] for seat in closed.closed.members]
        return secret_sum.split_of(self._named(number, sharing), members)

    def _answer(self, duty: d.Unmask) -> Lie:
        half, split = self._half(duty.round), self._split(duty.round)
        sharing = self._sheets.get((duty.round, SharingSheet))
        if half is None or split is None or not isinstance(sharing, SharingSheet):
            return None
        try:
            held = half[1].open_shares(dict(sharing.sealed))
            answer = half[1].answer(split, held)
        except ConsortiumError:
            return None
        assert self.world.veil is not None
        both = {site: one.own.reveal() for site, one in held.items()}
        of_pairs = {site: one.mask.reveal() for site, one in held.items()}
        self.world.veil.tells(self.me, half[0], Answer(self.me, both, of_pairs))
        return Answers(duty.round, duty.split, secret_sum.answer_file(answer))

    # ---- lies -----------------------------------------------------------------------

    def _copied_keys(self) -> Lie:
        """Of another, as soon as they are known; or of itself, from the last round."""
        duty = self._duty
        others = [
            request.body
            for request in self.world.recorded
            if isinstance(request.body, Keys) and request.seat != self.seat
        ]
        if not isinstance(duty, d.JoinSum) or not others:
            return None
        copied = self.world.rng.choice(others)
        return Keys(duty.round, copied.mask_key, copied.seal_key, copied.commitment)

    def _other_keys(self) -> Lie:
        duty = self._duty
        if not isinstance(duty, d.JoinSum) or duty.round not in self._seeds:
            return None
        advert = make_keys(self._name(duty.round), self.me, self._fresh())
        return Keys(duty.round, advert.mask_key, advert.seal_key, advert.commitment)

    def _broken_shares(self) -> Lie:
        duty = self._duty
        lie = self._shares(duty) if isinstance(duty, d.Share) else None
        if not isinstance(lie, Shares) or self.world.rng.random() < 0.7:
            return None  # seldom: it costs the whole round
        return Shares(lie.round, lie.by, self.world.rng.randbytes(len(lie.data)))

    def _noise(self) -> Lie:
        """A row that any masks might have made."""
        duty, numbers = self._duty, self.world.numbers
        if not isinstance(duty, d.Train) or duty.sharing is None or numbers is None:
            return None
        noise = np.frombuffer(self.world.rng.randbytes(4 * numbers.form.size), np.uint32)
        # Small, so that what the others weigh is still more than nothing.
        lie = self._row(duty)
        if not isinstance(lie, Send):
            return None
        row = np.frombuffer(lie.data[-4 * numbers.form.size :], np.uint32)
        return self._sent(duty, row + (noise >> np.uint32(14)))

    def _wrong_signature(self) -> Lie:
        """On another split, or none."""
        duty = self._duty
        if not isinstance(duty, d.Agree):
            return None
        return Consents(duty.round, duty.split, self.world.rng.randbytes(64))

    def _wrong_answer(self) -> Lie:
        """As long as a right one."""
        duty = self._duty
        lie = self._answer(duty) if isinstance(duty, d.Unmask) else None
        if not isinstance(lie, Answers):
            return None
        at = self.world.rng.randrange(len(lie.data))
        changed = bytes([lie.data[at] ^ 1])
        return Answers(lie.round, lie.by, lie.data[:at] + changed + lie.data[at + 1 :])

    def _answer_of_old(self) -> Lie:
        """By a split that never was, or though it is no member."""
        number = self.world.watch.past.state.last_number
        return Answers(number, Digest(self.world.rng.randbytes(32)), self.world.rng.randbytes(96))

    def _sent(self, duty: d.Train, masked: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> Send:
        assert self.world.numbers is not None
        update = Update(masked, 1.0, duty.base)  # type: ignore[arg-type]  # whole numbers
        data = save_update(update, self.world.numbers.form)
        return Send(duty.round, self._keep(data, duty.round, duty.base, True))

    # ---- what it knows --------------------------------------------------------------

    def _fresh(self) -> Seeds:
        return Seeds.from_secret(Secret(self.world.veil_rng.randbytes(4 * SEED_BYTES)))

    def _name(self, number: int) -> RoundName:
        return RoundName(self.world.watch.past.state.id, number)

    def _half(self, number: int) -> tuple[Session, Site] | None:
        sheet = self._sheets.get((number, SessionSheet))
        if not isinstance(sheet, SessionSheet) or number not in self._seeds:
            return None
        federation = self.world.watch.past.state.id
        session = secret_sum.make_session(federation, sheet.seed, sheet.closed.quorum, sheet.keys)
        try:
            return session, Site(session, self.me, self._seeds[number])
        except ConsortiumError:  # it has given keys that it copied
            return None

    def _named(self, number: int, sharing: SharingSheet) -> frozenset[SiteId]:
        session = self._sheets[number, SessionSheet]
        assert isinstance(session, SessionSheet)
        sites = {fact.seat: site for site, fact in session.keys}
        return frozenset(sites[seat] for seat in sharing.closed.seats)
