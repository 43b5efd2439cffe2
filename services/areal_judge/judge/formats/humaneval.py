"""HumanEval (Chen et al. 2021) and what is written like it: {prompt, test, entry_point, canonical_solution}.

A submission is a whole program: the prompt and its completion, or a program that stands alone. What the prompt brings
beside the function that is asked for (imports, helpers) goes before the tests, which use it, too.
"""

import ast

from areal_judge.judge.formats import native
from areal_judge.judge.formats.fields import Row, has, refuse, text
from areal_judge.judge.formats.python_source import functions, needs_numpy, parse, without
from areal_judge.judge.values import AssertSuite, Suite


def claims(row: Row) -> bool:
    if native.is_suite(row) or has(row, "base_input"):  # a suite of asserts has the same columns
        return False
    return has(row, "test", "entry_point") and isinstance(row["test"], str)


def suite(row: Row) -> Suite:
    entry_point, test = text(row, "entry_point"), text(row, "test")
    tree = parse(test, "test")
    if "check" not in functions(tree) and not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        refuse(
            "test",
            f"neither check(candidate) nor an assert: nothing would test {entry_point}",
            "define check(candidate) in the column 'test'",
        )
    prelude = helpers(text(row, "prompt", ""), entry_point)
    numpy = needs_numpy(tree, parse(prelude, "prompt"))
    return AssertSuite(test, entry_point, prelude=prelude, needs_numpy=numpy)


def helpers(prompt: str, entry_point: str) -> str:
    """Imports and helpers of a prompt. A prompt that is no Python (prose) brings none."""
    for ending in ("", "\n    pass\n"):
        try:
            ast.parse(prompt + ending)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return without(prompt + ending, entry_point, "prompt")
    return ""
