"""A character tokenizer's directory, as Hugging Face lays it out."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXTS = ["[PAD]", "[EOS]", "[UNK]", "<user>", "<assistant>", "<system>"]


def write_tokenizer(
    directory: Path,
    characters: str = "0123456789=abq\n ",
    *,
    template: str | None = None,
    vocab_size: int | None = None,
) -> Path:
    """Ids: 0 pad, 1 end, 2 unknown, 3–5 roles, then the characters."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab = {text: number for number, text in enumerate([*TEXTS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in TEXTS])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "[EOS]", "pad_token": "[PAD]"} | ({"chat_template": template} if template else {})
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"vocab_size": vocab_size or len(vocab), "eos_token_id": 1}))
    return directory
