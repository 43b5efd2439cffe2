"""T2: conversations with tools are rendered as transformers renders them, for three styles of template."""

from __future__ import annotations

import json
from typing import Any

import pytest
from areal.gateway.messages import parse_messages
from areal.gateway.templates.template import Template
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import CHATML, HERMES, write_chat_tokenizer

LLAMA_3 = (  # in the manner of Llama 3.1: tools as indented JSON in the user's turn, calls as plain JSON
    "{{- '<|begin|>' -}}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set system_message = messages[0]['content'] | trim -%}{%- set messages = messages[1:] -%}"
    "{%- else -%}{%- set system_message = '' -%}{%- endif -%}"
    "{{- '<|head|>system<|/head|>\\n\\n' -}}{%- if tools is not none -%}{{- 'Environment: ipython\\n' -}}{%- endif -%}"
    "{{- system_message + '<|im_end|>' -}}"
    "{%- for message in messages -%}"
    "{%- if 'tool_calls' in message -%}"
    "{%- set call = message.tool_calls[0].function -%}"
    '{{- \'<|head|>assistant<|/head|>\\n\\n{"name": "\' + call.name + \'", "parameters": \' -}}'
    "{{- call.arguments | tojson -}}{{- '}<|im_end|>' -}}"
    "{%- elif message.role == 'tool' -%}"
    "{{- '<|head|>ipython<|/head|>\\n\\n' + message.content + '<|im_end|>' -}}"
    "{%- else -%}"
    "{{- '<|head|>' + message.role + '<|/head|>\\n\\n' -}}"
    "{%- if loop.first and tools is not none -%}"
    "{%- for tool in tools -%}{{- tool | tojson(indent=4, sort_keys=false) + '\\n\\n' -}}{%- endfor -%}"
    "{%- endif -%}"
    "{{- message.content | trim + '<|im_end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|head|>assistant<|/head|>\\n\\n' -}}{%- endif -%}"
)
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at “x” & <y>.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"x": "né"}}}
PLAIN = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": " the 12\n"},
    {"role": "assistant", "content": "an answer"},
    {"role": "user", "content": "and?"},
]
CALLED = [
    *PLAIN[:2],
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
]


@pytest.mark.parametrize(
    ("style", "messages", "tools"),
    [
        (CHATML, PLAIN, None),
        (HERMES, PLAIN, None),
        (HERMES, CALLED, [LOOK]),
        (LLAMA_3, PLAIN, None),
        (LLAMA_3, CALLED, [LOOK]),
    ],
    ids=["chatml", "qwen", "qwen with tools", "llama", "llama with tools"],
)
def test_t2_a_conversation_is_rendered_as_transformers_does(
    tmp_path, style: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    from transformers import PreTrainedTokenizerFast

    directory = write_chat_tokenizer(tmp_path, style)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), eos_token="<|im_end|>")
    text = theirs.apply_chat_template(
        messages, tools=tools, chat_template=style, add_generation_prompt=True, tokenize=False
    )
    expected = theirs(text, add_special_tokens=False)["input_ids"]
    template = Template(Tokenizer.from_dir(directory))
    assert template.first(parse_messages(as_client(messages)), tools or ()).tolist() == expected


def as_client(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments as a text of JSON, as OpenAI's API has them."""
    sent = []
    for message in messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in message.get("tool_calls", [])
        ]
        sent.append({**message, **({"tool_calls": calls} if calls else {})})
    return sent
