"""Logs for people or for machines: one line a record, with job, role and PolicyId where known."""

import logging
import os
import sys
import time
from typing import Any

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, role: str, job: str) -> None:
        super().__init__()
        self._fixed = {"job": job, "role": role}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            **self._fixed,
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class HumanFormatter(logging.Formatter):
    """`2026-01-31 12:00:01 info  trainer  message  key=value`, in local time."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        extras = "".join(f"  {key}={value}" for key, value in _extras(record).items())
        text = f"{clock} {record.levelname.lower():<7} {self._role:<14} {record.getMessage()}{extras}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def setup(role: str, job: str, *, json: bool | None = None, level: int = logging.INFO) -> None:
    """Send this process's logs to standard error, which the launcher keeps in one file a role.

    `json`: for machines; as AREAL_LOG_FORMAT says unless given.
    """
    json = os.environ.get("AREAL_LOG_FORMAT", "human") == "json" if json is None else json
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role, job) if json else HumanFormatter(role))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("httpx", "httpcore", "urllib3", "filelock", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
