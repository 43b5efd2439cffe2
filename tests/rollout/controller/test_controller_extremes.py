"""Whatever numbers and names a peer or caller sends, one pass of the core stays short."""

from __future__ import annotations

import time

from areal.rollout.contract.values import (
    EvaluationAnswer,
    FailureKind,
    GroupInHand,
    SampleDone,
    SampleFailure,
    WorkerReport,
    WorkReport,
)
from areal.rollout.controller.inputs import (
    AdvanceTrainer,
    AttachTrainer,
    Input,
    KeptOnDisk,
    ProposeTombstone,
    PublishedWeights,
    PublishWeights,
    RefusalReport,
    ServerBeat,
    ServerReport,
    SetHotFields,
    TrainerBeat,
    TrainerReport,
    WorkerBeat,
)
from controller_bench import started
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

PASS_CPU_S = 0.5  # processor time; a pass takes about a millisecond, one that counts up to 2³¹ takes minutes
MOST_DECISIONS = 4000

numbers = st.one_of(st.sampled_from((-1, 0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1)), st.integers(-(2**63), 2**63 - 1))
small = st.integers(0, 3)  # groups, samples and fences that exist
some = st.one_of(numbers, small)
floats = st.floats()
names = st.one_of(st.sampled_from(("w", "s", "")), st.text(max_size=8))
flags = st.booleans()
policies = st.one_of(st.builds("{}.f{}".format, some, some), names)

done = st.builds(SampleDone, some, some, floats, some, some, some, some, flags, some, flags)
failure = st.builds(SampleFailure, some, some, some, st.sampled_from(FailureKind), names, names, names)
evaluated = st.builds(EvaluationAnswer, names, some, floats, some, some, st.sampled_from(FailureKind), names, names)
held = st.builds(GroupInHand, some, some, st.lists(some, max_size=3).map(tuple), some, flags)


def few(values: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(values, max_size=3).map(tuple)


report = st.builds(WorkReport, few(done), few(failure), few(evaluated), few(some), st.none() | few(held))
worker = st.builds(WorkerReport, names, names, some, report, some, some)
server = st.builds(
    ServerReport, names, names, names, policies, some, flags, flags, flags, some, some, some, some,
    st.none() | st.builds(RefusalReport, policies, some, names), names, some,
)  # fmt: skip
published = st.builds(PublishedWeights, policies, some, some, names, names, flags, names)
inputs: st.SearchStrategy[Input] = st.one_of(
    st.builds(WorkerBeat, worker),
    st.builds(ServerBeat, server),
    st.builds(TrainerBeat, st.builds(TrainerReport, some, some, some, flags, some)),
    st.builds(AttachTrainer, some, some),
    st.builds(AdvanceTrainer, some, some, some),
    st.builds(PublishWeights, some, published),
    st.builds(ProposeTombstone, some, some, names, names),
    st.builds(SetHotFields, st.none() | some, st.none() | some, st.none() | some),
    st.just(KeptOnDisk()),
)


@given(st.lists(inputs, min_size=1, max_size=6), st.floats(0, 1e6))
@settings(max_examples=examples(300))
def test_extreme_inputs_neither_break_the_core_nor_keep_it_busy(items: list[Input], wait_s: float) -> None:
    core = started().core
    for item in items:
        began = time.process_time()
        core.take(item, 0.0)
        decided = list(core.decide(0.0))
        assert time.process_time() - began < PASS_CPU_S, item
        assert len(decided) < MOST_DECISIONS, item
    began = time.process_time()
    core.tick(wait_s)
    assert len(list(core.decide(wait_s))) < MOST_DECISIONS
    assert time.process_time() - began < PASS_CPU_S
