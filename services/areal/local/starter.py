"""A new project: recipe, job, a test of the recipe, and a small task that trains as it is.

Owns which files a project begins with, by kind. They are texts in `starters/`; `$name` and the like are filled in.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from areal.errors import ConfigError

_TEXTS = Path(__file__).with_name("starters")
_SUFFIX = ".txt"
_OWN_START = "runs/{name}-start/model"

KINDS: dict[str, tuple[str, str]] = {
    "task": ("A reward of one number scores each answer.", "`reward`: what an answer is worth"),
    "reward": ("The reward has parts, each plotted by itself.", "`reward`: the parts of what an answer is worth"),
    "environment": ("An environment answers each try.", "`Reversing`: your environment's `reset` and `step`"),
    "agent": ("The agent is a program of yours that speaks OpenAI's chat API.", "`ReverseAgent`: your agent"),
}
"""Of each kind what it is, and what of `recipe.py` is to be changed."""


def begin(kind: str, directory: Path, model: str | None = None) -> list[Path]:
    """Write the files of a project of `kind` into `directory`; answers them.

    `model`: of one's own, instead of the small one that `start.yaml` teaches. Raises ConfigError when the directory
    holds one of the files, or has no name that a job can have.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", directory.absolute().name.lower()).strip("-")[:33]
    if not re.match(r"[a-z]", name):
        raise ConfigError(f"{directory} gives no name for a job", fix="name a directory that begins with a letter")
    what, recipe = KINDS[kind]
    filled = {"name": name, "model": model or _OWN_START.format(name=name), "what": what, "recipe": recipe}
    texts = {text.name.removesuffix(_SUFFIX): text for part in ("common", kind) for text in (_TEXTS / part).iterdir()}
    if there := sorted(file for file in texts if (directory / file).exists()):
        raise ConfigError(
            f"{directory} holds {', '.join(there)} already", fix="name a new directory: nothing is written over"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for file, text in sorted(texts.items()):
        (directory / file).write_text(Template(text.read_text()).substitute(filled))
    return [directory / file for file in sorted(texts)]
