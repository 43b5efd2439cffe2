"""Token truth: what an episode returns is what its engine streamed.

Pure. An answer is known with its input; a span of a returned sequence must be one of an answer's, at the place where
that answer began: the same ids before it, the same ids, log-probabilities and spans in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from areal.errors import DataError
from areal.values.generation import GenerationResult, Ids, Sampling, TokenSpan
from areal.values.images import Image
from areal.workflow.episode import Episode, Sequence

_UNTRUE = "return what engine.agenerate answered; tokens of your own go in without a span and with loss_mask 0"
_DISTRIBUTION = {"temperature": "temperature", "top_p": "topP", "top_k": "topK", "min_new_tokens": "min_new_tokens"}


@dataclass(frozen=True)
class StreamedAnswer:
    """One answer as it was streamed to the episode. `other_sampling` names how it was not drawn as the job says."""

    turn: int
    input_ids: Ids
    result: GenerationResult
    other_sampling: str = ""
    images: tuple[Image, ...] = ()


def other_sampling(used: Sampling, job: Sampling) -> str:
    """How the distribution of tokens differs from the job's, in words; empty when it is the same."""
    for field, name in _DISTRIBUTION.items():
        ours, theirs = getattr(used, field), getattr(job, field)
        if ours != theirs:
            return f"{name} {ours}, where the job says {theirs}"
    return ""


def check_streamed(episode: Episode, answers: Iterable[StreamedAnswer]) -> Episode:
    """Refuse with DataError an episode whose sampled tokens are not what was streamed to it.

    Returns the episode with the experts of its tokens, where they were streamed, and its images.
    """
    by_place: dict[int, list[StreamedAnswer]] = {}
    for answer in answers:
        if len(answer.result.output_ids):
            by_place.setdefault(len(answer.input_ids), []).append(answer)
    found = [_check(each, f"sequence {number}", by_place) for number, each in enumerate(episode.sequences)]
    return replace(episode, sequences=tuple(found)) if any(each.routes or each.images for each in found) else episode


def _check(sequence: Sequence, what: str, by_place: dict[int, list[StreamedAnswer]]) -> Sequence:
    """The sequence, with its routes: of each token those under the policy that sampled the next; and its images."""
    routes, each, known = bytearray(), 0, True  # `each`: bytes a token
    images: tuple[Image, ...] = ()
    spans = sorted(sequence.spans, key=lambda span: span.start)
    while spans:
        place = spans[0].start
        candidates = by_place.get(place, [])
        if not candidates:
            raise DataError(f"{what} has a span from token {place} on, where no answer began", fix=_UNTRUE)
        found = [(answer, _difference(sequence, spans, answer)) for answer in candidates]
        answer = next((answer for answer, difference in found if not difference), None)
        if answer is None:
            raise DataError(f"{what} is not what was sampled: {found[0][1]}", fix=_UNTRUE)
        end = place + len(answer.result.output_ids)
        if answer.other_sampling and sequence.loss_mask[place:end].any():
            raise DataError(
                f"{what} trains turn {answer.turn}, which was sampled with {answer.other_sampling}",
                fix="set loss_mask 0 on its tokens, or change rollout.sampling",
            )
        images = answer.images
        known = known and bool(answer.result.routes)
        routes += answer.result.routes[len(routes) :]
        each = len(routes) // (end - 1)
        spans = spans[len(answer.result.spans) :]
    sequence = replace(sequence, images=images) if images else sequence
    if not known or not each:
        return sequence
    return replace(sequence, routes=bytes(routes).ljust(each * len(sequence.input_ids), b"\xff"))


def _difference(sequence: Sequence, spans: list[TokenSpan], answer: StreamedAnswer) -> str:
    """How the sequence differs from the answer, by its first differing token; empty when it doesn't."""
    place, result = len(answer.input_ids), answer.result
    turn = f"turn {answer.turn}"
    if (k := _first(sequence.input_ids[:place], answer.input_ids)) is not None:
        return f"token {k} before {turn} is {sequence.input_ids[k]}, the engine continued {answer.input_ids[k]}"
    here = sequence.input_ids[place : place + len(result.output_ids)]
    if (k := _first(here, result.output_ids)) is not None:
        return f"token {place + k} ({turn}) is {here[k]}, the engine sampled {result.output_ids[k]}"
    if len(here) < len(result.output_ids):
        return f"{turn} ends at token {place + len(here)}, the engine sampled {len(result.output_ids) - len(here)} more"
    logprobs = sequence.logprobs[place : place + len(here)]
    if (k := _first(logprobs, result.logprobs)) is not None:
        return f"token {place + k} ({turn}) has log-probability {logprobs[k]}, the engine said {result.logprobs[k]}"
    expected = [span.shifted(place) for span in result.spans]
    if (wrong := next((k for k, span in enumerate(expected) if k >= len(spans) or spans[k] != span), None)) is not None:
        return f"the span from token {expected[wrong].start} on ({turn}) is not the engine's"
    return ""


def _first(ours: np.ndarray, theirs: np.ndarray) -> int | None:
    """The first place where two arrays differ, as far as the first one reaches."""
    differ = np.flatnonzero(ours != theirs[: len(ours)])
    return int(differ[0]) if len(differ) else None
