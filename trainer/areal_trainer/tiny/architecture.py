"""The small model's shape and its tokenizer: Qwen3, 4 layers of 128, one token a character."""

from __future__ import annotations

import string

import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

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
