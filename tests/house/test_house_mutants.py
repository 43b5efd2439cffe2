"""`tools/mutants` changes one expression, the same ones for a seed, and asks the tests that know the module."""

from __future__ import annotations

import ast
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''
"""A module."""
LIMIT = 7

class Box:
    size: int = 3

    def room(self, taken: int = 1, *, wide: bool = True) -> int:
        """How much is left."""
        if taken > self.size:
            raise ValueError(f"{taken + 1} is too much")
        log.warning("%d taken", taken + 1)
        self.note(taken)
        return min(self.size - taken, LIMIT)

def ready(box: Box, names: list[str]) -> bool:
    return not names or box.size == 0 and "ä" in names
'''


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    loader = SourceFileLoader("mutants_tool", str(ROOT / "tools" / "mutants"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_every_mutant_is_one_changed_expression_of_code_that_still_parses(tool):
    found = tool.mutants_of("services/areal/box.py", SOURCE)
    told = {(one.line, one.kind, one.new) for one in found}
    assert told >= {
        (10, "comparison", "taken >= self.size"),
        (11, "raise dropped", "pass"),
        (13, "call dropped", "pass"),
        (14, "min, max", "max"),
        (14, "arithmetic", "(self.size + taken)"),
        (14, "returned value", "return None"),
        (17, "constant", "1"),
        (17, "constant", "(-1)"),
        (17, "comparison", "box.size != 0"),
        (17, "comparison", "'ä' not in names"),
        (17, "and, or", "(not names and (box.size == 0 and 'ä' in names))"),
    }
    assert {one.line for one in found} == {10, 11, 13, 14, 17}, "no constant of a module, default, message or log line"
    for one in found:
        changed = one.changed(SOURCE)
        ast.parse(changed)
        assert changed != SOURCE


def test_what_is_drawn_depends_on_the_seed_alone_and_is_shared_out(tool):
    packages = ["services/areal/ledger", "services/areal/rollout/controller"]
    drawn = tool.draw(packages, 9, 3)
    assert drawn == tool.draw(packages, 9, 3) != tool.draw(packages, 9, 4)
    assert [sum(one.path.startswith(package) for one in drawn) for package in packages] == [5, 4]


def test_the_tests_that_import_a_module_are_asked_first_and_then_its_rooms(tool):
    tests = tool.Tests(ROOT)
    asked = tests.of("services/areal/ledger/evidence.py")
    assert asked.index("tests/ledger/test_ledger_consumer.py") < asked.index("tests/ledger/test_ledger_world.py")
    assert not any(test.startswith("tests/sim") for test in asked)
    assert "areal.ledger.consumer" in tests.in_simulation
    of_redis = tests.of("services/areal/ledger/async_client.py")
    assert tests.of_component(of_redis)
    assert not tests.of_component(asked)
