"""Command table: of every command the module that has it, by name, and its line in the help.

Nothing is imported before it is asked for: help is instant, and the core has no arrow to the packages beside it. A
module has its commands in a typer application named `app`.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("areal.cli.jobs", "Run a job on this machine, and watch it."),
    "new": ("areal.cli.models", "Begin a project of your own that trains as it is."),
    "study": ("areal.cli.jobs", "Run variants with several seeds, and rank them."),
    "check": ("areal.cli.jobs", "Validate a job file and explain it."),
    "try": ("areal.cli.jobs", "Play one row through a job's workflow and reward."),
    "convert": ("areal.cli.convert", "Turn a configuration of AReaL, verl, TRL or OpenRLHF into a job."),
    "prepare": ("areal.cli.jobs", "Write the snapshots of a job's datasets."),
    "init-model": ("areal.cli.models", "Make a small model with random weights."),
    "serve": ("areal.cli.models", "Serve a model by OpenAI's and Anthropic's APIs."),
    "chat": ("areal.cli.chat", "Talk to a model in the terminal."),
    "status": ("areal.cli.runs", "Show what every role of a run waits for."),
    "logs": ("areal.cli.runs", "Show what all roles of a run logged."),
    "runs": ("areal.cli.runs", "List the runs on this disk."),
    "clean": ("areal.cli.runs", "Free the disk of what ended runs leave."),
    "compare": ("areal.cli.runs", "Set runs beside each other."),
    "why": ("areal_view.commands", "Say in one sentence why a run waits."),
    "plan": ("areal_view.commands", "Tell the throughput on N GPUs, and the best split."),
    "view": ("areal_view.commands", "Show runs as a web page on this machine."),
    "audit": ("areal.cli.runs", "Prove that every group was used exactly once."),
    "report": ("areal_view.commands", "Write report.html of a run again."),
    "export": ("areal_view.commands", "Write recorded samples as a file, or send figures to W&B, MLflow, Trackio."),
    "submit": ("areal_operator.commands", "Put a job on a Kubernetes cluster, with its files."),
    "pull": ("areal_operator.commands", "Fetch a job's run and model from a cluster."),
    "jobs": ("areal_operator.commands", "List a cluster's jobs, and volumes that outlived theirs."),
    "operator": ("areal_operator.commands", "Run RLJobs on Kubernetes (the chart starts this)."),
    "jobs-page": ("areal_view.commands", "Show the jobs of a cluster as a web page."),
    "chaos": ("areal.cli.runs", "Kill or stop roles of a run, and measure what it costs."),
    "set": ("areal.cli.runs", "Change a run that goes on."),
    "eval": ("areal_judge.commands", "Measure a model on a public test set."),
    "reward": ("areal_judge.commands", "Judge programs in the sandbox."),
}
HIDDEN = frozenset({"init-model", "operator", "jobs-page"})  # what the chart, the Makefile and tests start


def load(entry: str) -> Any:
    """Object that `module:name` names; imports the module."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


class LoadedCommands(Mapping[str, Any]):
    """The parser's commands by their names, those of the table made when they are asked for, and `others`."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._made = dict(others)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            import typer

            module, _ = COMMANDS[name]
            self._made[name] = typer.main.get_group(load(f"{module}:app")).commands[name]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*COMMANDS, *self._made)))

    def __len__(self) -> int:
        return len(COMMANDS.keys() | self._made.keys())
