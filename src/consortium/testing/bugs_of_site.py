"""Planted bugs of a site's half of a secret sum: each makes it tell a second story."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core import site_secagg as secret
from consortium.core.tables import PARTICIPANT, Stage
from consortium.errors import AlreadySubmittedError
from consortium.testing.patches import Patches, Plant, Wrapper


@dataclass(frozen=True, slots=True)
class SiteBug:
    """One planted bug of the participant's machine."""

    name: str
    plant: Plant


def _sign_again(patches: Patches) -> None:
    """A second split is pinned in place of the first."""

    def agree(real: Wrapper, state: p.Participant, duty: d.Agree, now_ms: int) -> Any:
        is_other = state.split not in (None, duty.split)
        if is_other and state.round == duty.round and state.stage is Stage.AGREED:
            return (s.SplitPinned(duty.round, duty.split, now_ms),)
        return real(state, duty, now_ms)

    patches.attribute(secret, "asked_to_agree", agree)
    patches.move(PARTICIPANT, (Stage.AGREED, s.SplitPinned), Stage.AGREEING)


def _answer_again(patches: Patches) -> None:
    """Whoever has answered answers once more, by another split."""

    def unmask(real: Wrapper, state: p.Participant, duty: d.Unmask, now_ms: int) -> Any:
        is_other = state.split not in (None, duty.split)
        if is_other and state.round == duty.round and state.stage is Stage.SENT:
            pinned = s.SplitPinned(duty.round, duty.split, now_ms)
            return (pinned, s.AgreementSeen(duty.round, now_ms))
        return real(state, duty, now_ms)

    patches.attribute(secret, "asked_to_unmask", unmask)


def _answer_by_another(patches: Patches) -> None:
    """It answers by the split that it is asked for, whatever it has signed."""

    def unmask(real: Wrapper, state: p.Participant, duty: d.Unmask, now_ms: int) -> Any:
        is_signed = state.stage in (Stage.AGREEING, Stage.AGREED) and state.round == duty.round
        if is_signed and state.split != duty.split:
            pinned = s.SplitPinned(duty.round, duty.split, now_ms)
            return (pinned, s.AgreementSeen(duty.round, now_ms))
        return real(state, duty, now_ms)

    patches.attribute(secret, "asked_to_unmask", unmask)
    for stage in (Stage.AGREEING, Stage.AGREED):
        patches.move(PARTICIPANT, (stage, s.SplitPinned), Stage.AGREEING)


def _answer_unasked(patches: Patches) -> None:
    """Whoever has signed answers at once, without having seen that others signed the same."""
    patches.move(PARTICIPANT, (Stage.AGREEING, s.ConsentTold), Stage.UNMASKING)


def _pin_in_memory(patches: Patches) -> None:
    """What split was signed is known to the process alone."""

    def agree(real: Wrapper, state: p.Participant, duty: d.Agree, now_ms: int) -> Any:
        facts = real(state, duty, now_ms)
        if facts and isinstance(facts[0], s.SplitPinned):
            state.split, state.stage = duty.split, Stage.AGREEING
            return ()
        return facts

    patches.attribute(secret, "asked_to_agree", agree)


def _pin_second_session(patches: Patches) -> None:
    def share(real: Wrapper, state: p.Participant, duty: d.Share, now_ms: int) -> Any:
        forgotten = replace(state, session=None)
        is_early = state.stage in (Stage.SHARING, Stage.SHARED)
        if is_early and state.session != duty.session and state.round == duty.round:
            forgotten.stage = Stage.KEYED
            return real(forgotten, duty, now_ms)
        return real(state, duty, now_ms)

    patches.attribute(secret, "asked_to_share", share)
    for stage in (Stage.SHARING, Stage.SHARED):
        patches.move(PARTICIPANT, (stage, s.SessionPinned), Stage.SHARING)


def _mask_by_second_list(patches: Patches) -> None:
    """Whoever is told of other sharers trains again."""

    def mask(real: Wrapper, state: p.Participant, duty: d.Train, now_ms: int) -> Any:
        try:
            return real(state, duty, now_ms)
        except AlreadySubmittedError:
            if state.sharing is None or state.stage not in (Stage.SENDING, Stage.SENT):
                raise
            assert duty.sharing is not None
            return (s.SharersPinned(duty.round, duty.sharing, duty.deadline_ms, now_ms),)

    patches.attribute(secret, "asked_to_mask", mask)
    for stage in (Stage.SENDING, Stage.SENT):
        patches.move(PARTICIPANT, (stage, s.SharersPinned), Stage.TRAINING)


def _train_again(patches: Patches) -> None:
    """A second update goes out under the masks of the first."""
    real = p._RULES[p.Trained]

    def trained(state: p.Participant, item: p.Trained) -> Any:
        is_sending = state.stage is Stage.SENDING and state.update != item.update
        return real(replace(state, stage=Stage.TRAINING) if is_sending else state, item)

    patches.move(p._RULES, p.Trained, trained)
    patches.move(PARTICIPANT, (Stage.SENDING, s.UpdateSpooled), Stage.SENDING)


def _train_plainly(patches: Patches) -> None:
    """A round that began with keys goes on as a plain one when the coordinator says so."""

    def invited(real: Wrapper, state: p.Participant, duty: d.Invitation, now_ms: int) -> Any:
        is_plain = isinstance(duty, d.Train) and duty.round == state.round
        if is_plain and state.stage in (Stage.KEYED, Stage.SHARED):
            return real(replace(state, round=duty.round - 1), duty, now_ms)
        return real(state, duty, now_ms)

    patches.attribute(p, "_invited", invited)


def _agree_before_sending(patches: Patches) -> None:
    def agree(real: Wrapper, state: p.Participant, duty: d.Agree, now_ms: int) -> Any:
        is_early = state.stage is Stage.TRAINING and state.sharing is not None
        return real(replace(state, stage=Stage.SENT) if is_early else state, duty, now_ms)

    patches.attribute(secret, "asked_to_agree", agree)
    patches.move(PARTICIPANT, (Stage.TRAINING, s.SplitPinned), Stage.AGREEING)


def _keep_pins(patches: Patches) -> None:
    """The pins of the last round are there in the next one."""

    def begin(real: Wrapper, state: p.Participant, number: int) -> None:
        pins = state.session, state.sharing, state.split
        real(state, number)
        state.session, state.sharing, state.split = pins

    patches.attribute(p, "_begin", begin)


def _join_again(patches: Patches) -> None:
    """A round that was left is joined again when the coordinator asks once more."""

    def invited(real: Wrapper, state: p.Participant, duty: d.Invitation, now_ms: int) -> Any:
        is_left = state.stage is Stage.IDLE and duty.round == state.round
        return real(replace(state, round=0) if is_left else state, duty, now_ms)

    patches.attribute(p, "_invited", invited)


def _come_back(patches: Patches) -> None:
    """An invitation to an older round is taken."""

    def invited(real: Wrapper, state: p.Participant, duty: d.Invitation, now_ms: int) -> Any:
        is_older = isinstance(duty, d.JoinSum) and duty.round < state.round
        return real(replace(state, round=0) if is_older else state, duty, now_ms)

    patches.attribute(p, "_invited", invited)


def _share_on_hold(patches: Patches) -> None:
    patches.attribute(secret, "_unless_forbidden", lambda real, state, fact, now_ms: (fact,))
    patches.attribute(p, "_stopped", lambda real, state, now_ms: ())


def _replace_note(patches: Patches) -> None:
    """What is made anew after a crash leaves in place of what was written down."""
    real = p._RULES[p.Spool]

    def spool(state: p.Participant, item: p.Spool) -> Any:
        return real(replace(state, note=None) if state.note != item.note else state, item)

    patches.move(p._RULES, p.Spool, spool)


def _refuse_after_lost_reply(patches: Patches) -> None:
    """A site that did not hear that its keys have come is deaf to what follows."""

    def share(real: Wrapper, state: p.Participant, duty: d.Share, now_ms: int) -> Any:
        return () if state.stage is Stage.KEYING else real(state, duty, now_ms)

    patches.attribute(secret, "asked_to_share", share)


SITE_BUGS = (
    SiteBug("a site signs a second split", _sign_again),
    SiteBug("a site answers by a second split", _answer_again),
    SiteBug("a site answers by a split that it has not signed", _answer_by_another),
    SiteBug("a site answers before it has seen others' signatures", _answer_unasked),
    SiteBug("a site remembers its split in memory alone", _pin_in_memory),
    SiteBug("a site shares its seeds in a second session", _pin_second_session),
    SiteBug("a site masks by a second list of sharers", _mask_by_second_list),
    SiteBug("a site sends a second update under one mask", _train_again),
    SiteBug("a site sends plainly what was to be masked", _train_plainly),
    SiteBug("a site signs before it has sent", _agree_before_sending),
    SiteBug("a site keeps its pins for the next round", _keep_pins),
    SiteBug("a site joins a round that it has left", _join_again),
    SiteBug("a site comes back to an older round", _come_back),
    SiteBug("a site shares its seeds against its will", _share_on_hold),
    SiteBug("a site replaces what it has written down", _replace_note),
    SiteBug("a site is deaf after a lost reply", _refuse_after_lost_reply),
)
