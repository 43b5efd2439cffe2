"""Makes the quickstart's start model: about a million parameters, taught a task only a little.

    python -m areal_trainer.init_model --out models/digits-1m --sft data/digits/sft.jsonl \\
        --validation data/digits/validation.jsonl

Owns the output directory: it holds a complete Hugging Face model or what it held before. A model made from the same
arguments and data is kept as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from areal.errors import ArealError, ConfigError, DataError
from areal.files import install_directory

if TYPE_CHECKING:
    from areal_trainer.tiny.supervised import Example

ORIGIN = "origin.json"  # in the model's directory: what it was made from
RECIPE_VERSION = 1  # grows when the same arguments would make another model
_MAX_STEPS = 2000  # ten times what the digits need


@dataclass(frozen=True)
class MadeModel:
    """What `init_model` did. The accuracies are of the validation rows."""

    path: Path
    steps: int
    sampled: float
    greedy: float
    cached: bool


def init_model(
    out: Path,
    sft: Path,
    validation: Path,
    *,
    until: float = 0.42,
    seed: int = 0,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    max_steps: int = _MAX_STEPS,
    quiet: bool = False,
) -> MadeModel:
    """Makes a small Qwen3 model at `out` and trains it until its sampled validation accuracy is `until`.

    Args:
        out: the model's directory. One that this function made from other arguments is replaced.
        sft: JSON lines with prompt and answer to train on.
        validation: JSON lines to stop by; never the rows that reinforcement learning is measured on.
        until: sampled (temperature 1) accuracy in (0, 1) at which to stop.
        seed: of the weights and of the order of rows.
        quiet: no progress bar.

    Raises:
        DataError: a file is missing or malformed, or `until` is not reached within `max_steps`.
        ConfigError: `until` is no share, or `out` holds something that this function did not make.
    """
    if not 0 < until < 1:
        raise ConfigError(f"until is {until}: an accuracy lies between 0 and 1", fix="give for example --until 0.42")
    rows, checked = _read(sft), _read(validation)
    arguments: dict[str, Any] = {
        "recipe": RECIPE_VERSION,
        "sft": _digest(sft),
        "validation": _digest(validation),
        "until": until,
        "seed": seed,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "max_steps": max_steps,
    }
    if (made := _made_before(out, arguments)) is not None:
        return made
    # Only now: torch takes seconds to import, and a cached model needs none of it.
    import torch

    from areal_trainer.tiny.architecture import make_model, make_tokenizer
    from areal_trainer.tiny.supervised import train
    from areal_trainer.tiny.training_bar import training_bar

    tokenizer = make_tokenizer()
    vocabulary = tokenizer.get_vocab()
    examples, validated = _examples(vocabulary, rows, sft), _examples(vocabulary, checked, validation)
    model = make_model(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same model on any number of cores, and no threads that wait for busy ones
    try:
        with training_bar(until, quiet=quiet) as report:
            steps, measured = train(
                model,
                examples,
                validated,
                until=until,
                seed=seed,
                learning_rate=learning_rate,
                batch_size=batch_size,
                max_steps=max_steps,
                report=report,
            )
    finally:
        torch.set_num_threads(threads)
    if measured.sampled < until:
        raise DataError(
            f"after {steps} steps the sampled accuracy on {validation} is {measured.sampled:.2f}, below {until}",
            fix="give more or easier rows in --sft, or a lower --until",
        )
    result = MadeModel(out, steps, measured.sampled, measured.greedy, cached=False)
    facts = {"arguments": arguments, "steps": steps, **asdict(measured)}
    _save(out, model, tokenizer, facts)
    return result


def untrained(out: Path, *, seed: int = 0) -> MadeModel:
    """Makes the same small model at `out` without teaching it anything: a start for `training: SFT`.

    Raises ConfigError when `out` holds something that was not made here.
    """
    arguments: dict[str, Any] = {"recipe": RECIPE_VERSION, "untrained": True, "seed": seed}
    if (made := _made_before(out, arguments)) is not None:
        return made
    from areal_trainer.tiny.architecture import make_model, make_tokenizer

    facts = {"arguments": arguments, "steps": 0, "sampled": 0.0, "greedy": 0.0}
    _save(out, make_model(seed), make_tokenizer(), facts)
    return MadeModel(out, 0, 0.0, 0.0, cached=False)


def _made_before(out: Path, arguments: dict[str, Any]) -> MadeModel | None:
    if not out.exists():
        return None
    try:
        origin = orjson.loads((out / ORIGIN).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        if out.is_dir() and not any(out.iterdir()):
            return None
        raise ConfigError(
            f"{out} holds something that was not made here", fix="choose another --out, or remove it yourself"
        ) from None
    if origin.get("arguments") != arguments or not (out / "model.safetensors").exists():
        return None
    return MadeModel(out, origin["steps"], origin["sampled"], origin["greedy"], cached=True)


def _read(path: Path) -> list[dict[str, Any]]:
    from areal.data.adapters.jsonl import read
    from areal.data.source import JsonlSource

    rows = []
    for place, row, _ in read(JsonlSource(path)):
        for column in ("prompt", "answer"):
            if not isinstance(row.get(column), str):
                raise DataError(
                    f'{place}: column "{column}" is no text (found {", ".join(row)})',
                    fix='write rows such as {"prompt": "312=", "answer": "123"}',
                )
        rows.append(row)
    if not rows:
        raise DataError(f"{path} has no rows", fix="give at least one row")
    return rows


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _examples(vocabulary: dict[str, int], rows: list[dict[str, Any]], source: Path) -> list[Example]:
    from areal_trainer.tiny.architecture import MAX_POSITIONS
    from areal_trainer.tiny.supervised import example

    def encode(text: str) -> list[int]:
        return [vocabulary[character] for character in text]

    examples = []
    for number, row in enumerate(rows, start=1):
        try:
            made = example(encode, row["prompt"], row["answer"])
        except KeyError as error:
            raise DataError(
                f"{source}, row {number}: the character {error} is not printable ASCII",
                fix="this model has one token a printable ASCII character; drop the row",
            ) from None
        if len(made.prompt) + len(made.answer) > MAX_POSITIONS:
            raise DataError(
                f"{source}, row {number}: longer than {MAX_POSITIONS} characters", fix="shorten or drop the row"
            )
        examples.append(made)
    return examples


def _save(out: Path, model: Any, tokenizer: Any, facts: dict[str, Any]) -> None:
    """Writes beside `out`, then renames."""
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar

    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.tmp-", dir=out.parent))
    try:
        disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            model.save_pretrained(work)
        finally:
            enable_progress_bar()  # type: ignore[no-untyped-call]
        tokenizer.save_pretrained(work)
        (work / ORIGIN).write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        work.chmod(0o755)
        for file in work.iterdir():
            file.chmod(0o644)
        install_directory(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="init-model", description="Make and briefly train a small start model.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the model")
    parser.add_argument("--sft", type=Path, help="JSON lines to train on")
    parser.add_argument("--validation", type=Path, help="JSON lines to stop by")
    parser.add_argument("--untrained", action="store_true", help="only make it: no --sft and --validation")
    parser.add_argument("--until", type=float, default=0.42, help="sampled validation accuracy to stop at")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    given = parser.parse_args(argv)
    if given.untrained == (given.sft is not None or given.validation is not None) or (
        not given.untrained and (given.sft is None or given.validation is None)
    ):
        parser.error("give --sft and --validation, or --untrained and neither")
    try:
        if given.untrained:
            made = untrained(given.out, seed=given.seed)
            print(f"{made.path} {'is there already' if made.cached else 'is made'}, untrained")
            return 0
        made = init_model(given.out, given.sft, given.validation, until=given.until, seed=given.seed, quiet=given.quiet)
    except ArealError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    how = "is there already" if made.cached else "is made"
    print(
        f"{made.path} {how}: {made.steps} supervised steps, "
        f"validation accuracy {made.sampled:.2f} sampled, {made.greedy:.2f} greedy"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
