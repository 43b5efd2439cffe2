"""A recipe is imported elsewhere: its processor time is bounded, a busy machine's waiting isn't."""

from __future__ import annotations

import pytest
from areal.admit.recipe_probe import probe_recipe
from areal.errors import DataError

pytestmark = pytest.mark.component

LIMIT_S = 4  # of processor time, the interpreter's own start included
REWARD = "def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):\n    return 1.0\n"


def test_an_import_that_only_waits_is_let_wait(tmp_path):
    (tmp_path / "recipe.py").write_text(f"import time\n\ntime.sleep({LIMIT_S + 1})\n{REWARD}")
    parts = probe_recipe(tmp_path / "recipe.py", LIMIT_S)
    assert parts.reward
    assert parts.needs == {"answer"}
    assert parts.seconds < 1


def test_an_import_that_computes_for_too_long_is_refused_with_the_cure(tmp_path):
    (tmp_path / "recipe.py").write_text(f"while True:\n    pass\n{REWARD}")
    with pytest.raises(DataError, match=f"more than {LIMIT_S} s of processor time to import") as refused:
        probe_recipe(tmp_path / "recipe.py", LIMIT_S)
    assert "inside functions" in refused.value.fix


def test_an_import_that_ends_its_process_is_told(tmp_path):
    (tmp_path / "recipe.py").write_text("import os\n\nos._exit(3)\n")
    with pytest.raises(DataError, match="ends the process that imports it"):
        probe_recipe(tmp_path / "recipe.py")
