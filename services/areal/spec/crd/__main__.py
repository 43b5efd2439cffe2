"""`python -m areal.spec.crd [--check] [directory]`: writes the definitions, or says which differ."""

import sys
from pathlib import Path
from typing import Any

import yaml

from areal.spec.crd.definition import definitions

DIRECTORY = Path("charts/areal/files/crds")
_HEAD = "# Made from the models of the job file by `make crd`.\n"


class _Plain(yaml.SafeDumper):
    """Lists indented below their key, and no aliases: what is equal is written again."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


def render(definition: dict[str, Any]) -> str:
    """One definition as its file's text."""
    return _HEAD + yaml.dump(definition, Dumper=_Plain, sort_keys=False, width=1 << 16, allow_unicode=True)


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    named = [argument for argument in arguments if argument != "--check"]
    directory = Path(named[0]) if named else DIRECTORY
    wanted = {directory / f"{name}.yaml": render(definition) for name, definition in definitions().items()}
    differ = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in differ:
            print(f"{path} differs from the code: run `make crd`", file=sys.stderr)
        return int(bool(differ))
    directory.mkdir(parents=True, exist_ok=True)
    for path in differ:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
