"""How commands speak: data to stdout, talk to stderr, one JSON envelope, coded errors."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any, TypeVar

from consortium.errors import ConsortiumError, InternalError

Command = TypeVar("Command", bound=Callable[..., None])

INTERRUPTED = 130
PIPE_CLOSED = 141


class Voice:
    """What the global flags ask for. Set once, by the root command."""

    json: bool = False
    verbosity: int = 0


def say(text: str) -> None:
    """Talk: to stderr, and not at all where only JSON is wanted."""
    if not Voice.json:
        print(text, file=sys.stderr)


def data(text: str) -> None:
    """A line of data for people and pipes."""
    if not Voice.json:
        print(text)


def at_once() -> None:
    """Let each line out when it is printed, into a pipe too: for commands that go on."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def envelope(command: str, result: dict[str, object], *, is_ok: bool = True) -> None:
    """The one JSON object of a command that did what it was asked."""
    if Voice.json:
        print(json.dumps({"ok": is_ok, "command": command, "data": result}))


def command(function: Command) -> Command:
    """Turns errors into a coded message and an exit code: never a traceback without -vv."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            function(*arguments, **options)
        except ConsortiumError as error:
            _fail(error)
        except KeyboardInterrupt:
            say("interrupted")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # whoever read our output has gone: so do we, as others do
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(PIPE_CLOSED)
        except Exception as error:  # the outermost loop: keep the evidence, show no data
            _fail_unexpectedly(error)

    return run  # type: ignore[return-value]  # same signature, by functools.wraps


def _fail(error: ConsortiumError) -> None:
    if Voice.verbosity >= 2:
        traceback.print_exception(error)
    if Voice.json:
        told: dict[str, object] = {"code": error.code, "message": error.message}
        told |= {"hint": error.hint, "where": getattr(error, "where", "")}
        if error.details:
            told["details"] = error.details
        print(json.dumps({"ok": False, "error": told}))
    else:
        print(render(error), file=sys.stderr)
    sys.exit(error.exit_code)


def _fail_unexpectedly(error: Exception) -> None:
    if Voice.verbosity >= 2:
        traceback.print_exception(error)
    _fail(InternalError(f"unexpected {type(error).__name__}"))


def render(error: ConsortiumError) -> str:
    """An error as people read it.

    error[E0112]: consortium.toml:9: unknown key `epsilom` in [privacy]
        9 | epsilom = 4.0
          | ^^^^^^^
    hint: did you mean epsilon?
    """
    where = getattr(error, "where", "")
    lines = [f"error[{error.code}]: {where + ': ' if where else ''}{error.message}"]
    excerpt = getattr(error, "excerpt", "")
    if excerpt:
        number = where.rpartition(":")[2]
        source, caret = excerpt.split("\n", 1)
        lines += [f"  {number:>5} | {source}", f"        | {caret}"]
    if error.hint:
        lines.append(f"hint: {error.hint}")
    return "\n".join(lines)
