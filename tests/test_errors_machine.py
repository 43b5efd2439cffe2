"""Failures of a machine, told from our own faults: by what is raised, what it came from, what a library wrote."""

from __future__ import annotations

import errno
import os
import re
import socket

import pytest
import redis
from areal.cli.main import guarded
from areal.errors import BugError, Cause, DataError, ExitCode, InfraError, as_bug, of_machine
from areal.ledger.connection import typed
from areal.processes.exits import ERROR_FILE, read_error, write_error
from areal.processes.role import report


def full(path="/dev/full") -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def behind(error: Exception, cause: Exception) -> Exception:
    try:
        raise error from cause
    except Exception as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (full(), "the disk is full: /dev/full ("),
        (OSError(errno.EMFILE, "Too many open files"), "may open no more files"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "network can't be reached"),
        (OSError(errno.EROFS, "Read-only file system", "/proc/none/there"), "can't be written: /proc/none/there ("),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (MemoryError(), "no memory is left"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (
            RuntimeError('Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space" })'),
            "full",
        ),
        (behind(ValueError("half a file"), full()), "the disk is full"),
        (ExceptionGroup("tasks", [ValueError("x"), behind(KeyError("y"), full())]), "the disk is full"),
    ],
)
def test_a_machine_that_failed_is_infrastructure_with_its_place(error, words):
    failed = of_machine(error)
    assert failed is not None
    assert words in failed.message
    assert failed.fix
    assert report(error) is ExitCode.INFRA


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (behind(InfraError("qwen can't be downloaded"), socket.gaierror(socket.EAI_AGAIN, "again")), "no-network"),
        (behind(InfraError("can't listen"), OSError(errno.EADDRINUSE, "in use")), "port-taken"),
        (behind(InfraError("can't write account.jsonl"), full()), "disk-full"),
        (InfraError("another rank was lost"), "infra"),
        (InfraError("CUDA out of memory", cause=Cause.NO_MEMORY), "no-memory"),
        (behind(DataError("row 7"), full()), "data"),
        (typed(redis.exceptions.OutOfMemoryError("maxmemory"), "127.0.0.1:1"), "store-full"),
        (as_bug(ValueError("odd")), "bug"),
    ],
)
def test_an_error_has_the_cause_that_is_behind_it(error, cause):
    assert error.cause == cause


def test_a_bug_says_the_innermost_line_of_its_stack():
    with pytest.raises(KeyError) as raised:
        {}["odd"]
    told = as_bug(raised.value).message
    assert re.fullmatch(r"KeyError: 'odd' \(test_errors_machine\.py:\d+ in test_a_bug_says_.+\)", told)


def test_a_childs_error_is_its_parents(tmp_path, monkeypatch):
    place = tmp_path / "error"
    place.touch()
    monkeypatch.setenv(ERROR_FILE, str(place))
    write_error(InfraError("the disk is full", fix="make room", cause=Cause.DISK_FULL))
    write_error(InfraError("another rank was lost"))
    found = read_error(place)
    assert found is not None
    assert (type(found), found.message, found.fix, found.cause) == (
        InfraError, "the disk is full", "make room", "disk-full",
    )  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [
        ValueError("code 28"),
        OSError(errno.ENOENT, "No such file or directory", "/gone"),
        KeyError("os error"),
        behind(DataError("row 7"), full()),  # whoever raised it knew more
        behind(RuntimeError("then this"), BugError("a promise of ours")),
    ],
)
def test_any_other_error_stays_what_it_is(error):
    assert of_machine(error) is None


def test_the_command_line_asks_for_no_report_of_a_full_disk_or_a_missing_package(capsys, monkeypatch):
    def write():
        with open("/dev/full", "w") as out:
            out.write("x" * 100_000)

    assert guarded(write) == 75
    assert "please report" not in (said := capsys.readouterr().err)
    assert "the disk is full" in said

    def missing():
        raise ModuleNotFoundError("No module named 'kubernetes'", name="kubernetes.client")

    monkeypatch.setenv("AREAL_INDEX", "https://index.example.com")
    assert guarded(missing) == 64
    assert "areal-kube[operator]" in (said := capsys.readouterr().err)
    assert "report" not in said


def test_no_colour_means_none(capsys, monkeypatch):
    def refuse():
        raise DataError("row 7", fix="mend it")

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert guarded(refuse) == 65
    assert "\x1b" not in capsys.readouterr().err
