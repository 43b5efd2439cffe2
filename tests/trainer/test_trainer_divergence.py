"""A student's divergence from its teacher against plain Hugging Face and float64, with its gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.divergence import Divergence, TeacherOutputs, chunked_divergence
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.trainings.kinds import Learner
from areal_trainer.trainings.objective import distillation
from support.trainer_parts import batch, tiny_model, whole_model
from torch import Tensor

MEASURES = [
    Divergence(),
    Divergence("forwardKL", temperature=2.0),
    Divergence("reverseKL"),
    Divergence("reverseKL", temperature=0.7),
    Divergence("jsd"),
    Divergence("jsd", temperature=1.5, teacher_share=0.2),
]


def published(measure: Divergence, student: Tensor, teacher: Tensor) -> Tensor:
    """The divergence of two matrices of logits by its formula, in probabilities of float64."""
    pi, t = (torch.softmax(logits.double() / measure.temperature, -1) for logits in (student, teacher))
    share = measure.teacher_share
    m = share * t + (1 - share) * pi
    return {
        "forwardKL": (t * (t / pi).log()).sum(-1),
        "reverseKL": (pi * (pi / t).log()).sum(-1),
        "jsd": share * (t * (t / m).log()).sum(-1) + (1 - share) * (pi * (pi / m).log()).sum(-1),
    }[measure.loss]


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_its_slope_is_the_published_formula_differentiated(measure: Divergence) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(1, 7, dtype=torch.float64) * 3, torch.randn(1, 7, dtype=torch.float64) * 3
    both = [torch.log_softmax(logits / measure.temperature, -1) for logits in (student, teacher)]
    torch.testing.assert_close(measure.value(*both), published(measure, student, teacher), rtol=1e-12, atol=1e-12)
    for token in range(7):
        step = torch.zeros(1, 7, dtype=torch.float64)
        step[0, token] = 1e-5
        up, down = (published(measure, student + sign * step, teacher) for sign in (1, -1))
        assert float(measure.slope(*both)[0, token]) == pytest.approx(float(up - down) / 2e-5, abs=1e-8)


def test_each_option_changes_the_divergence_and_equal_models_have_none() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 1, 7, dtype=torch.float64)
    values = [float(published(measure, student, teacher)) for measure in [*MEASURES, Divergence("jsd", 1.5)]]
    assert len({round(value, 9) for value in values}) == len(values)
    for measure in MEASURES:
        same = torch.log_softmax(student, -1)
        assert float(measure.value(same, same)) == pytest.approx(0.0, abs=1e-12)
        assert float(measure.slope(same, same).abs().max()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("vocabulary", "of_teacher"), [(20, 20), (20, 23), (23, 20)])
@pytest.mark.parametrize("chunk", [3, None])
@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_chunks_make_the_value_and_gradient_of_the_whole_matrices(measure, chunk, vocabulary, of_teacher) -> None:
    torch.manual_seed(1)
    hidden, weight = torch.randn(11, 8, requires_grad=True), torch.randn(vocabulary, 8, requires_grad=True)
    taught = TeacherOutputs(torch.randn(11, 5), torch.randn(of_teacher, 5))
    scale = torch.randn(11)
    values = chunked_divergence(hidden, weight, taught, measure, chunk=chunk)
    (values * scale).sum().backward()

    exact = [tensor.detach().double().requires_grad_(True) for tensor in (hidden, weight)]
    teacher = (taught.hidden.double() @ taught.weight.double().T)[:, :20]
    wanted = published(measure, (exact[0] @ exact[1].T)[:, :20], teacher)
    (wanted * scale.double()).sum().backward()
    torch.testing.assert_close(values.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hidden.grad.double(), exact[0].grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight.grad.double(), exact[1].grad, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def teacher_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of other sizes than the student, with the same token ids."""
    return tiny_model(tmp_path_factory.mktemp("teacher"), seed=1, hidden=48, layers=3)


def learner(student: Path, teacher: PolicyEngine, ranks: RankGroup, measure: Divergence, budget: int) -> Learner:
    engine = PolicyEngine(student, ModelOptions(), ranks)
    return Learner(engine, lambda micro: engine.divergence(micro, teacher, measure), budget, 16)


def test_packed_rows_are_as_far_from_the_teacher_as_alone_and_one_step_comes_nearer(
    model_path: Path, teacher_path: Path, ranks: RankGroup
) -> None:
    tokens, measure = batch(6, 4), Divergence("forwardKL", temperature=1.3)
    teacher = PolicyEngine(teacher_path, ModelOptions(), ranks)
    before = {name: shard.detach().clone() for name, shard in teacher.state().items() if name.startswith("model.")}
    whole, cut = (learner(model_path, teacher, ranks, measure, budget) for budget in (9999, 32))
    packed = whole.outputs(tokens)
    np.testing.assert_allclose(cut.outputs(tokens), packed, atol=1e-6)
    models = [whole_model(path).double().eval() for path in (model_path, teacher_path)]
    for s in range(tokens.sequences):
        part = slice(tokens.offsets[s], tokens.offsets[s + 1])
        ids = torch.from_numpy(tokens.token_ids[part])[None]
        with torch.no_grad():
            alone = published(measure, *(model(input_ids=ids, use_cache=False).logits[0, :-1] for model in models))
        wanted = tokens.trainable()[part][1:]
        np.testing.assert_allclose(packed[part][1:][wanted], alone.numpy()[wanted], atol=1e-5)

    aim = distillation(tokens).weights
    updates = [one.update(tokens, aim, 1e-2) for one in (whole, cut)]
    assert updates[0].loss == pytest.approx(float(packed[tokens.trainable()].mean()), rel=1e-5)
    assert updates[1].loss == pytest.approx(updates[0].loss, rel=1e-5)
    assert updates[1].grad_norm == pytest.approx(updates[0].grad_norm, rel=1e-4)
    assert float((whole.outputs(tokens) * aim).sum()) < updates[0].loss
    after = teacher.state()
    assert all(torch.equal(after[name].to_local(), shard.to_local()) for name, shard in before.items())


def test_a_student_that_is_its_teacher_has_nothing_to_learn(model_path: Path, ranks: RankGroup) -> None:
    tokens, teacher = batch(3, 2), PolicyEngine(model_path, ModelOptions(), ranks)
    same = learner(model_path, teacher, ranks, Divergence("reverseKL"), 9999)
    assert float(np.abs(same.outputs(tokens)).max()) < 1e-6
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64,
        pack_length=16,
    )  # fmt: skip
    assert all(not teacher.taught(micro).hidden.requires_grad for micro in micros)
    assert same.update(tokens, distillation(tokens).weights, 1e-3).grad_norm < 1e-5
