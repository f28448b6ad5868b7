"""Log lines: one JSON object each for machines, or a short line for people.

A line carries codes, routes, counts, names of federations and labels of tokens. No secrets, no
bodies, no records: whoever adds a field here checks that.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

from consortium.errors import StoreFailedError

_FIELDS = (
    *("code", "status", "method", "route", "seconds", "operator", "role"),
    *("federation", "round", "port", "count"),
)


def start_logging(
    *, as_json: bool = False, file: Path | None = None, verbose: bool = False
) -> None:
    """Send the coordinator's log to `file`, or to standard error."""
    try:
        handler = logging.FileHandler(file) if file else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise StoreFailedError(f"{file}: {error.strerror}") from None
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    for name, level in (
        ("consortium", logging.DEBUG if verbose else logging.INFO),
        ("uvicorn", logging.WARNING),
        ("asyncio", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class JsonLines(logging.Formatter):
    """`{"at": "2026-01-02T03:04:05.678Z", "level": "info", "from": …, "message": …}`"""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": _moment(record.created),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        for name in _FIELDS:
            if hasattr(record, name):
                line[name] = getattr(record, name)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """`03:04:05 message`, and what went wrong below it."""

    def format(self, record: logging.LogRecord) -> str:
        code = f" [{record.code}]" if hasattr(record, "code") else ""
        level = "" if record.levelno <= logging.INFO else f" {record.levelname.lower()}:"
        message = "".join(one if one.isprintable() else "?" for one in record.getMessage())
        line = f"{_moment(record.created)[11:19]}{level} {message}{code}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _moment(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
