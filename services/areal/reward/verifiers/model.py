"""`model`: the score of a reward model, in a process of its own that can be killed.

Answers go to it in batches. Whatever keeps it from scoring is a fault of the infrastructure, never a score: a model has
no opinion of an answer that it couldn't read in time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from areal.errors import DataError
from areal.observe.waits import WaitRegistry
from areal.reward.scorer_pool.pool import DeadlineHit, KillablePool, Outcome, PoolSize, ScorerAnswer, ScorerCrash
from areal.reward.scorer_pool.process import ScorerCommand
from areal.reward.verifier import Verifier, data_fault, fault_result, row_of_item
from areal.spec.serving import ModelReward
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb

SCORER = "areal.engine.sequence_scorer"
_TOGETHER = 16  # answers of a batch: enough that weights are read once for many tokens
_QUEUE_S = 120.0
START_S = 600.0
"""To load: a large model is read from a slow disk. The role's launcher waits at least as long."""
_KINDS = {"data": common.FAULT_KIND_DATA, "infra": common.FAULT_KIND_INFRA}


class ModelVerifier(Verifier):
    """Scores by a sequence-classification model with one label."""

    name = "model"
    slots = _TOGETHER

    def __init__(
        self, path: Path, settings: ModelReward, *, deadline_s: float, waits: WaitRegistry | None = None
    ) -> None:
        template = "" if settings.chat_template is None else str(settings.chat_template)
        command = ScorerCommand(SCORER, (str(path), str(settings.max_tokens or ""), template))
        self._deadline_s = deadline_s
        self._pool = KillablePool(command, PoolSize(start_s=START_S), waits)

    async def start(self) -> None:
        """Loads the model. Raises DataError when that can't be."""
        await self._pool.start()

    async def stop(self) -> None:
        await self._pool.stop()

    async def score(self, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        results: list[pb.ScoreResult | None] = [None] * len(items)
        asked: list[int] = []
        for index, item in enumerate(items):
            try:
                row_of_item(item)
                asked.append(index)
            except DataError as error:
                results[index] = data_fault(error)
        asked.sort(key=lambda index: len(items[index].completion))  # of one length, little is padding
        batches = [asked[start : start + _TOGETHER] for start in range(0, len(asked), _TOGETHER)]
        payloads = [
            [{"completion": items[at].completion, "row": orjson.Fragment(items[at].row_json)} for at in batch]
            for batch in batches
        ]
        deadlines = [sum(items[at].deadline_s or self._deadline_s for at in batch) for batch in batches]
        outcomes = await self._pool.run(payloads, deadlines, _QUEUE_S) if batches else []
        for batch, outcome in zip(batches, outcomes, strict=True):
            for at, result in zip(batch, results_of(outcome, len(batch)), strict=True):
                results[at] = result
        return [result for result in results if result is not None]


def results_of(outcome: Outcome, count: int) -> list[pb.ScoreResult]:
    """The results of a batch of `count` answers."""
    match outcome:
        case ScorerAnswer(list() as found, wall_s) if len(found) == count:
            return [_result(one, wall_s / count) for one in found]
        case ScorerAnswer(value):
            return [fault_result(common.FAULT_KIND_BUG, f"a scorer answered {value!r:.80}")] * count
        case DeadlineHit(deadline_s):
            said = f"the reward model scored {count} answers in no {deadline_s:g} s and was killed"
            fix = "raise reward.deadlineSeconds, or lower reward.model.maxTokens"
        case ScorerCrash(how):
            said = f"the reward model's process ended twice on {count} answers ({how}): out of memory?"
            fix = "give the reward role more memory, or lower reward.model.maxTokens"
        case _:
            said, fix = outcome.reason, "it is tried again"
    return [fault_result(common.FAULT_KIND_INFRA, said, fix=fix)] * count


def _result(found: Any, wall_s: float) -> pb.ScoreResult:
    match found:
        case ["score", score]:
            return pb.ScoreResult(score=score, wall_s=wall_s)
        case [str(kind), message, fix] if kind in _KINDS:
            return fault_result(_KINDS[kind], message, fix=fix, wall_s=wall_s)
        case _:
            return fault_result(common.FAULT_KIND_BUG, f"a scorer answered {found!r:.80}")
