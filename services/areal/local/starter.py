"""A new project: recipe, job, a test of the recipe, and a small task that trains as it is; or a copy of the examples.

Owns which files a project begins with, by kind. They are texts in `starters/`; `$name` and the like are filled in.
"""

import re
from pathlib import Path
from string import Template

from areal.errors import ConfigError

_TEXTS = Path(__file__).with_name("starters")
_SUFFIX = ".txt"
_PACKAGE = Path(__file__).parents[1]
EXAMPLES = "examples"
"""The kind of project that is a copy of all examples, with the paths and commands that the documentation shows."""

_LISTS = ("agent-clients.txt", "environment-verifiers.txt")  # packages of examples that run in a Python of their own
_OF_CHECKOUT = {  # lines of the examples that only a checkout can follow, and what does the same elsewhere
    r"make quickstart": r"python examples/digits_data.py data/digits\n#     areal init-model --out models/new-1m\n"
    r"#     areal run examples/sft.yaml",
    r"tools/venv (\S+)": r"python3 -m venv .cache/\1 && .cache/\1/bin/pip install -r requirements/\1.txt",
}
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


def copy_examples(directory: Path) -> list[Path]:
    """Copy the examples, their data scripts among them, below `directory`, from where they run; answers the jobs.

    Raises ConfigError when some are there.
    """
    for part, names in ((EXAMPLES, ("*",)), ("requirements", _LISTS)):
        if (directory / part).exists():
            raise ConfigError(f"{directory / part} is there already", fix="name a new directory")
        (directory / part).mkdir(parents=True)
        source = next(place for place in (_PACKAGE / part, _PACKAGE.parents[1] / part) if place.is_dir())
        for file in (file for name in names for file in source.glob(name) if file.is_file()):
            text = file.read_text()
            for line, instead in _OF_CHECKOUT.items():
                text = re.sub(rf"^#     {line}$", f"#     {instead}", text, flags=re.M)
            (directory / part / file.name).write_text(text)
    return sorted((directory / EXAMPLES).glob("*.yaml"))
