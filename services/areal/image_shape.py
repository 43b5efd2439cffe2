"""Placeholders of images in a prompt: how many tokens each image takes, and at which positions they stand.

In a prompt stands the model's placeholder token, once for each vector that its tower makes of an image. That number
follows from the image's width and height alone, so only who computes the vectors decodes pixels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal.errors import DataError
from areal.values.generation import Ids, as_ids
from areal.values.images import Image

_THINNEST = 200  # times as long as wide


@dataclass(frozen=True)
class ImageShape:
    """How a model's processor cuts images: into patches, `merge` by `merge` of which become one token."""

    token: int  # the placeholder
    patch: int  # pixels
    merge: int
    least: int  # pixels of an image, which is scaled to a size between
    most: int
    video: int | None = None  # what stands for a video: none is read here, but SGLang looks for one

    @classmethod
    def from_dir(cls, path: Path, config: Mapping[str, Any]) -> ImageShape | None:
        """Of a model's directory and its config.json; None for a model that reads no images. Raises DataError."""
        from areal.spec.model_families import VISION  # loads what understands jobs: not in a probe

        if config.get("model_type") not in VISION:
            return None
        try:
            named = [path / "preprocessor_config.json", path / "processor_config.json"]
            told = [json.loads(file.read_text()) for file in named if file.is_file()]
            found = {**told[0], **told[0].get("image_processor", {})}
            size = found.get("size") or {}
            least, most = found.get("min_pixels"), found.get("max_pixels")
            return cls(
                int(config["image_token_id"]),
                int(found["patch_size"]),
                int(found["merge_size"]),
                int(size["shortest_edge"] if least is None else least),
                int(size["longest_edge"] if most is None else most),
                config.get("video_token_id"),
            )
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            words = f"{path} reads images, but lacks a usable preprocessor_config.json: {error!r}"
            raise DataError(words, fix="copy it from the released model") from None

    def grid(self, image: Image) -> tuple[int, int, int]:
        """Patches of an image: in time, down, across. Raises DataError for one that no processor takes."""
        (width, height), unit = image.size, self.patch * self.merge
        if max(width, height) > _THINNEST * min(width, height):
            raise DataError(f"an image of {width} × {height} pixels is too thin", fix=f"at most {_THINNEST} times")
        down, across = (round(side / unit) * unit for side in (height, width))
        if down * across > self.most:
            by = math.sqrt(height * width / self.most)
            down, across = (max(unit, math.floor(side / by / unit) * unit) for side in (height, width))
        elif down * across < self.least:
            by = math.sqrt(self.least / (height * width))
            down, across = (math.ceil(side * by / unit) * unit for side in (height, width))
        return 1, down // self.patch, across // self.patch

    def tokens(self, image: Image) -> int:
        """Tokens that stand for an image."""
        return math.prod(self.grid(image)) // self.merge**2

    def expanded(self, ids: Ids, images: Sequence[Image]) -> Ids:
        """A prompt with one placeholder for each image, with as many as each takes. Raises DataError."""
        counts = np.ones(len(ids), np.int64)
        if (places := np.flatnonzero(ids == self.token)).size != len(images):
            words = f"a prompt has {places.size} placeholders for {len(images)} images"
            raise DataError(words, fix="use the model's own chat template and tokenizer")
        counts[places] = [self.tokens(image) for image in images]
        return as_ids(np.repeat(ids, counts))

    def collapsed(self, ids: Ids, images: Sequence[Image]) -> Ids:
        """`expanded` undone."""
        kept = np.ones(len(ids), np.bool_)
        for begin, image in zip(self.begins(ids, images), images, strict=True):
            kept[begin + 1 : begin + self.tokens(image)] = False
        return as_ids(ids[kept])

    def begins(self, ids: Ids | NDArray[np.int64], images: Sequence[Image]) -> list[int]:
        """The first token of each image. Raises DataError where the placeholders are not those of these images."""
        places, counts = np.flatnonzero(np.asarray(ids) == self.token), [self.tokens(image) for image in images]
        if places.size != sum(counts):
            words = f"a sequence has {places.size} placeholders, its {len(images)} images take {sum(counts)}"
            raise DataError(words, fix="leave samples out in which a model wrote a placeholder")
        return [int(places[begin]) for begin in np.cumsum([0, *counts])[:-1]]

    def positions(self, ids: Ids | NDArray[np.int64], images: Sequence[Image]) -> NDArray[np.int64]:
        """Positions in time, down and across of each token, [3, tokens]: an image's are those of its vectors, and text
        goes on behind its longest side. Raises DataError as `begins` does."""
        found = np.empty((3, len(ids)), np.int64)
        done = position = 0
        for begin, image in zip(self.begins(ids, images), images, strict=True):
            time, down, across = self.grid(image)
            sides = (time, down // self.merge, across // self.merge)
            found[:, done:begin] = np.arange(position, position + begin - done)
            position, done = position + begin - done, begin + math.prod(sides)
            found[:, begin:done] = position + np.indices(sides).reshape(3, -1)
            position += max(sides)
        found[:, done:] = np.arange(position, position + len(ids) - done)
        return found
