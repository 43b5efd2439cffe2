"""The distribution's name, and the other library that is imported under the same name."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from areal.distribution import DISTRIBUTION, install, refuse_upstream
from areal.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


def nothing_installed(name: str) -> Distribution:
    raise PackageNotFoundError(name)


def test_the_install_command_names_the_distribution_that_is_installed_here():
    assert install("data", "engine") == "pip install 'areal-kube[data,engine]'"
    assert distribution(DISTRIBUTION).metadata["Name"] == "areal-kube"


def test_the_upstream_library_in_one_environment_is_one_clear_error(tmp_path):
    record = tmp_path / "areal-1.0.4.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: areal\nVersion: 1.0.4\n")
    with pytest.raises(ConfigError, match=r"'areal' 1\.0\.4 is installed.*another library") as refused:
        refuse_upstream(lambda name: Distribution.at(record))
    assert "pip uninstall areal" in refused.value.fix


def test_an_environment_of_its_own_is_accepted():
    assert refuse_upstream(nothing_installed) is None


def test_no_text_tells_anybody_to_install_the_other_library():
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    wrong = re.compile(r"pip install [^\n]*\bareal(\[|'|\"|\s*$)", re.M)
    found = [
        name
        for name in files
        if name and (ROOT / name).suffix in {".py", ".md", ".toml", ".yaml"} and wrong.search((ROOT / name).read_text())
    ]
    assert found == []
