"""The API server knows RLJobs: it takes a good one (a dry run) and refuses a bad one by its field."""

import copy
import sys

from cluster import call, namespace

GOOD = {
    "apiVersion": "areal.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "helm-test"},
    "spec": {
        "model": {"path": "/models/start"},
        "recipe": {"file": "/recipes/recipe.py"},
        "dataset": {"train": {"jsonl": "/data/train.jsonl"}},
        "rollout": {"maxSampleTokens": 64, "sampling": {"maxNewTokens": 8}},
        "algorithm": {"name": "GRPO", "groupSize": 8, "batchSize": 64, "maxSteps": 10},
    },
}


def dry_run(job):
    """What server-side apply would say."""
    path = f"/apis/areal.dev/v1alpha1/namespaces/{namespace()}/rljobs/{job['metadata']['name']}"
    query = "?dryRun=All&fieldManager=helm-test&force=true&fieldValidation=Strict"
    return call("PATCH", path + query, job, "application/apply-patch+yaml")


def main():
    status, answer = dry_run(GOOD)
    if status not in (200, 201):
        print(f"a good RLJob was refused ({status}): {answer.get('message')}")
        return 1
    print("a good RLJob is taken")
    bad = copy.deepcopy(GOOD)
    bad["spec"]["algorithm"]["groupSize"] = -1
    status, answer = dry_run(bad)
    message = str(answer.get("message"))
    if status not in (400, 422) or "groupSize" not in message:
        print(f"a bad RLJob was not refused by its field ({status}): {message}")
        return 1
    print(f"a bad RLJob is refused: {message}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
