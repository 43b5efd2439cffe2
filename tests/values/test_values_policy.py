"""PolicyIds are read in one place."""

from __future__ import annotations

import re
from pathlib import Path

import areal.values.policy
import pytest
from areal.errors import DataError
from areal.values.policy import version_of

_BY_HAND = re.compile(r"""policy_ids?\.r?(partition|split)\(|split\(["']\.f["']""")


def test_a_version_is_read_or_refused() -> None:
    assert version_of("43.f7") == 43
    for wrong in ("", "43", "43.7", "v43.f7", "043.f7"):
        with pytest.raises(DataError):
            version_of(wrong)


def test_nobody_takes_a_policy_id_apart_by_hand() -> None:
    root = Path(areal.values.policy.__file__).parents[3]
    sources = [*root.glob("services/areal/**/*.py"), *root.glob("trainer/**/*.py")]
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sources
        for line in path.read_text().splitlines()
        if _BY_HAND.search(line)
    ]
    assert found == []
