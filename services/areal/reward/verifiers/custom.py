"""`custom`: the recipe's `reward` function, in processes that can be killed."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import orjson

from areal.errors import DataError
from areal.observe.pod_limits import pod_memory_bytes
from areal.observe.waits import WaitRegistry
from areal.reward.scorer_pool.pool import DeadlineHit, KillablePool, Outcome, PoolSize, ScorerAnswer, ScorerCrash
from areal.reward.scorer_pool.process import ScorerCommand
from areal.reward.verifier import Verifier, data_fault, fault_result, row_of_item
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb

_MOST_PROCESSES = 8  # started one by one when items wait: a reward that waits for a network needs more than cores
_QUEUE_S = 120.0  # items may wait this long for a process; then it is our fault, not theirs

SCORER = "areal.reward.scorers.recipe"


class CustomVerifier(Verifier):
    """Scores by the recipe. An exception, a hang or a wrong value is a fault of the data that says so."""

    name = "custom"

    def __init__(
        self,
        recipe: Path,
        *,
        deadline_s: float,
        weights: Mapping[str, float] | None = None,
        size: PoolSize | None = None,
        queue_s: float = _QUEUE_S,
        waits: WaitRegistry | None = None,
    ) -> None:
        most = max(_MOST_PROCESSES, os.cpu_count() or 1)
        command = ScorerCommand(SCORER, (str(recipe), orjson.dumps(weights).decode()))
        self._recipe = recipe
        self._deadline_s = deadline_s
        self._queue_s = queue_s
        self._pool = KillablePool(command, size or PoolSize(least=1, most=most), waits)
        self.slots = self._pool.slots

    async def start(self) -> None:
        """Raises DataError when the recipe fails to import or has no reward."""
        await self._pool.start()

    async def stop(self) -> None:
        await self._pool.stop()

    async def score(self, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        results: list[pb.ScoreResult | None] = [None] * len(items)
        asked, payloads, deadlines = [], [], []
        for index, item in enumerate(items):
            try:
                row_of_item(item)
            except DataError as error:
                results[index] = data_fault(error)
                continue
            asked.append(index)
            payloads.append(
                {
                    "prompt": item.prompt,
                    "completion": item.completion,
                    "prompt_ids": np.frombuffer(item.prompt_ids, dtype="<i4").tolist(),
                    "completion_ids": np.frombuffer(item.completion_ids, dtype="<i4").tolist(),
                    "row": orjson.Fragment(item.row_json),
                }
            )
            deadlines.append(item.deadline_s or self._deadline_s)
        outcomes = await self._pool.run(payloads, deadlines, self._queue_s) if asked else []
        for index, outcome in zip(asked, outcomes, strict=True):
            results[index] = self._result(outcome)
        return [result for result in results if result is not None]

    def _result(self, outcome: Outcome) -> pb.ScoreResult:
        reward, took_s = f"the reward in {self._recipe}", 0.0
        match outcome:
            case ScorerAnswer(["score", score], wall_s):
                return pb.ScoreResult(score=score, wall_s=wall_s)
            case ScorerAnswer(["parts", score, parts], wall_s):
                verdict = common.Verdict(score=score, method=self.name, figures=parts)
                return pb.ScoreResult(verdict=verdict, wall_s=wall_s)
            case ScorerAnswer(["fault", message, fix, trace], wall_s):
                return fault_result(common.FAULT_KIND_DATA, message, fix=fix, traceback=trace, wall_s=wall_s)
            case ScorerAnswer(value):
                return fault_result(common.FAULT_KIND_BUG, f"a scorer answered {value!r:.80}")
            case DeadlineHit(deadline_s):
                said, took_s = f"{reward} did not return within {deadline_s:g} s and was killed", deadline_s
                fix = "make it faster or raise reward.deadlineSeconds"
            case ScorerCrash(how, killed=True):
                limit_gib = pod_memory_bytes() / (1 << 30)
                said = f"the process of {reward} was killed twice ({how.removeprefix('signal ')}): out of memory? "
                said += f"All of the reward service has {limit_gib:.1f} GiB"
                fix = "use less memory for this sample, or give the reward role more"
            case ScorerCrash(how):
                said = f"{reward} ended its process twice on this sample ({how})"
                fix = "look at its last lines in the reward's log; a native library may have crashed"
            case _:
                return fault_result(common.FAULT_KIND_INFRA, outcome.reason, fix="it is tried again")
        return fault_result(common.FAULT_KIND_DATA, said, fix=fix, wall_s=took_s)
