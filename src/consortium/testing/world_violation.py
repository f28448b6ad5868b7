"""How a rule of a `World` is broken."""

from __future__ import annotations


class Violation(Exception):
    """A rule was broken."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule, self.message = rule, message


def must(holds: bool, rule: str, message: str) -> None:
    if not holds:
        raise Violation(rule, message)
