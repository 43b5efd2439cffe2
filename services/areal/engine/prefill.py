"""Filling the cache from prompts, and scoring prompts.

Owns which prompts share their keys and values: equal prefixes are computed once and copied, within an admission and
from rows that run. Nothing is shared across a weight swap: the scheduler clears `Prefixes` there.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from areal.engine.module_model import ServedModel
from areal.engine.rows import Running

LOGIT_BUDGET = 1 << 23  # logits held at once while scoring: 32 MiB


class Prefixes:
    """Which running requests hold the keys and values of which prefix, computed with the weights in use."""

    def __init__(self) -> None:
        self._holders: dict[bytes, list[Running]] = {}

    def row_of(self, prefix: bytes) -> int | None:
        """A row whose cache starts with this prefix."""
        holders = self._holders.get(prefix)
        return holders[0].row if holders else None

    def remember(self, item: Running, prefix: bytes) -> None:
        """`item` holds this prefix now."""
        item.prefix = prefix
        self._holders.setdefault(prefix, []).append(item)

    def forget(self, item: Running) -> None:
        """`item` leaves its row."""
        holders = self._holders.get(item.prefix)
        if holders is not None and item in holders:
            holders.remove(item)
            if not holders:
                del self._holders[item.prefix]

    def clear(self) -> None:
        """The weights changed: nothing computed before may be shared."""
        self._holders.clear()


def fill(
    model: ServedModel, weights: Any, cache: Any, prefixes: Prefixes, items: list[Running], token_budget: int
) -> None:
    """Fill the rows of `items` with all of their tokens but the last, computing each distinct prefix once."""
    if not model.rewinds:
        prefixes = Prefixes()  # a row that went on no longer holds its beginning: only rows filled here are copied
    model.wants_routes = any(item.request.return_routes for item in items)
    by_row, routes = {item.row: item for item in items}, dict[int, NDArray[np.uint8]]()
    fresh: list[tuple[int, NDArray[np.int64]]] = []
    copies: list[tuple[int, int, int]] = []  # (source row, target row, length)
    for item in items:
        tokens = _tokens(item)[:-1]
        if not len(tokens):
            continue
        key = tokens.tobytes() + "".join(image.key for image in item.request.images).encode()
        source = prefixes.row_of(key)
        if source is None:
            fresh.append((item.row, tokens))
        else:
            copies.append((source, item.row, len(tokens)))
        prefixes.remember(item, key)
    for group in _by_length(fresh, token_budget, model.rewinds):
        padded = _pad([tokens for _, tokens in group])
        model.images = [by_row[row].request.images for row, _ in group]
        model.prefill(weights, cache, padded, torch.tensor([row for row, _ in group]), hidden=False)
        if model.routes is not None:
            routes |= zip((row for row, _ in group), np.split(model.routes, len(group)), strict=True)
    for source, row, _ in (*((row, row, 0) for row, _ in fresh), *copies):
        if source in routes:
            by_row[row].add_routes(routes[source], 0)
    if copies:
        sources, targets, lengths = zip(*copies, strict=True)
        cache.copy_rows(torch.tensor(sources), torch.tensor(targets), max(lengths))


def score(model: ServedModel, weights: Any, items: list[Running], token_budget: int) -> None:
    """Set `input_logprobs` of each item: of its prompt's tokens after `logprob_start_len`, at temperature 1.

    And `input_tops`, the likeliest tokens in their places.
    """
    pending = [(index, item.request.input_ids) for index, item in enumerate(items)]
    for group in _by_length(pending, token_budget, model.rewinds):
        hidden = model.prefill(weights, None, _pad([tokens for _, tokens in group]), None, hidden=True)
        assert hidden is not None
        for place, (index, tokens) in enumerate(group):
            start = items[index].request.logprob_start_len
            items[index].input_logprobs, items[index].input_tops = _next_token_logprobs(
                model, weights, hidden[place, start : len(tokens) - 1], torch.from_numpy(tokens[start + 1 :])
            )


def _next_token_logprobs(
    model: ServedModel, weights: Any, hidden: torch.Tensor, targets: torch.Tensor
) -> tuple[list[float], list[tuple[int, float]]]:
    """Of each target, and the likeliest token in its place with its own."""
    chunk = max(1, LOGIT_BUDGET // model.config.vocab)
    told: list[float] = []
    tops: list[tuple[int, float]] = []
    for first in range(0, len(targets), chunk):
        logprobs = model.logits(weights, hidden[first : first + chunk]).log_softmax(-1)
        told += logprobs.gather(-1, targets[first : first + chunk, None])[:, 0].tolist()
        best = logprobs.max(-1)
        tops += zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return told, tops


def _tokens(item: Running) -> NDArray[np.int64]:
    if not len(item.made_ids):
        return item.request.input_ids
    return np.concatenate([item.request.input_ids, item.made_ids])


def _by_length(
    entries: list[tuple[int, NDArray[np.int64]]], token_budget: int, padded: bool
) -> list[list[tuple[int, NDArray[np.int64]]]]:
    """Group sequences so that padding less than doubles the work, or isn't needed where it does harm, and no group
    exceeds the budget by more than one."""
    groups: list[list[tuple[int, NDArray[np.int64]]]] = []
    for entry in sorted(entries, key=lambda pair: -len(pair[1])):
        longest = len(groups[-1][0][1]) if groups else 0
        near = longest < 2 * len(entry[1]) + 16 if padded else longest == len(entry[1])
        if groups and near and longest * (len(groups[-1]) + 1) <= token_budget:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def _pad(sequences: list[NDArray[np.int64]]) -> torch.Tensor:
    """Int64 [sequences, longest], padded on the right with id 0, whose effect nobody sees."""
    padded = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
    for row, tokens in enumerate(sequences):
        padded[row, : len(tokens)] = tokens
    return torch.from_numpy(padded)
