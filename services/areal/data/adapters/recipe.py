"""A recipe's own dataset: `dataset(split)` returns or yields dictionaries."""

import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from areal.data.source import RecipeSource, describe
from areal.errors import DataError


def read(source: RecipeSource) -> Iterator[tuple[str, dict[str, Any], bytes | None]]:
    """Calls the recipe's `dataset(split)` and yields its rows. Runs user code; its errors name the line."""
    from areal.workflow.recipe import load_recipe

    what = describe(source)
    recipe = load_recipe(source.path)
    if recipe.dataset is None:
        raise DataError(
            f"{source.path} defines no dataset",
            fix="write `def dataset(split): …` in the recipe, yielding dictionaries",
        )
    try:
        rows = iter(recipe.dataset(source.split))
    except Exception as error:
        raise _failed(what, error) from error
    number = -1
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:
            raise _failed(what, error) from error
        number += 1
        place = f"{what}, row {number}"
        if not isinstance(row, Mapping):
            raise DataError(f"{place}: a row is a dictionary, not {type(row).__name__}", fix="yield dictionaries")
        yield place, dict(row), None


def _failed(what: str, error: Exception) -> DataError:
    lines = "".join(traceback.format_exception(error))
    return DataError(f"{what} failed: {type(error).__name__}: {error}\n{lines}", fix="correct the recipe's dataset()")
