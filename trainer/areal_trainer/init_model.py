"""Makes a new small model: about a million parameters with random weights, and its tokenizer of characters.

    python -m areal_trainer.init_model --out models/new-1m

The shape is Qwen3's: 4 layers of 128, one token a character. Owns the output directory: it holds a complete Hugging
Face model or what it held before. A model made from the same seed is kept as it is.
"""

import argparse
import shutil
import string
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from areal.errors import ArealError, ConfigError
from areal.files import install_directory
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ORIGIN = "origin.json"  # in the model's directory: what it was made from
RECIPE_VERSION = 1  # grows when the same seed would make another model


@dataclass(frozen=True)
class MadeModel:
    """What `init_model` did."""

    path: Path
    cached: bool


def init_model(out: Path, *, seed: int = 0) -> MadeModel:
    """Makes a small Qwen3 model at `out`; one that this function made from another seed is replaced.

    Raises ConfigError when `out` holds something that was not made here.
    """
    facts = {"recipe": RECIPE_VERSION, "seed": seed}
    if _made_before(out, facts):
        return MadeModel(out, cached=True)
    _save(out, make_model(seed), make_tokenizer(), facts)
    return MadeModel(out, cached=False)


def _made_before(out: Path, facts: dict[str, int]) -> bool:
    if not out.exists():
        return False
    try:
        origin = orjson.loads((out / ORIGIN).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        if out.is_dir() and not any(out.iterdir()):
            return False
        raise ConfigError(
            f"{out} holds something that was not made here", fix="choose another --out, or remove it yourself"
        ) from None
    return bool(origin == facts and (out / "model.safetensors").exists())


def _save(out: Path, model: Any, tokenizer: Any, facts: dict[str, int]) -> None:
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
    parser = argparse.ArgumentParser(prog="init-model", description="Make a small model with random weights.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the model")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    given = parser.parse_args(argv)
    try:
        made = init_model(given.out, seed=given.seed)
    except ArealError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(f"{made.path} {'is there already' if made.cached else 'is made'}, with random weights")
    return 0


SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
PAD, BOS, EOS, UNK = range(4)
CHARACTERS = "\n" + "".join(c for c in map(chr, range(32, 127)) if c in string.printable)
MAX_POSITIONS = 512


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable ASCII character; nothing is added to a prompt; all else is `<unk>`."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    raw = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def make_model(seed: int) -> Qwen3ForCausalLM:
    """An untrained model in float32. The same seed gives the same weights."""
    config = Qwen3Config(
        vocab_size=len(SPECIAL) + len(CHARACTERS),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        use_cache=True,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Qwen3ForCausalLM = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    ends: GenerationConfig = GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)  # type: ignore[no-untyped-call]
    model.generation_config = ends
    return model


if __name__ == "__main__":
    sys.exit(main())
