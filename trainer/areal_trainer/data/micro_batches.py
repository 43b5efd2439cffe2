"""Micro-batches: packed rows as tensors, with positions and block-causal attention.

A row holds several bundles one after another. Sequences of a group share their prompt, so it is computed once: a bundle
is the common prefix and then each sequence's rest, a branch. A branch sees the prefix and itself, at the positions it
would have alone: every log-probability and gradient is what separate sequences give, for fewer tokens. Sequences
without a common prefix, or too long for a row together, become bundles of one.

A sequence's last token is no input: nothing is predicted from it. Columns of the loss are not packed; `token_index`
says where in the batch's columns each predicted token is.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from areal.values.images import Image
from areal.values.routes import MISSING
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.data.batch import TokenBatch


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass needs. Padding forms a bundle of its own, so no row of the mask is empty."""

    input_ids: Tensor  # [rows, length]
    position_ids: Tensor  # [rows, length]
    bundle_ids: Tensor  # [rows, length], −1 is padding
    branch_ids: Tensor  # [rows, length], 0 is the prefix that all branches of a bundle see
    copies: Tensor  # [rows, length]: the sequences that have the token as an input, 0 is padding
    select: Tensor  # [predicted]: flat positions whose output predicts a trained token
    targets: Tensor  # [predicted]: that token's id
    token_index: Tensor  # [predicted]: that token's place in the batch's columns
    routes: Tensor | None = None  # [rows, length, bytes], on the host: the experts that each token went to, where known
    image_positions: Tensor | None = None  # [3, rows, length], on the host: where some token stands for an image
    images: tuple[Image, ...] = ()  # in the order of their tokens

    def attention_mask(self) -> Tensor:
        """[rows, 1, length, length] bool, True where a token may look: its bundle, not later, prefix or own branch."""
        same = self.bundle_ids[:, :, None] == self.bundle_ids[:, None, :]
        seen = self.branch_ids[:, None, :]
        mine = (seen == 0) | (seen == self.branch_ids[:, :, None])
        return same.logical_and_(mine).tril_()[:, None]

    def padded(self, multiple: int) -> "MicroBatch":
        """The same with rows of a length that `multiple` divides."""
        length = self.input_ids.shape[1]
        more = -length % multiple
        if not more:
            return self
        fill = {"input_ids": 0, "position_ids": 0, "bundle_ids": -1, "branch_ids": 0, "copies": 0}
        longer: dict[str, Any] = {
            name: torch.nn.functional.pad(getattr(self, name), (0, more), value=at) for name, at in fill.items()
        }
        routes = self.routes
        if routes is not None:
            longer["routes"] = torch.nn.functional.pad(routes, (0, 0, 0, more), value=MISSING)
        return replace(self, **longer, select=self.select + self.select // length * more)

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on `device`, by one copy that nothing waits for."""
        if device.type == "cpu":
            return self
        fields = [getattr(self, name) for name in _FIELDS]
        flat = sent(torch.cat([field.reshape(-1) for field in fields]), device)
        parts: Any = torch.split(flat, [field.numel() for field in fields])
        return MicroBatch(*(part.view(field.shape) for part, field in zip(parts, fields, strict=True)))


@dataclass(frozen=True)
class Segments:
    """Of a micro-batch's flat tokens, rows · length: where each segment lies, and behind which prompt."""

    bounds: tuple[tuple[int, int], ...]
    after: tuple[int | None, ...]


def segments_of(micro: MicroBatch) -> Segments:
    """The segments with the same meaning as `micro.attention_mask()`."""
    rows, length = micro.bundle_ids.shape
    row = np.repeat(np.arange(rows), length)
    labels = np.stack([row, micro.bundle_ids.numpy().ravel(), micro.branch_ids.numpy().ravel()])
    begins = np.flatnonzero(np.concatenate([[True], (labels[:, 1:] != labels[:, :-1]).any(axis=0)])).tolist()
    named = [tuple(labels[:, begin].tolist()) for begin in begins]
    prompts = {name[:2]: place for place, name in enumerate(named) if name[2] == 0}
    after = [prompts.get(name[:2]) if name[2] else None for name in named]
    return Segments(tuple(zip(begins, [*begins[1:], rows * length], strict=True)), tuple(after))


def sent(whole: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on `device`; the host doesn't wait for the copy."""
    return whole.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else whole.to(device)


_FIELDS = ("input_ids", "position_ids", "bundle_ids", "branch_ids", "copies", "select", "targets", "token_index")


def rank_micro_batches(
    batch: TokenBatch,
    chosen: NDArray[np.int64],
    predicted: NDArray[np.bool_],
    *,
    rank: int,
    world_size: int,
    micro_batch_tokens: int,
    pack_length: int | None,
) -> list[MicroBatch]:
    """This rank's share of the sequences `chosen`, as many micro-batches as every other rank has.

    Ranks meet in collectives, so a rank with less to do gets empty micro-batches at the end.

    Args:
        predicted: [tokens], True where the log-probability is wanted
    """
    longest = int(batch.lengths[chosen].max(initial=2)) - 1
    length = row_length(longest, pack_length)
    rows_each = max(1, micro_batch_tokens // length)
    made = bundles(batch, chosen, length)
    shares = balanced([bundle.length for bundle in made], world_size)
    packed = [pack([made[place].length for place in share], length) for share in shares]
    count = max(1, *(-(-len(rows) // rows_each) for rows in packed))
    mine = [[made[shares[rank][place]] for place in row] for row in packed[rank]]
    each = max(1, -(-len(mine) // count))  # even, instead of full ones and a small rest
    return [_micro_batch(batch, mine[i * each : (i + 1) * each], predicted, length) for i in range(count)]


def _micro_batch(
    batch: TokenBatch, rows: "Sequence[Sequence[Bundle]]", predicted: NDArray[np.bool_], length: int
) -> MicroBatch:
    if len(rows) <= 1:
        length = trimmed(sum(bundle.length for row in rows for bundle in row), length)
    layout = _MicroBatchArrays((max(1, len(rows)), length))
    for row, members in enumerate(rows):
        start = 0
        for number, bundle in enumerate(members):
            layout.place(batch, bundle, number, row, start, predicted)
            start += bundle.length
    return layout.finish(batch)


class _MicroBatchArrays:
    """Arrays of a micro-batch while they are filled."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._length = shape[1]
        self._ids, self._positions, self._branches, self._copies = (np.zeros(shape, np.int64) for _ in range(4))
        self._bundles = np.full(shape, -1, np.int64)
        self._routes: NDArray[np.uint8] | None = None
        self._image_positions: NDArray[np.int64] | None = None
        self._images: list[Image] = []
        self._select: list[NDArray[np.int64]] = []
        self._index: list[NDArray[np.int64]] = []

    def place(
        self, batch: TokenBatch, bundle: "Bundle", number: int, row: int, start: int, predicted: NDArray[np.bool_]
    ) -> None:
        """Write the prefix and the branches of `bundle` from `start` on."""
        prefix = bundle.prefix
        self._bundles[row, start : start + bundle.length] = number
        self._copies[row, start : start + bundle.length] = [len(bundle.sequences)] * prefix + [1] * (
            bundle.length - prefix
        )
        self._write(batch, row, start, int(batch.offsets[bundle.sequences[0]]), prefix)
        at = start + prefix
        for branch, sequence in enumerate(bundle.sequences, 1):
            begin, end = int(batch.offsets[sequence]), int(batch.offsets[sequence + 1])
            rest = max(end - 1 - begin - prefix, 0)
            self._write(batch, row, at, begin + prefix, rest, behind=prefix)
            self._branches[row, at : at + rest] = branch
            source = np.flatnonzero(predicted[begin + 1 : end])  # predicted from this token of the sequence
            shift = np.where(source < prefix, start, at - prefix)
            self._select.append(source + shift + row * self._length)
            self._index.append(source + (begin + 1))
            at += rest

    def _write(self, batch: TokenBatch, row: int, at: int, first: int, count: int, behind: int = 0) -> None:
        """Write `count` tokens of the batch, whose positions begin `behind` so many."""
        self._ids[row, at : at + count] = batch.token_ids[first : first + count]
        self._positions[row, at : at + count] = np.arange(behind, behind + count)
        if len(batch.routes):
            if self._routes is None:
                self._routes = np.full((*self._ids.shape, batch.routes.shape[1]), MISSING, np.uint8)
            self._routes[row, at : at + count] = batch.routes[first : first + count]
        if len(batch.image_positions):
            if self._image_positions is None:
                self._image_positions = np.zeros((3, *self._ids.shape), np.int64)
            self._image_positions[:, row, at : at + count] = batch.image_positions[first : first + count].T
            self._images += batch.images_of(first, first + count)

    def finish(self, batch: TokenBatch) -> MicroBatch:
        """As tensors."""
        none = np.zeros(0, np.int64)
        index = np.concatenate(self._index) if self._index else none
        select = np.concatenate(self._select) if self._select else none
        arrays = (self._ids, self._positions, self._bundles, self._branches, self._copies)
        beside = (select, batch.token_ids[index], index, self._routes, self._image_positions)
        tensors: Any = [None if array is None else torch.from_numpy(array) for array in (*arrays, *beside)]
        return replace(MicroBatch(*tensors), images=tuple(self._images))


_WORTH_SHARING = 2  # tokens; below, nothing is saved


@dataclass(frozen=True)
class Bundle:
    """Sequences of one group. The first `prefix` tokens of all are the same."""

    sequences: tuple[int, ...]
    prefix: int
    length: int  # inputs in all: the prefix once, and of each sequence the rest without its last token


def bundles(batch: TokenBatch, chosen: NDArray[np.int64], capacity: int) -> list[Bundle]:
    """Bundles of the `chosen` sequences, none longer than `capacity` unless a single sequence is."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for sequence in chosen.tolist():
        low, high = np.searchsorted(batch.image_places[:, 0], batch.offsets[sequence : sequence + 2])
        images = batch.image_places[low:high, 1].tobytes()  # alike tokens may stand for others
        groups.setdefault((int(batch.group_ids[sequence]), images), []).append(sequence)
    found: list[Bundle] = []
    for members in groups.values():
        prefix = _common_prefix(batch, members) if len(members) > 1 else 0
        for alike in _routed_alike(batch, members, prefix):
            found += _split(batch, alike, prefix if prefix >= _WORTH_SHARING else 0, capacity)
    return found


def _split(batch: TokenBatch, members: list[int], prefix: int, capacity: int) -> list[Bundle]:
    found: list[Bundle] = []
    current: list[int] = []
    length = prefix
    for sequence in members:
        branch = _inputs(batch, sequence) - prefix
        if current and (prefix == 0 or length + branch > capacity):
            found.append(Bundle(tuple(current), prefix, length))
            current, length = [], prefix
        current.append(sequence)
        length += branch
    return [*found, Bundle(tuple(current), prefix, length)]


def _routed_alike(batch: TokenBatch, members: list[int], prefix: int) -> Iterable[list[int]]:
    """Parts of a group whose common prefix went to the same experts: not all were sampled by one policy."""
    parts: dict[bytes, list[int]] = {}
    for sequence in members:
        first = int(batch.offsets[sequence])
        parts.setdefault(batch.routes[first : first + prefix].tobytes(), []).append(sequence)
    return parts.values()


def _common_prefix(batch: TokenBatch, members: list[int]) -> int:
    first = batch.token_ids[batch.offsets[members[0]] : batch.offsets[members[0] + 1]]
    common = len(first) - 1
    for sequence in members[1:]:
        start = int(batch.offsets[sequence])
        common = min(common, _inputs(batch, sequence))
        differs = np.flatnonzero(first[:common] != batch.token_ids[start : start + common])
        if differs.size:
            common = int(differs[0])
    return max(common, 0)


def _inputs(batch: TokenBatch, sequence: int) -> int:
    """Tokens that something is predicted from: all but the last."""
    return max(int(batch.offsets[sequence + 1] - batch.offsets[sequence]) - 1, 0)


# ---- Sequence packing: assigns sequences to ranks, mini-batches and rows
# Pure, and the same on every rank.
#
# Promises: every sequence lands in exactly one row; a row's sequences never exceed its length; the split depends on
# nothing but lengths, counts and the seed, so a replayed step is cut the same way.


ROW_TOKENS = 128  # attention costs tokens × row length: short rows are fastest on a CPU, shorter ones hold no group
_ALIGN = 8  # row lengths are rounded up to this, which vectorised kernels like
_ALIGN_LONG = 256  # and long ones to this: few different lengths, so that an allocator finds its blocks again


def row_length(longest: int, pack_length: int | None) -> int:
    """Tokens a row: what the job says, or as short as is useful; never shorter than the longest sequence."""
    wanted = max(longest, pack_length or ROW_TOKENS)
    return -(-wanted // _ALIGN) * _ALIGN


def trimmed(filled: int, length: int) -> int:
    """Length of a micro-batch's only row, of which `filled` tokens are used: without the padding to `length`."""
    multiple = _ALIGN if length < 16 * _ALIGN_LONG else _ALIGN_LONG
    return min(length, max(1, -(-filled // multiple)) * multiple)


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of positions in `lengths`: best fit, longest first. Raises ValueError for a length over `capacity`."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in order:
        length = lengths[index]
        if length > capacity:
            raise ValueError(f"a sequence of {length} tokens does not fit a row of {capacity}")
        place = bisect_left(free, (length, -1))
        if place == len(free):
            rows.append([index])
            insort(free, (capacity - length, len(rows) - 1))
        else:
            left, row = free.pop(place)
            rows[row].append(index)
            insort(free, (left - length, row))
    return rows


def balanced(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Split into `parts` of nearly equal tokens: longest first, each to the part with the fewest."""
    loads = [0] * parts
    split: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        lightest = loads.index(min(loads))
        loads[lightest] += lengths[index]
        split[lightest].append(index)
    return [sorted(part) for part in split]


def mini_batches(group_ids: NDArray[np.int64], count: int, seed: tuple[int, int]) -> list[NDArray[np.int64]]:
    """Positions of the sequences of each PPO mini-batch: whole groups, dealt by a permutation of `seed` (job, step).

    Fewer groups than mini-batches give fewer mini-batches: an empty one would be an update without data.
    """
    groups = np.unique(group_ids)
    if count > 1:
        groups = np.random.default_rng(seed).permutation(groups)
    parts = [part for part in np.array_split(groups, count) if len(part)]
    return [np.flatnonzero(np.isin(group_ids, part)) for part in parts]
