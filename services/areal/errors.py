"""Errors that people and other processes understand.

An `ArealError` says whose fault something is (its class), what happened (the message) and what to do next (`fix`).
The class also decides the exit code, so a failure policy can tell a broken job file from a lost machine.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """Exit codes of every role and of the command line."""

    DONE = 0
    CONFIG = 64  # the job file or an argument is wrong
    DATA = 65  # the dataset, model or recipe is wrong
    BUG = 70  # our fault
    INFRA = 75  # the world's fault: try again
    DRAINED = 143  # asked to stop, stopped cleanly


class Kind(StrEnum):
    """Whose fault an error is."""

    INFRA = "infra"
    DATA = "data"
    CONFIG = "config"
    BUG = "bug"


class ArealError(Exception):
    """Base of all errors with an owner. `fix` is one sentence in the imperative; it may be empty for bugs."""

    kind: Kind = Kind.BUG
    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class InfraError(ArealError):
    """A machine, process or network failed. Trying again may help."""

    kind = Kind.INFRA
    exit_code = ExitCode.INFRA


class DataError(ArealError):
    """The user's data, model or recipe is at fault. Trying again won't help."""

    kind = Kind.DATA
    exit_code = ExitCode.DATA


class ConfigError(ArealError):
    """The job file or a command-line argument is at fault."""

    kind = Kind.CONFIG
    exit_code = ExitCode.CONFIG


class BugError(ArealError):
    """A promise of our own is broken."""


class FencedError(ArealError):
    """A newer incarnation of this role is alive: this one must stop at once, changing nothing more."""

    kind = Kind.INFRA
    exit_code = ExitCode.INFRA


def by_kind(kind: Kind, message: str, *, fix: str = "") -> ArealError:
    """The error class for a kind that came over the wire."""
    classes: dict[Kind, type[ArealError]] = {
        Kind.INFRA: InfraError,
        Kind.DATA: DataError,
        Kind.CONFIG: ConfigError,
        Kind.BUG: BugError,
    }
    return classes[kind](message, fix=fix)
