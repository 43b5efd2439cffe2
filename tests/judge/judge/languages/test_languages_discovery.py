"""Toolchains are found where they are, and their absence is told with what to install."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal_judge.judge.languages import discovery
from areal_judge.judge.languages.discovery import Toolchain
from areal_judge.judge.languages.table import LANGUAGES


def by_language(found: tuple[Toolchain, ...]) -> dict[str, Toolchain]:
    return {toolchain.language: toolchain for toolchain in found}


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which programs are in one directory, or nowhere."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(discovery, "_ELSEWHERE", ())
    monkeypatch.setattr(discovery.glob, "glob", lambda pattern: [])
    return tmp_path


def program(path: Path, said: str, code: int = 0) -> None:
    path.write_text(f"#!/bin/sh\necho '{said}'\nexit {code}\n")
    path.chmod(0o755)


def test_every_language_of_the_table_is_reported() -> None:
    found = discovery.find_toolchains()
    assert [toolchain.language for toolchain in found] == list(LANGUAGES)
    for toolchain in found:
        assert toolchain.present == bool(toolchain.version and toolchain.digest)


def test_python_is_always_here(only: Path) -> None:
    assert by_language(discovery.find_toolchains())["python"].present


def test_what_is_absent_says_what_to_install(only: Path) -> None:
    found = by_language(discovery.find_toolchains())
    assert not found["cpp"].present
    assert "apt-get install g++" in found["cpp"].missing
    assert "default-jdk-headless" in found["java"].missing
    assert "no gcc" in found["c"].missing


def test_a_program_is_named_by_where_it_really_is(only: Path) -> None:
    program(only / "gcc-99", "gcc 99")
    (only / "alternative").symlink_to(only / "gcc-99")
    (only / "cc").symlink_to(only / "alternative")
    toolchain = by_language(discovery.find_toolchains())["c"]
    assert toolchain.programs == {"gcc": str((only / "gcc-99").resolve())}
    assert toolchain.version == "gcc 99"
    assert toolchain.readable == (str((only / "gcc-99").resolve()),)


def test_another_version_is_another_digest(only: Path) -> None:
    program(only / "gcc", "gcc 12")
    first = by_language(discovery.find_toolchains())["c"].digest
    assert by_language(discovery.find_toolchains())["c"].digest == first
    program(only / "gcc", "gcc 13")
    assert by_language(discovery.find_toolchains())["c"].digest != first


def test_a_program_that_does_not_run_is_absent(only: Path) -> None:
    program(only / "node", "Segmentation fault", code=139)
    toolchain = by_language(discovery.find_toolchains())["javascript"]
    assert not toolchain.present
    assert "doesn't run" in toolchain.missing


def test_a_java_runtime_without_a_compiler_is_not_enough(only: Path) -> None:
    program(only / "java", "openjdk 17")
    assert "no javac" in by_language(discovery.find_toolchains())["java"].missing


def test_the_compiler_behind_rustups_stand_in_is_found(only: Path) -> None:
    sysroot = only / "toolchains" / "stable"
    (sysroot / "bin").mkdir(parents=True)
    program(sysroot / "bin" / "rustc", "rustc 1.95.0")
    program(only / "rustc", str(sysroot))
    program(only / "gcc", "gcc 12")
    toolchain = by_language(discovery.find_toolchains())["rust"]
    assert toolchain.programs["rustc"] == str((sysroot / "bin" / "rustc").resolve())
    assert toolchain.readable == (str(sysroot.resolve()),)
    assert toolchain.version == "rustc 1.95.0"
