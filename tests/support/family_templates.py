"""Chat templates in the manner of the families whose models call tools: small, and written for the tests."""

from __future__ import annotations

# ruff: noqa: E501 - each form in one line reads best
TEXT = "c.function.arguments | tojson"
NAME = "c.function.name"


def said(*parts: str) -> str:
    """Jinja that writes texts (in quotes) and expressions."""
    return "".join("{{- " + part + " -}}" for part in parts)


def each_argument(*parts: str) -> str:
    """Jinja that writes each argument; `raw` is its value, texts as they are and others as JSON."""
    return (
        "{%- for key, value in c.function.arguments.items() -%}"
        "{%- set raw = value if value is string else value | tojson -%}" + said(*parts) + "{%- endfor -%}"
    )


def family(
    call: str,
    block: tuple[str, str] = ("", ""),
    *,
    result: str = said("'<|im_start|>tool\\n' + m.content + '<|im_end|>\\n'"),
    single: bool = False,
    open_thought: bool = False,
) -> str:
    """A template in the style of ChatML whose calls of tools are written like this."""
    more = "{%- if m.tool_calls | length > 1 -%}{{- raise_exception('one call at a time') -}}{%- endif -%}"
    opening = "'<|im_start|>assistant\\n<think>\\n'" if open_thought else "'<|im_start|>assistant\\n'"
    return (
        "{%- if tools -%}" + said("'<|im_start|>system\\n'", "tools | tojson", "'<|im_end|>\\n'") + "{%- endif -%}"
        "{%- for m in messages -%}{%- if m.role == 'tool' -%}" + result + "{%- else -%}"
        + said("'<|im_start|>' + m.role + '\\n' + m.content")
        + "{%- if m.tool_calls -%}" + (more if single else "") + said(f"'{block[0]}'")
        + "{%- for c in m.tool_calls -%}" + call + "{%- endfor -%}" + said(f"'{block[1]}'") + "{%- endif -%}"
        + said("'<|im_end|>\\n'") + "{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}" + said(opening) + "{%- endif -%}"
    )  # fmt: skip


_JSON_CALL = said('\'{"name": "\' + c.function.name + \'", "arguments": \'', TEXT, "'}'")
_NAMED = "{%- set ns = namespace(name='') -%}{%- for o in messages -%}{%- for c in o.tool_calls or [] -%}" \
    "{%- if c.id == m.tool_call_id -%}{%- set ns.name = c.function.name -%}{%- endif -%}{%- endfor -%}{%- endfor -%}"  # fmt: skip
_DSML = "｜DSML｜"
_GEMMA = (
    "{%- macro written(value) -%}{%- if value is string -%}{{- '<|\"|>' + value + '<|\"|>' -}}"
    "{%- elif value is mapping -%}{{- '{' -}}{%- for k, v in value.items() -%}{{- k + ':' -}}{{- written(v) -}}"
    "{%- if not loop.last -%},{%- endif -%}{%- endfor -%}{{- '}' -}}"
    "{%- elif value is sequence -%}{{- '[' -}}{%- for v in value -%}{{- written(v) -}}"
    "{%- if not loop.last -%},{%- endif -%}{%- endfor -%}{{- ']' -}}"
    "{%- else -%}{{- value | tojson -}}{%- endif -%}{%- endmacro -%}"
)
_LIST = "{%- if not loop.last -%}, {%- endif -%}"
_PYTHON = (
    said(f"{NAME} + '('") + "{%- for k, v in c.function.arguments.items() -%}"
    "{{- k + '=' -}}{%- if v is string -%}{{- \"'\" + v + \"'\" -}}{%- else -%}{{- v | tojson -}}{%- endif -%}"
    "{%- if not loop.last -%}, {%- endif -%}{%- endfor -%}" + said("')'") + _LIST
)  # fmt: skip

_OPENED = "{%- if add_generation_prompt -%}"
_GLM = (  # nothing closes an answer but the turn that follows
    "{%- if tools -%}" + said("'<|system|>\\n'", "tools | tojson") + "{%- endif -%}"
    "{%- for m in messages -%}{%- if m.role == 'tool' -%}" + said("'<|observation|>\\n' + m.content")
    + "{%- elif m.role == 'user' -%}" + said("'<|user|>\\n' + m.content")
    + "{%- elif m.role == 'system' -%}" + said("'<|system|>\\n' + m.content")
    + "{%- else -%}" + said("'<|assistant|>\\n' + m.content") + "{%- for c in m.tool_calls or [] -%}"
    + said(f"'\\n<tool_call>' + {NAME} + '\\n'")
    + each_argument("'<arg_key>' + key + '</arg_key>\\n<arg_value>' + raw + '</arg_value>\\n'")
    + said("'</tool_call>'") + "{%- endfor -%}{%- endif -%}{%- endfor -%}"
    + _OPENED + said("'<|assistant|>\\n'") + "{%- endif -%}"
)  # fmt: skip
_GPT_OSS = (  # the last answer ends by another token than earlier ones, and a call names who is called
    "{%- if tools -%}" + said("'<|start|>developer<|message|>'", "tools | tojson", "'<|end|>'") + "{%- endif -%}"
    "{%- for m in messages -%}{%- if m.role == 'tool' -%}" + _NAMED
    + said("'<|start|>functions.' + ns.name + ' to=assistant<|channel|>commentary<|message|>'", "m.content | tojson", "'<|end|>'")
    + "{%- elif m.role != 'assistant' -%}" + said("'<|start|>' + m.role + '<|message|>' + m.content + '<|end|>'")
    + "{%- elif m.tool_calls -%}{%- set c = m.tool_calls[0] -%}"
    + said(f"'<|start|>assistant to=functions.' + {NAME} + '<|channel|>commentary json<|message|>'", TEXT, "'<|call|>'")
    + "{%- else -%}" + said("'<|start|>assistant<|channel|>final<|message|>' + m.content")
    + said("'<|return|>' if loop.last and not add_generation_prompt else '<|end|>'") + "{%- endif -%}{%- endfor -%}"
    + _OPENED + said("'<|start|>assistant'") + "{%- endif -%}"
)  # fmt: skip


def _dsml(block: str) -> str:
    return family(
        said(f"'<{_DSML}invoke name=\"' + {NAME} + '\">\\n'")
        + each_argument(f"'<{_DSML}parameter name=\"' + key + '\" string=\"' + ('true' if value is string else 'false') + '\">'",
                        f"raw + '</{_DSML}parameter>\\n'")
        + said(f"'</{_DSML}invoke>\\n'"),
        (f"\\n\\n<{_DSML}{block}>\\n", f"</{_DSML}{block}>"),
    )  # fmt: skip


FAMILIES = {
    "GLM": _GLM,
    "GPT_OSS": _GPT_OSS,
    "HERMES": family(said("'<tool_call>\\n'") + _JSON_CALL + said("'\\n</tool_call>'")),
    "QWEN_CODER": family(
        said(f"'<tool_call>\\n<function=' + {NAME} + '>\\n'")
        + each_argument("'<parameter=' + key + '>\\n' + raw + '\\n</parameter>\\n'")
        + said("'</function>\\n</tool_call>'"),
        open_thought=True,
    ),
    "MINIMAX": family(
        said(f"'<invoke name=\"' + {NAME} + '\">\\n'")
        + each_argument("'<parameter name=\"' + key + '\">' + raw + '</parameter>\\n'")
        + said("'</invoke>\\n'"),
        ("\\n<minimax:tool_call>\\n", "</minimax:tool_call>"),
    ).replace("<|im_end|>", "[e~["),
    "SEED": family(
        said(f"'<seed:tool_call>\\n<function=' + {NAME} + '>\\n'")
        + each_argument("'<parameter=' + key + '>' + (value if value is string else value | string) + '</parameter>\\n'")
        + said("'</function>\\n</seed:tool_call>'")
    ),
    "DEEPSEEK_V32": _dsml("function_calls"),
    "DEEPSEEK_V4": _dsml("tool_calls"),
    "DEEPSEEK_V3": family(
        said(f"'<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + {NAME} + '\\n```json\\n'", TEXT,
             "'\\n```<｜tool▁call▁end｜>'"),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "DEEPSEEK_V31": family(  # its arguments are JSON text
        said(f"'<｜tool▁call▁begin｜>' + {NAME} + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>'"),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "KIMI": family(
        said("'<|tool_call_begin|>' + c.id + '<|tool_call_argument_begin|>'", TEXT, "'<|tool_call_end|>'"),
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        result=said("'<|im_start|>' + (m.name or 'tool') + '\\n## Return of ' + m.tool_call_id + '\\n' + m.content + '<|im_end|>'"),
    ),
    "MISTRAL": family(
        said("'{\"name\": \"' + c.function.name + '\", \"arguments\": '", TEXT, "', \"id\": \"' + c.id + '\"}'")
        + "{%- if c.id | length != 9 -%}{{- raise_exception('ids have nine characters') -}}{%- endif -%}" + _LIST,
        ("[TOOL_CALLS][", "]"),
        result=said("'[TOOL_RESULTS]{\"content\": ' + m.content + ', \"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]'"),
    ),
    "MISTRAL_11": family(said(f"'[TOOL_CALLS]' + {NAME} + '[ARGS]'", TEXT)),
    "GEMMA": _GEMMA + family(
        said(f"'<|tool_call>call:' + {NAME}", "written(c.function.arguments)", "'<tool_call|>'"),
        result=_NAMED + said("'<|tool_response>response:' + ns.name + '{value:<|\"|>' + m.content + '<|\"|>}<tool_response|>'"),
    ),
    "LFM2": family(_PYTHON, ("<|tool_call_start|>[", "]<|tool_call_end|>")),
    "COHERE": family(
        said("'{\"tool_call_id\": \"' + loop.index0 | string + '\", \"tool_name\": \"' + c.function.name + '\", \"parameters\": '",
             TEXT, "'}'") + _LIST,
        ("<|START_ACTION|>[", "]<|END_ACTION|>"),
    ),
    "JAMBA": family(_JSON_CALL + _LIST, ("<tool_calls>[", "]</tool_calls>")),
    "PHI": family(said("'<|tool_call|>'") + _JSON_CALL + said("'<|/tool_call|>'")),
    "LLAMA": family(
        said("'{\"name\": \"' + c.function.name + '\", \"parameters\": '", TEXT, "'}'"),
        single=True, result=said("'<|im_start|>ipython\\n'", "m.content | tojson", "'<|im_end|>\\n'"),
    ),
    "PYTHONIC": family(_PYTHON, ("[", "]")),
}  # fmt: skip
