"""Tiny random Qwen3 models on disk, and log-probabilities by Hugging Face to compare with."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from areal.spec.model_families import VISION
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)  # fmt: skip

VOCAB = 64
EOS = 2
CONTEXT = 512
CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}


def make_model(path: Path, seed: int, kind: str = "qwen3", **changes: Any) -> Path:
    """Write a random model with a character tokenizer; the same seed makes the same model."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "pad_token_id": 0,
        "initializer_range": 0.1,
    }
    config = CONFIGS[kind](**(sizes | changes))
    model = AutoModelForCausalLM.from_config(config).float()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # constant at initialisation, which would hide mistakes
            torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.2)
    model.save_pretrained(path)
    _tokenizer().save_pretrained(path)
    return path


def hf_logprobs(path: Path, prompt: list[int], made: list[int], temperature: float = 1.0) -> list[float]:
    """Hugging Face's log-probability of each token of `made` after `prompt`."""
    with torch.no_grad():
        logits = _loaded(str(path))(torch.tensor([prompt + made])).logits[0].float()
    table = (logits / temperature).log_softmax(-1)
    return [float(table[len(prompt) - 1 + place, token]) for place, token in enumerate(made)]


@lru_cache(maxsize=8)
def _loaded(path: str) -> Any:
    sees = AutoConfig.from_pretrained(path).model_type in VISION
    auto: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    return auto.from_pretrained(path, dtype=torch.float32).eval()


def _tokenizer() -> PreTrainedTokenizerFast:
    letters = [chr(ord("0") + place) for place in range(VOCAB - 3)]
    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": EOS} | {letter: place + 3 for place, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
