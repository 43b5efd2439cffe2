"""A small software-engineering task: find the bug of a repository with a shell, and have hidden calls judge the repair.

    areal run examples/swe_tiny.yaml

The model edits files and runs the repository's tests in a box. Its repository is then brought out, and hidden calls are
made to it in a box of its own; what they should return never enters either box, so that no program can know it.
"""

import json

from areal.workflow.box_tools import BoxToolsWorkflow

TASK = (
    "The Python package in /box has a bug, which its tests in test_numbers.py show. Find it, repair {module}, and see "
    "that `python3 -m unittest` passes. Answer `done` when it does."
)


class SweTinyWorkflow(BoxToolsWorkflow):
    """One repository a row: `files` by path, `module` to repair, and hidden `calls` with what they `expect`."""

    name = "swe-tiny"

    def files(self, row):
        return {path: text.encode() for path, text in row["files"].items()}

    def messages(self, row):
        return [{"role": "user", "content": TASK.format(module=row["module"])}]

    async def judge(self, row, box):
        """The share of hidden calls that return what they should."""
        try:
            repaired = await box.read(row["module"])
        except FileNotFoundError:
            return 0.0
        name = row["module"].removesuffix(".py")
        source = (
            f"import json, {name} as repaired\n"
            f"calls = json.loads({json.dumps(row['calls'])!r})\n"
            "returned = []\n"
            "for function, arguments in calls:\n"
            "    try:\n"
            "        returned.append(getattr(repaired, function)(*arguments))\n"
            "    except Exception:\n"
            "        returned.append(None)\n"
            "print(json.dumps(returned))\n"
        )
        async with box.another(work_s=60, files={row["module"]: repaired}) as apart:
            ran = await apart.python(source, timeout_s=10)
        try:
            returned = json.loads(ran.output)
        except ValueError:
            return 0.0
        if not isinstance(returned, list) or len(returned) != len(row["expect"]):
            return 0.0
        return sum(got == wanted for got, wanted in zip(returned, row["expect"], strict=True)) / len(returned)
