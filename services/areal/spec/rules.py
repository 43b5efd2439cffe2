"""Rules over several fields: how one is declared, and what comes of it.

Each rule exists once, with its Python predicate and the same condition in CEL for the API server. A rule whose CEL is
None needs facts that no API server has (the dataset's rows, the recipe's names).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import ModuleType

from areal.spec.job import RLJob
from areal.yaml_file.table import read_table


class Severity(StrEnum):
    ERROR = "error"  # the job can't run, or would train something else than it says
    WARNING = "warning"  # it runs; somebody should know


@dataclass(frozen=True)
class Facts:
    """What is known beside the job file. None: not known, so rules that need it say nothing."""

    recipe_defines_reward: bool | None = None
    recipe_workflows: frozenset[str] | None = None  # names of workflows in the recipe
    recipe_agents: frozenset[str] | None = None  # names of what can be an agent in the recipe
    agent_program: bool | None = None  # whether the agent's command can be started on this machine, which runs it
    own_python: bool | None = None  # whether the Python of the agent or the environment is on this machine
    train_rows: int | None = None
    train_columns: frozenset[str] | None = None
    evaluation_rows: int | None = None
    longest_prompt_tokens: int | None = None
    longest_prompt_place: str = ""  # file and line
    prompts_too_long: int = 0  # how many leave no room for an answer
    tokenizer_vocabulary: int | None = None  # largest token id + 1
    model_vocabulary: int | None = None
    model_context_tokens: int | None = None
    model_route_bytes: int = 0  # a token, that samples bring for routing replay
    image_bytes: int = 0  # of a row's images, the most that was seen: each sample brings them
    model_attention_heads: int | None = None
    model_key_value_heads: int | None = None
    model_parameters: int | None = None
    model_matrices: frozenset[str] | None = None  # last part of the names of modules with a matrix: q_proj, …


Predicate = Callable[[RLJob, Facts], str | None]  # Says what is wrong, with the arithmetic; None when nothing is


@dataclass(frozen=True)
class Rule:
    """One rule. `field` is where it is reported; `says` is the rule in a sentence, true of every accepted job."""

    id: str
    field: str
    says: str
    fix: str
    cel: str | None
    severity: Severity
    broken: Predicate
    each: bool = False  # the condition in CEL is asked of each value of the mapping at `field`, not of the whole job


@dataclass(frozen=True)
class Finding:
    """A rule that a job breaks. `where` is `file:line` or the override that gave the field."""

    rule: str
    severity: Severity
    field: str
    message: str
    fix: str
    where: str = ""

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.where, self.field) if part)
        return f"{self.severity}: {place}: {self.message} [{self.rule}]\n  fix: {self.fix}"


def rule(
    says: str,
    *,
    cel: str | None = None,
    severity: Severity = Severity.ERROR,
    every_training: bool = False,
    each: bool = False,
    id: str = "",
    field: str = "",
    fix: str = "",
) -> Callable[[Predicate], Rule]:
    """Declare a rule around its predicate, whose name is the rule's id (`mini_batches`: mini-batches).

    It is asked of RL jobs only, unless it says something of every training. Its field and fix stand in `rules.yaml`,
    but for a rule that makes them itself.
    """

    def declare(broken: Predicate) -> Rule:
        name = id or broken.__name__.replace("_", "-")
        place, remedy = (field, fix) if fix else _FIXES[name]
        if every_training:
            return Rule(name, place, says, remedy, cel, severity, broken, each)

        def of_rl(job: RLJob, facts: Facts) -> str | None:
            return broken(job, facts) if job.spec.is_rl and job.spec.algorithm_block is not None else None

        return Rule(name, place, says, remedy, cel and f"{_NOT_RL} || ({cel})", severity, of_rl)

    return declare


warning = partial(rule, severity=Severity.WARNING)
rule_of_every_training = partial(rule, every_training=True)

_FIXES: Mapping[str, tuple[str, str]] = {  # a rule's field and fix, by its id
    id: (field, fix) for field, fixes in read_table("areal.spec", "rules.yaml").items() for id, fix in fixes.items()
}
_NOT_RL = "has(self.spec.training) || !has(self.spec.algorithm)"


def rules_in(module: ModuleType) -> list[Rule]:
    """The rules that a module declares, in the order in which they stand there."""
    return [value for value in vars(module).values() if isinstance(value, Rule)]
