"""Tries a job's hooks before a run, in a process of its own: `python -m areal_trainer.hooks_probe RECIPE HOOKS`.

Its input is the job's spec as JSON; it prints one JSON line last, whatever the files themselves print. A file that the
job doesn't name is an empty word.
"""

import json
import sys
from pathlib import Path

from areal.dataflow.own import own_graph
from areal.errors import ArealError
from areal.spec.job import JobSpec

from areal_trainer.hooks import HookFacts, try_hooks
from areal_trainer.settings import overrides

_VOCABULARY = 32  # of the made-up batch


def main() -> None:
    """In the probing process."""
    recipe, hooks = (Path(word) if word else None for word in sys.argv[1:3])
    answer = {"kind": "", "message": "", "fix": ""}
    try:
        spec = JobSpec.model_validate_json(sys.stdin.read())
        user = overrides(hooks, recipe)
        own = own_graph(user.graph, spec, user.hooks) if user.graph is not None else None
        try_hooks(user.compute_advantages, user.compute_loss, _VOCABULARY, HookFacts.of(spec, own))
    except ArealError as error:
        answer = {"kind": error.kind.value, "message": error.message, "fix": error.fix}
    print(f"\n{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
