"""Runs a notebook's code cells in IPython, inside a running event loop, as Jupyter does.

python notebook.py FILE.ipynb [--skip TAG] [--set NAME=VALUE]... prints the variables that a `--print EXPRESSION` names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--skip", default="")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--print", default="None")
    told = parser.parse_args()
    shell = InteractiveShell.instance()
    for cell in json.loads(told.file.read_text())["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] != "code" or told.skip in tags:
            continue
        text = "".join(cell["source"])
        if "parameters" in tags:
            text += "\n" + "\n".join(told.set)
        (await shell.run_cell_async(text, transformed_cell=shell.transform_cell(text))).raise_error()
    print("\nPRINTED", json.dumps(eval(told.print, shell.user_ns)), flush=True)


asyncio.run(main())
