"""What pods read at start: an immutable ConfigMap named by its content, kept while pods run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from areal_operator.operator.children import JobBlueprint, finish_job, foundation, prepare_job, workloads
from areal_operator.operator.children.files import files_name, job_files_map, mounted_by
from support.cluster_jobs import quickstart_wanted

Json = dict[str, Any]


def shortened(w: JobBlueprint) -> JobBlueprint:
    """The same job with a hot field changed, or read by a newer operator: its file has another content."""
    spec = w.resolved.spec
    fewer = spec.model_copy(update={"algorithm_block": spec.algorithm.model_copy(update={"max_steps": 3})})
    job = w.resolved.job.model_copy(update={"spec": fewer})
    return replace(w, resolved=w.resolved.model_copy(update={"job": job}))


def volumes_of(objects: list[Json]) -> set[str]:
    templates = [one["spec"]["template"]["spec"] for one in objects if "template" in one.get("spec", {})]
    return {volume["configMap"]["name"] for spec in templates for volume in spec["volumes"] if volume["name"] == "job"}


def test_all_pods_of_a_job_read_one_map_that_is_named_by_its_content_and_never_changes() -> None:
    w = quickstart_wanted()
    files = job_files_map(w)
    assert files is not None
    assert files["immutable"] is True
    assert files in foundation(w)
    assert volumes_of([*workloads(w), prepare_job(w), finish_job(w)]) == {files["metadata"]["name"]}
    other = job_files_map(shortened(w))
    assert other is not None
    assert other["metadata"]["name"] != files["metadata"]["name"]


def test_pods_that_run_go_on_with_the_map_that_they_began_with() -> None:
    w = quickstart_wanted()
    began = files_name(w)
    running = workloads(w)
    assert mounted_by(running) == began
    later = replace(shortened(w), files=mounted_by(running))
    assert workloads(later) == running, "no pod is replaced for it"
    assert volumes_of([finish_job(later)]) == {began}
    assert not [one for one in foundation(later) if "resolved.json" in one.get("data", {})], "nothing is rewritten"


def test_a_job_that_was_at_rest_reads_what_it_says_now() -> None:
    w = quickstart_wanted()
    resting = workloads(replace(w, replicas=dict.fromkeys(w.replicas, 0)))
    assert mounted_by(resting) == ""
    resumed = replace(shortened(w), files=mounted_by(resting))
    assert files_name(resumed) != files_name(w)
    assert job_files_map(resumed) in foundation(resumed)
