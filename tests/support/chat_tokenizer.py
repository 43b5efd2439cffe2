"""A byte-level tokenizer in the style of ChatML, with control tokens that are special and ones that are not."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
LLAMA = (
    "{{- '<|begin|>' -}}{%- for message in messages -%}"
    "{{- '<|head|>' + message.role + '<|/head|>\\n\\n' + message.content | trim + '<|im_end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|head|>assistant<|/head|>\\n\\n' -}}{%- endif -%}"
)
HERMES = (  # in the manner of Qwen: tools in the system's turn, calls and results between tags
    "{%- if tools -%}{{- '<|im_start|>system\\n# Tools\\n<tools>' -}}"
    "{%- for tool in tools -%}{{- '\\n' -}}{{- tool | tojson -}}{%- endfor -%}"
    "{{- '\\n</tools>\\nCall as <tool_call>\\n{...}\\n</tool_call><|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{%- if loop.previtem is not defined or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}"
    "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}"
    "{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- else -%}{{- '<|im_start|>' + message.role + '\\n' + message.content -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{- '\\n<tool_call>\\n' -}}{{- call.function | tojson -}}{{- '\\n</tool_call>' -}}{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
FORGETFUL = CHATML.replace("message.content", "(message.content if loop.last or message.role == 'user' else '…')")
REWRITING = CHATML.replace("'<|im_end|>'", "('<|im_end|>' if loop.last else ' <|im_end|>')")
UNCLOSED = CHATML.replace("'<|im_end|>'", "''")
CONTROL = ("<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|/head|>")  # special
ADDED = ("<tool_call>", "<think>")  # added, not special


_WRITTEN = re.compile(
    r"<\|[^<>|\s'\"]{1,40}\|>|<｜[^<>'\"]{1,40}｜>|</?[a-z_:]{1,30}>|<[a-z_]+\|>|<\|[a-z_]+>|\[/?[A-Z_]{2,24}\]|"
    r"\[\|[a-z]+\|\]|\[e~\[|<\|\"\|>"
)
_PLAIN = re.compile(r"</?(think|tool|function|parameter|arg|minimax|invoke|response|seed)")  # added, not special


def control_strings(template: str) -> tuple[str, ...]:
    """What looks like a control token in a template."""
    return tuple(sorted(set(_WRITTEN.findall(template)) | {"<s>", "</s>"}))


def write_chat_tokenizer(
    directory: Path, template: str | None = CHATML, control: Sequence[str] = (*CONTROL, *ADDED), end: str = "<|im_end|>"
) -> Path:
    """Bytes, a few merges, then the added tokens; `end` ends an answer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "n"), ("t", "h"), ("th", "e"), ("\u0120", "a"), ("1", "2"), ("\u010a", "\u010a")]
    vocab = {text: number for number, text in enumerate([*alphabet, *("".join(merge) for merge in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [text for text in control if text not in ADDED and not _PLAIN.match(text)]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in control if text not in special])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = (
        {"eos_token": end}
        | ({"bos_token": "<s>"} if "<s>" in control else {})
        | ({"chat_template": template} if template else {})
    )
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    (directory / "config.json").write_text(json.dumps({"vocab_size": size, "eos_token_id": tokenizer.token_to_id(end)}))
    return directory
