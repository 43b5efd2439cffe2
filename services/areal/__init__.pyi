"""Types of what `areal` loads at first use."""

from areal.library import Run as Run
from areal.library import run as run
from areal.run_files import RunFiles as RunFiles
from areal.run_files import Table as Table
from areal.run_files import open_run as open

__version__: str
__all__ = ["Run", "RunFiles", "Table", "__version__", "open", "run"]
