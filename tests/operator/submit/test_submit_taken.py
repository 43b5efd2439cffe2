"""Fields that other tools set: kept, left to an autoscaler, or taken over when asked. Without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from areal_operator.kube.errors import apply_body, apply_query, conflicts, error_of
from areal_operator.submit.cluster import TakenError
from areal_operator.submit.submit import _apply_job as apply_job

Json = dict[str, Any]

JOB: Json = {
    "kind": "RLJob",
    "metadata": {"name": "digits", "namespace": "team"},
    "spec": {"generation": {"replicas": 2, "engine": {}}, "algorithm": {"maxSteps": 10}},
}
SCALED = {
    "reason": "FieldManagerConflict",
    "message": 'conflict with "horizontal-pod-autoscaler" with subresource "scale" using areal.dev/v1alpha1',
    "field": ".spec.generation.replicas",
}
EDITED = {
    "reason": "FieldManagerConflict",
    "message": 'conflict with "kubectl-edit" using areal.dev/v1alpha1',
    "field": ".spec.algorithm.maxSteps",
}


class Server:
    """Refuses to take fields over that a job still names, unless by force."""

    def __init__(self, *causes: Json) -> None:
        self._causes = causes
        self.applied: list[Json] = []

    def apply(self, obj: Json, *, force: bool = True, dry_run: bool = False) -> Json:
        named = [cause for cause in self._causes if _has(obj, cause["field"])]
        if named and not force:
            body = {"reason": "Conflict", "message": "Apply failed", "details": {"causes": named}}
            raise TakenError("apply RLJob digits", conflicts(error_of(409, body, what="PATCH")))
        self.applied.append(obj)
        return obj


def _has(obj: Any, field: str) -> bool:
    for part in field.strip(".").split("."):
        if part not in obj:
            return False
        obj = obj[part]
    return True


def test_a_field_that_somebody_else_set_is_named_with_its_owner_and_not_taken() -> None:
    server = Server(EDITED)
    with pytest.raises(TakenError, match=r"spec\.algorithm\.maxSteps is set by kubectl-edit") as caught:
        apply_job(JOB, server, False, lambda text: None)  # type: ignore[arg-type]
    assert "--take-over" in caught.value.fix
    assert server.applied == []


def test_the_fleets_size_is_left_to_an_autoscaler() -> None:
    server, said = Server(SCALED), []
    kept = apply_job(JOB, server, False, said.append)  # type: ignore[arg-type]
    assert kept["spec"]["generation"] == {"engine": {}}
    assert said == ["spec.generation.replicas stays as horizontal-pod-autoscaler set it"]


def test_an_autoscaler_excuses_no_other_conflict() -> None:
    with pytest.raises(TakenError, match="kubectl-edit"):
        apply_job(JOB, Server(SCALED, EDITED), False, lambda text: None)  # type: ignore[arg-type]


def test_fields_are_taken_over_when_asked() -> None:
    assert apply_job(JOB, Server(SCALED, EDITED), True, lambda text: None) == JOB  # type: ignore[arg-type]


def test_a_conflict_of_another_kind_takes_nothing() -> None:
    assert conflicts(error_of(409, {"reason": "Conflict", "message": "object was modified"}, what="PATCH")) == ()


def test_characters_beyond_the_basic_plane_are_sent_as_they_are() -> None:
    """YAML refuses the surrogate pairs that ASCII JSON writes."""
    assert "😀".encode() in apply_body({"data": {"recipe.py": "# 😀"}})
    assert apply_query("me", force=False, dry_run=True)["force"] == "false"
