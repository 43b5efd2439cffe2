"""A tokenizer of a model of images, with a chat template in the manner of Qwen's and its processor's settings."""

from __future__ import annotations

import json
from pathlib import Path

from support.chat_tokenizer import write_chat_tokenizer
from support.tiny_vision import processor
from transformers import AutoTokenizer

PARTS = (  # in the manner of Qwen's models of images: a default system message, parts of several spellings
    "{%- set seen = namespace(count=0) -%}"
    "{%- for message in messages -%}"
    "{%- if loop.first and message['role'] != 'system' -%}"
    "{{ '<|im_start|>system\\nYou see.<|im_end|>\\n' }}{%- endif -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}"
    "{%- set seen.count = seen.count + 1 -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
CONTROL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")


def write_vision_tokenizer(directory: Path) -> Path:
    """All that a model's directory has of it."""
    path = write_chat_tokenizer(directory, PARTS, CONTROL)
    pad = AutoTokenizer.from_pretrained(path).convert_tokens_to_ids("<|image_pad|>")
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "image_token_id": pad, "vocab_size": 400}))
    processor(path)
    return path
