"""The distribution's name, and the other library that is imported under the same name."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from areal.distribution import DISTRIBUTION, command, install, missing_package, refuse_upstream
from areal.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


def nothing_installed(name: str) -> Distribution:
    raise PackageNotFoundError(name)


def test_the_install_command_names_the_checkout_that_is_installed_here(monkeypatch):
    monkeypatch.delenv("AREAL_INDEX", raising=False)
    assert install("data", "engine") == f"uv pip install --python {sys.executable} -e '{ROOT}[data,engine]'"
    assert distribution(DISTRIBUTION).metadata["Name"] == "areal-kube"


def test_ones_own_index_is_named_where_there_is_one(monkeypatch):
    monkeypatch.setenv("AREAL_INDEX", "https://index.example.com/simple")
    assert install("view") == "pip install --index-url https://index.example.com/simple 'areal-kube[view]'"


def test_a_wheel_is_told_to_be_installed_by_the_file_that_make_wheel_writes(tmp_path, monkeypatch):
    monkeypatch.delenv("AREAL_INDEX", raising=False)
    record = tmp_path / "areal_kube-0.7.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: areal-kube\nVersion: 0.7.0\n")
    said = install("view", find=lambda name: Distribution.at(record))
    assert "'dist/areal_kube-0.7.0-py3-none-any.whl[view]'" in said


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("uvicorn.config", "view"),
        ("kubernetes", "operator"),
        ("math_verify", "reward"),
        ("opentelemetry", "traces"),
        ("torch", "engine"),
    ],
)
def test_a_missing_package_is_told_with_the_extra_that_has_it(package, extra, monkeypatch):
    monkeypatch.setenv("AREAL_INDEX", "https://index.example.com/simple")
    error = missing_package(ModuleNotFoundError("gone", name=package))
    assert package.split(".")[0] in error.message
    assert f"'areal-kube[{extra}]'" in error.fix
    assert "[view,operator,reward,data,engine,trainer]" in missing_package(ModuleNotFoundError("gone", name="odd")).fix


def test_the_command_is_called_as_this_shell_finds_it(tmp_path, monkeypatch):
    own = Path(sys.prefix) / "bin" / "areal"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(ROOT)
    assert Path(command()).resolve() == own.resolve()
    assert "/" in command()
    monkeypatch.chdir(tmp_path)
    assert Path(command()) == own
    monkeypatch.setenv("PATH", str(own.parent))
    assert command() == "areal"


def test_the_upstream_library_in_one_environment_is_one_clear_error(tmp_path):
    record = tmp_path / "areal-1.0.4.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: areal\nVersion: 1.0.4\n")
    with pytest.raises(ConfigError, match=r"'areal' 1\.0\.4 is installed.*another library") as refused:
        refuse_upstream(lambda name: Distribution.at(record))
    assert "pip uninstall areal" in refused.value.fix


def test_an_environment_of_its_own_is_accepted():
    assert refuse_upstream(nothing_installed) is None


def test_no_text_tells_anybody_to_install_the_other_library_or_a_name_that_nobody_owns():
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    wrong = re.compile(r"pip install [^\n]*\bareal(\[|'|\"|\s*$)", re.M)
    public = re.compile(r"pip install '?areal-kube\b")
    found = [
        name
        for name in files
        if name
        and (ROOT / name).suffix in {".py", ".md", ".toml", ".yaml"}
        and (
            wrong.search(text := (ROOT / name).read_text())
            or (name.startswith(("services", "docs", "README")) and public.search(text))
        )
    ]
    assert found == []
