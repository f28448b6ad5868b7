"""One federation from its beginning to its end, with one part that is broken on the way.

Whoever dies is started again, unbroken. Whoever stands still for long with a disk that fails
for ever is killed first, as its people would do.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from consortium.testing.crash_network.line import GoneError, Words
from consortium.testing.crash_network.parts import COORDINATOR, Part, Place
from consortium.testing.crash_network.promises import broken_promises, left_unspooled

_STEP_MS = 250
_MOST_TURNS = 200
# Turns in which nothing happens: until somebody ends a process whose disk fails for ever; and
# until it is wrong. Of calls that fail for a while, a turn may make only one.
_STANDS_STILL, _STANDS_LONG = 6, 40
_SIGKILL = 9


@dataclass(frozen=True, slots=True)
class Fault:
    """Who is broken, with which options of strace; whether it goes on for ever."""

    who: str
    tracing: list[str]
    is_kill: bool = False
    is_for_ever: bool = False


@dataclass
class Run:
    """A federation on its way. `wrong` is what was seen that must not be."""

    place: Place
    fault: Fault | None = None
    wrong: list[str] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    told: dict[str, Words] = field(default_factory=dict)  # what each part said last
    codes: set[str] = field(default_factory=set)
    ending: str = "whole"  # how the broken part ended
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    is_broken: bool = False  # the fault has done its work, or its part has gone

    # ---- to the end -----------------------------------------------------------------

    def to_the_end(self) -> None:
        """Let the federation end, then end its parts."""
        try:
            self._go()
            self._look_at_promises()
        except TimeoutError:
            self.wrong.append("somebody does not answer")
        finally:
            for name in list(self.parts):
                self._end(name)

    def start_and_end(self, name: str) -> None:
        """Start a part once more, alone, look at what it had promised, and end it."""
        if self._ask(name, do="turn") is not None:
            if name == COORDINATOR:
                self._look_at_promises()
            self._end(name)

    def _go(self) -> None:
        still, seen = 0, ""
        for _ in range(_MOST_TURNS):
            self.now_ms += _STEP_MS
            if self._turn():
                return
            before, seen = seen, self._standing()
            still = still + 1 if seen == before else 0
            is_for_ever = self.fault is not None and self.fault.is_for_ever and not self.is_broken
            if still >= (_STANDS_STILL if is_for_ever else _STANDS_LONG):
                still = 0
                if not self._give_up():
                    return
        self.wrong.append("the federation does not end")

    def _standing(self) -> str:
        sizes = {name: told.get("size") for name, told in self.told.items()}
        return f"{sizes} {sorted(self.joined)} {sorted(self.tokens)}"

    def _turn(self) -> bool:
        """One turn of everybody; whether all is over."""
        for name in self.place.sites:
            if name not in self.tokens:
                found = self._ask(COORDINATOR, do="invite", invited=name)
                if found is not None and "token" in found:
                    self.tokens[name] = found["token"]
            if name in self.tokens and name not in self.joined:
                self._join(name)
            if name in self.joined and not self.told.get(name, {}).get("is_over"):
                self._ask(name, do="turn")
        self._ask(COORDINATOR, do="turn")
        return all(
            self.told.get(name, {}).get("is_over") for name in (COORDINATOR, *self.place.sites)
        )

    def _join(self, name: str) -> None:
        found = self._ask(name, do="join", token=self.tokens[name])
        if found is not None and "error" not in found:
            self.joined.add(name)
        elif found is not None:
            self.codes.add(found["error"])

    # ---- one part -------------------------------------------------------------------

    def _ask(self, name: str, **words: Any) -> Words | None:
        """What a part says; None when it has died of it, or says that it cannot."""
        if name not in self.parts:
            self.parts[name] = self._start(name)
        try:
            found = self.parts[name].ask(now_ms=self.now_ms, **words)
        except GoneError:
            self._died(name)
            return None
        if words["do"] == "turn":
            self.told[name] = found
        self.codes.update(found.get("codes", ()))
        self.wrong += [f"{name}: unexpected: {one}" for one in found.get("unexpected", ())]
        return found

    def _start(self, name: str) -> Part:
        is_faulty = self.fault is not None and self.fault.who == name and not self.is_broken
        tracing = self.fault.tracing if self.fault is not None and is_faulty else None
        return self.place.start(name, self.now_ms, tracing)

    def _died(self, name: str) -> None:
        code, said = self.parts.pop(name).reap()
        self.told.pop(name, None)
        fault, is_first = self.fault, not self.is_broken
        if fault is None or fault.who != name or not is_first:
            self.wrong.append(f"{name} ended with {code}: {said}")
            if len(self.wrong) > 5:
                raise TimeoutError  # it would go on for ever
            return
        self.is_broken = True
        self.ending = "killed" if code == -_SIGKILL else said
        is_right = code == -_SIGKILL if fault.is_kill else said.startswith("error E")
        if not is_right:
            self.wrong.append(f"{name} ended with {code}: {said}")
        self._after_the_break()

    def _give_up(self) -> bool:
        """Nothing happens any more: end the broken part, if its disk fails for ever."""
        fault = self.fault
        if fault is None or self.is_broken or fault.who not in self.parts:
            self.wrong.append("the federation stands still")
            return False
        if not fault.is_for_ever:
            self.wrong.append(f"{fault.who} does not go on when its disk is well again")
        self.is_broken, self.ending = True, "given up"
        self.parts.pop(fault.who).kill()
        self.told.pop(fault.who, None)
        self._after_the_break()
        return True

    def _end(self, name: str) -> None:
        part = self.parts.pop(name)
        with suppress(GoneError, TimeoutError):  # perhaps its disk fails still
            part.ask(do="close", now_ms=self.now_ms)
        fault = self.fault
        code, said = part.reap()
        is_faulty = fault is not None and fault.who == name and not self.is_broken
        if code and not (is_faulty and (code == -_SIGKILL or said.startswith("error E"))):
            self.wrong.append(f"{name} ended with {code} at its end: {said}")

    # ---- looking --------------------------------------------------------------------

    def _after_the_break(self) -> None:
        assert self.fault is not None
        if self.fault.who == COORDINATOR:
            self._look_at_promises()
        else:
            self.wrong += left_unspooled(self.place, self.fault.who)

    def _look_at_promises(self) -> None:
        """What a coordinator has answered it answers again, without a further effect."""
        if self._ask(COORDINATOR, do="look") is None:
            return
        before = self._ask(COORDINATOR, do="look")
        self.wrong += broken_promises(self.place, self.tokens)
        after = self._ask(COORDINATOR, do="look")
        if before is not None and after is not None and before["size"] != after["size"]:
            self.wrong.append("requests that were answered before brought about new facts")
