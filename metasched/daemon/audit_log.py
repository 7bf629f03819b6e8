"""Log lines: text or JSON, one line for each audit record.

Text of users and managers forges no line: control characters are replaced, and the lines of a
traceback are indented.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Literal

from metasched.model.audit import TIME_DETAILS, AuditRecord, one_line
from metasched.model.units import iso

log = logging.getLogger("metasched")

LogFormat = Literal["text", "json"]
MAX_MESSAGE_LENGTH = 10_000  # characters
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_record(record: AuditRecord, error: BaseException | None = None) -> None:
    """Write the line of a record, with the traceback of an error in text."""
    level = _LEVELS[record.severity]
    log.log(level, "%s", describe(record), extra={"audit": record}, exc_info=error)


def fields_of(record: AuditRecord) -> dict[str, Any]:
    """Return the fields of a record besides its time, without empty fields."""
    fields = {
        "kind": record.kind.value,
        "actor": record.actor or None,
        "owner": record.owner or None,
        "cluster": record.cluster or None,
        "licence": record.licence or None,
        "reservation": record.reservation,
        "job": record.job,
        "task": record.task,
        "count": record.count if record.count > 1 else None,
        "cause": record.cause or None,
    }
    return {k: v for k, v in fields.items() if v is not None} | readable(record.details)


def readable(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a record with times in ISO 8601."""
    return {name: iso(v) if name in TIME_DETAILS else v for name, v in details.items()}


def describe(record: AuditRecord) -> str:
    """Return a record as `kind field=value ...`; a value with other characters is quoted."""
    fields = fields_of(record)
    kind = fields.pop("kind")
    return " ".join([kind, *(f"{name}={_word(value)}" for name, value in fields.items())])


def _word(value: object) -> str:
    text = str(value)
    plain = text and not any(character in ' "=\\' for character in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level, message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record), MAX_MESSAGE_LENGTH)

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))


def _indented(text: str) -> str:
    return "\n".join(f"  {one_line(line, MAX_MESSAGE_LENGTH)}" for line in text.splitlines())


class JsonFormatter(logging.Formatter):
    """An object a line: time, level, message, and the fields of an audit record."""

    def format(self, record: logging.LogRecord) -> str:
        audit: AuditRecord | None = getattr(record, "audit", None)
        line: dict[str, Any] = {
            "time": iso(record.created if audit is None else audit.time),
            "level": record.levelname.lower(),
            "message": one_line(record.getMessage(), MAX_MESSAGE_LENGTH),
        }
        if audit is not None:
            line |= fields_of(audit)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


FORMATTERS: dict[LogFormat, type[logging.Formatter]] = {
    "text": TextFormatter,
    "json": JsonFormatter,
}
