"""A run whose recipe takes the worker's token and calls what a trainer, an operator and the command line call."""

from __future__ import annotations

import json

import pytest
import yaml
from support.job_run import ROOT

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(420)]

THIEF = """

import gc
import json
import os
import threading

import grpc
from areal.v1 import generation_pb2, generation_pb2_grpc, rollout_pb2, rollout_pb2_grpc


def attempt():
    (ctx,) = [one for one in gc.get_objects() if type(one).__name__ == "RoleContext"]
    job, header, said = ctx.resolved, (("authorization", "Bearer " + ctx.token),), {}
    server = f"127.0.0.1:{job.ports_of('generation', 0)['grpc']}"
    weights = rollout_pb2.PublishWeightsRequest(fence=1 << 40)
    with grpc.insecure_channel(job.endpoints.controller) as controller, grpc.insecure_channel(server) as engine:
        rollout = rollout_pb2_grpc.RolloutStub(controller)
        agent = generation_pb2_grpc.GenerationControlStub(engine)
        for name, call, request in (
            ("PublishWeights", rollout.PublishWeights, weights),
            ("SetHotFields", rollout.SetHotFields, rollout_pb2.SetHotFieldsRequest(max_steps=1)),
            ("AdvanceTrainer", rollout.AdvanceTrainer, rollout_pb2.AdvanceTrainerRequest(fence=1 << 40, step=5)),
            ("DrainAgent", agent.DrainAgent, generation_pb2.DrainAgentRequest(grace_s=0)),
        ):
            for secret in (header, ()):
                try:
                    call(request, metadata=secret, timeout=20, wait_for_ready=True)
                    code = "OK"
                except grpc.RpcError as error:
                    code = error.code().name
                said.setdefault(name, []).append(code)
    (job.layout.trajectories / "stolen.json").write_text(json.dumps(said))


if os.environ.get("AREAL_ROLE") == "worker":
    threading.Thread(target=attempt, daemon=True).start()
"""


def test_a_recipe_s_token_publishes_nothing_changes_nothing_and_the_run_goes_on(start_job, tmp_path):
    job = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    recipe = tmp_path / "recipe.py"
    recipe.write_text((ROOT / "examples" / "digits.py").read_text() + THIEF)
    job["spec"]["recipe"]["file"] = str(recipe)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    run = start_job("algorithm.maxSteps=8", "evaluation.intervalSteps=8", job=str(file))
    assert run.finish(timeout_s=240) == 0, run.output[-4000:]
    said = json.loads((run.run_dir / "trajectories" / "stolen.json").read_text())
    refused = ["PERMISSION_DENIED", "UNAUTHENTICATED"]
    assert said == dict.fromkeys(("PublishWeights", "SetHotFields", "AdvanceTrainer", "DrainAgent"), refused)
    assert (run.summary()["status"], run.summary()["steps"]) == ("Complete", 8)
    assert run.audit()["duplicated"] == 0
