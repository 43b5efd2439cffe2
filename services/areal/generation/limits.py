"""Request validation: limits that hold before the engine sees a request.

An id outside the vocabulary kills stock SGLang.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from areal.errors import DataError
from areal.image_shape import ImageShape
from areal.spec.model_families import routing
from areal.v1 import generation_pb2 as wire
from areal.values.generation import as_ids
from areal.values.images import IMAGE, Image
from areal.values.routes import RouteShape


@dataclass(frozen=True)
class ModelLimits:
    """Sizes of the served model."""

    vocab: int
    context: int
    images: ImageShape | None = None  # of a model that reads images
    routes: RouteShape | None = None  # of a model with experts

    @classmethod
    def from_dir(cls, path: Path) -> "ModelLimits":
        """From a model's config.json."""
        try:
            config = json.loads((path / "config.json").read_text())
            text = config.get("text_config", config)
            longest = text.get("max_position_embeddings") or text["model_max_length"]
            told = routing(config)
            routes = RouteShape(*told) if told is not None else None
            return cls(int(text["vocab_size"]), int(longest), ImageShape.from_dir(path, config), routes)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} has no usable config.json: {error}", fix="give the directory of a Hugging Face model"
            ) from error


def read_ids(start: wire.GenerateStart, limits: ModelLimits) -> list[int]:
    """The request's ids. Raises DataError, in words for the request's owner, for anything the engine can't do."""
    if len(start.token_ids) % 4:
        raise DataError("token_ids is no array of int32")
    ids = np.frombuffer(start.token_ids, dtype="<i4")
    if not ids.size:
        raise DataError("a generation needs at least one prompt token", fix="give the model something to continue")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= limits.vocab:
        raise DataError(
            f"token id {low if low < 0 else high} is outside the vocabulary of {limits.vocab}",
            fix="use the model's own tokenizer",
        )
    sampling = start.sampling
    if sampling.max_new_tokens < 1:
        raise DataError("max_new_tokens must be at least 1")
    if ids.size + sampling.max_new_tokens > limits.context:
        raise DataError(
            f"{ids.size} tokens and {sampling.max_new_tokens} new ones exceed the model's context of {limits.context}",
            fix="lower rollout.sampling.maxNewTokens or shorten the prompt",
        )
    if sampling.temperature < 0 or not 0 <= sampling.top_p <= 1:
        raise DataError(f"temperature {sampling.temperature} and top_p {sampling.top_p} are no sampling parameters")
    if start.adapter or any(each.kind != IMAGE for each in start.attachments):
        raise DataError("this server takes neither adapters nor attachments other than images")
    values: list[int] = ids.tolist()
    return values


def read_images(start: wire.GenerateStart, limits: ModelLimits) -> tuple[tuple[Image, ...], list[int]]:
    """The request's images, and its ids with one placeholder for each, as engines take them. Raises DataError."""
    images, ids = tuple(Image(each.data) for each in start.attachments), as_ids(np.frombuffer(start.token_ids, "<i4"))
    if limits.images is None and images:
        raise DataError("this model reads no images", fix="drop them, or serve a model that does")
    if images and limits.images is not None and limits.images.video in ids:  # SGLang would lose its whole batch
        raise DataError("a prompt with images has a placeholder of a video", fix="leave the turn out that wrote it")
    return images, (ids if limits.images is None else limits.images.collapsed(ids, images)).tolist()


def sampling_params(start: wire.GenerateStart) -> dict[str, Any]:
    """The request's sampling in SGLang's words."""
    sampling = start.sampling
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p or 1.0,
        "top_k": sampling.top_k or -1,
        "ignore_eos": sampling.ignore_eos,
    }
    if sampling.min_new_tokens:
        params["min_new_tokens"] = sampling.min_new_tokens
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        params["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.HasField("seed"):
        params["sampling_seed"] = sampling.seed - 2**64 if sampling.seed >= 2**63 else sampling.seed
    return params
