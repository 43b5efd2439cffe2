"""Refuses an uninstall while RLJobs are unfinished. Where the API is gone there is nothing to refuse."""

import argparse
import sys

from cluster import call


def unfinished(jobs):
    """Those that are neither complete nor failed, as namespace/name."""
    names = []
    for job in jobs:
        conditions = job.get("status", {}).get("conditions", [])
        ended = any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions)
        if not ended:
            names.append(f"{job['metadata']['namespace']}/{job['metadata']['name']}")
    return sorted(names)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--namespace", action="append", default=[])
    asked = parser.parse_args()
    paths = [f"/apis/areal.dev/v1alpha1/namespaces/{name}/rljobs" for name in asked.namespace]
    jobs = []
    for path in paths or ["/apis/areal.dev/v1alpha1/rljobs"]:
        status, answer = call("GET", path)
        if status == 404:
            continue
        if status != 200:
            print(f"cannot list RLJobs ({status}): {answer.get('message')}")
            return 1
        jobs += answer["items"]
    names = unfinished(jobs)
    if names:
        shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        print(f"{len(names)} RLJobs are not finished: {shown}")
        print("wait for them or delete them, or go past this question with `helm uninstall --no-hooks`")
        return 1
    print("no unfinished RLJobs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
