"""Export of published versions as Hugging Face directories, beside training.

A published version's files are a model already: an export shares their bytes, or is the adapter merged into its base,
file by file, in the files' own layout and precision. W + alpha / rank · B·A is added up in float32 and rounded once;
what is served is never merged: in bfloat16 the rounding loses what base and adapter compute apart.
Works from what is on the volume, so that a version whose export a crash cut off is exported with the next one.
"""

import json
import logging
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from areal.errors import ArealError, DataError
from areal.values.policy import PolicyId
from areal.weights.adapter import ADAPTER_STEM, AdapterConfig, tensor_name
from areal.weights.exports import Exports, link_version
from areal.weights.manifest import MANIFEST_NAME, Manifest
from areal.weights.publish import versions
from areal.weights.safetensors_format import INDEX_NAME, model_files, read_header
from areal.weights.shards import TensorSource
from areal.workflow.tokenizer import MORE_TEMPLATES, chat_template_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_trainer.engine.lora import known_as
from areal_trainer.engine.model import empty_model, score_architecture

_log = logging.getLogger(__name__)

_ALONE = "model.safetensors"
_TRAINED, _UNTRAINED = "model-trained.safetensors", "model-untrained.safetensors"
_MADE = ("rotary_emb.inv_freq", "lm_head.weight")  # computed, or another name of the embedding


class Exporter:
    """Exports of versions under `weights`, of a model that began as `start`.

    `merged_into`: an adapter's base model, tokenizer and the job's template.
    """

    def __init__(
        self, exports: Exports, weights: Path, start: Path, merged_into: tuple[Path, Path, str | None] | None = None
    ) -> None:
        self._start = start
        self._exports = exports
        self._weights = weights
        self._merged_into = merged_into

    def due(self, policy: PolicyId) -> bool:
        """Whether a version that is about to be written must be one that can be exported."""
        return self._exports.due(policy.version)

    def run(self, newest: PolicyId) -> None:
        """Export what is due and not there, up to `newest`; then see to `best` and to what need not stay."""
        for policy in versions(self._weights):
            version = self._weights / policy.directory
            if policy > newest or not self._exports.lacks(policy) or not _whole(version):
                continue
            if self._exports.add(policy, partial(self._write, version)) is None:
                _log.warning("step %d is not exported again: a process reads the export", policy.version)
        self._exports.tidy()

    def tidy(self) -> None:
        """The last evaluation is done: see to `best` once more."""
        self._exports.tidy()

    def _write(self, version: Path, target: Path) -> None:
        if self._merged_into is None:
            link_version(version, target)
            carry_untrained(self._start, target)
        else:
            base, tokenizer, template = self._merged_into
            merge(base, tokenizer, version, target, template)


def _whole(version: Path) -> bool:
    """Whether a version has all its weights, so isn't a delta."""
    try:
        return Manifest.from_bytes((version / MANIFEST_NAME).read_bytes()).base is None
    except (OSError, ArealError):
        return False


def carry_untrained(start: Path, target: Path) -> None:
    """Add what training leaves out of a model, such as a tower for images: the start's tensors, in a file of theirs."""
    places = {header.name: file.name for file in model_files(target) for header in read_header(file)[1]}
    rest: dict[str, Tensor] = {}
    for file in model_files(start):
        names = [header.name for header in read_header(file)[1] if header.name not in places]
        with safe_open(file, framework="pt") as opened:
            rest |= {name: opened.get_tensor(name) for name in names if not name.endswith(_MADE)}
    if rest:
        if _ALONE in places.values():  # of this name it would be taken for the whole model, whatever the index says
            (target / _ALONE).rename(target / _TRAINED)
            places = dict.fromkeys(places, _TRAINED)
        save_file(rest, target / _UNTRAINED, {"format": "pt"})
        shutil.copymode(start / "config.json", target / _UNTRAINED)  # it is written for its owner alone
        index = {"metadata": {}, "weight_map": {**places, **dict.fromkeys(rest, _UNTRAINED)}}
        (target / INDEX_NAME).unlink(missing_ok=True)  # the version's own
        (target / INDEX_NAME).write_text(json.dumps(index, indent=2))


def merge(base: Path, tokenizer: Path, adapter: Path, target: Path, template: str | None = None) -> None:
    """Write the merged model to `target`, whole or not at all, with the adapter itself in `target`/adapter."""
    scale = AdapterConfig.from_dir(adapter).scale
    matrices = load_file(adapter / f"{ADAPTER_STEM}.safetensors")
    views = empty_model(base).views  # an adapter has the names of the model's own code, its files may have others
    partial = target.with_name(target.name + ".tmp")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(adapter, partial / "adapter", ignore=shutil.ignore_patterns(MANIFEST_NAME))
    for file in model_files(base):
        tensors = load_file(file)
        for name in tensors:
            module = known_as(name, views[name].tensor) if name in views else name
            down, up = (matrices.pop(tensor_name(module, matrix), None) for matrix in "AB")
            if down is not None and up is not None:
                weight = tensors[name]
                merged = torch.addmm(weight.float(), up.float(), down.float(), alpha=scale)
                tensors[name] = merged.to(weight.dtype)
        save_file(tensors, partial / file.name, {"format": "pt"})
        shutil.copymode(file, partial / file.name)  # it is written for its owner alone
    if matrices:
        raise DataError(f"{base} has no weight for {min(matrices)}", fix="keep the start model as it was")
    for name, source in side_files(base, tokenizer, template).items():
        (partial / name).write_bytes(source if isinstance(source, bytes) else source.read_bytes())
    if (base / INDEX_NAME).is_file():
        shutil.copyfile(base / INDEX_NAME, partial / INDEX_NAME)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


# ---- The files of a Hugging Face directory that are not weights, and tensors in the form that is written


_MODEL_FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json")
_TEMPLATE = "chat_template.jinja"
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", _TEMPLATE,
)  # fmt: skip
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def side_files(model: Path, tokenizer: Path, template: str | None = None) -> dict[str, bytes | Path]:
    """Files beside the weights: the model's configuration and the tokenizer's files.

    `template`: the job's chat template, which stands in the tokenizer's place: whoever serves the model renders by it.
    """
    wanted = [(model, _MODEL_FILES), (tokenizer, _TOKENIZER_FILES)]
    found: dict[str, bytes | Path] = {
        name: home / name for home, names in wanted for name in names if (home / name).is_file()
    }
    if template is None and (tokenizer / MORE_TEMPLATES).is_dir():  # as one text, for whoever reads no folder
        template = chat_template_of(tokenizer)
    return found if template is None else {**found, _TEMPLATE: template.encode()}


def score_config(config: Mapping[str, Any], ends: Collection[int]) -> bytes:
    """config.json of a reward model: sequence classification with one label, of the start model's shape.

    transformers takes a sequence's score at its last token that is no padding: a padding token that also ends an answer
    is left out, and transformers then refuses batches instead of scoring another token.
    """
    pad = config.get("pad_token_id")
    changed = {
        **config,
        "architectures": [score_architecture(config)],
        "id2label": {"0": "score"},
        "label2id": {"score": 0},
        "pad_token_id": None if pad in ends else pad,
    }
    return json.dumps(changed, indent=2).encode()


def sources(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[TensorSource]:
    """Tensors on the CPU as name, dtype, shape and bytes, without another copy."""
    for name, tensor in tensors:
        yield (
            name,
            _DTYPES[tensor.dtype],
            tuple(tensor.shape),
            memoryview(tensor.flatten().view(torch.uint8).numpy().data),
        )
