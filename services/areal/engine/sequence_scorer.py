"""Scorer of a reward model: prompts with their answers to one number each, by sequence classification of Hugging Face.

Runs in a process of the reward service's pool, which kills it at a deadline. A payload is a batch of answers; each is
written as `areal.workflow.examples` writes the answers of pairs, so a model scores what it was trained on.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from areal.errors import DataError
from areal.workflow.examples import answered
from areal.workflow.tokenizer import Tokenizer


class SequenceScorer:
    """One model on the CPU, in float32."""

    def __init__(self, path: Path) -> None:
        auto: Any = AutoModelForSequenceClassification
        try:
            self._model: Any = auto.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(f"the reward model in {path} can't be loaded: {error}", fix="check its files") from error
        self._vocabulary = int(self._model.config.vocab_size)
        self.longest = int(getattr(self._model.config, "max_position_embeddings", 0) or 1 << 24)

    @torch.inference_mode()
    def scores(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """The score of each sequence of token ids, at its last token."""
        used = {token for sequence in sequences for token in sequence}
        padding = next(token for token in range(self._vocabulary + 1) if token not in used)
        if padding == self._vocabulary:  # every token of the vocabulary is in the batch: nothing can pad it
            return [score for sequence in sequences for score in self._batch([sequence], None)]
        return self._batch(sequences, padding)

    def _batch(self, sequences: Sequence[Sequence[int]], padding: int | None) -> list[float]:
        """transformers finds a sequence's last token by the padding, so a token is taken that no sequence has."""
        self._model.config.pad_token_id = padding
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        ids = torch.full((len(sequences), int(lengths.max())), padding or 0)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = torch.tensor(sequence)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        found: list[float] = self._model(input_ids=ids, attention_mask=mask).logits[:, 0].tolist()
        return found


def make_judge(model: str, max_tokens: str, chat_template: str) -> Callable[[Any], Any]:
    """Loads the model and returns what scores a batch: of each answer `["score", x]` or `[kind, message, fix]`.

    `max_tokens` and `chat_template` are empty where the job doesn't say.
    """
    path = Path(model)
    scorer, tokenizer = SequenceScorer(path), Tokenizer.from_dir(path)
    longest = min(int(max_tokens or scorer.longest), scorer.longest)
    template = None if not chat_template else chat_template == "True"

    def judge(payload: list[dict[str, Any]]) -> list[list[Any]]:
        results: list[list[Any]] = []
        sequences: dict[int, list[int]] = {}
        for place, item in enumerate(payload):
            try:
                whole = answered(item["row"], item["completion"], tokenizer, chat_template=template).cut(longest)
            except DataError as error:
                results.append(["data", error.message, error.fix])
                continue
            sequences[place] = whole.ids.tolist()
            results.append([])
        if sequences:
            for place, score in zip(sequences, scorer.scores(list(sequences.values())), strict=True):
                results[place] = _checked(score, model)
        return results

    return judge


def _checked(score: float, model: str) -> list[Any]:
    if math.isfinite(score):
        return ["score", score]
    return ["infra", f"the reward model in {model} scored {score}", "look at its weights: they are not finite"]
