"""Types of what `areal` loads at first use."""

from areal_view.library import Run as Run
from areal_view.library import run as run
from areal_view.run_files import RunFiles as RunFiles
from areal_view.run_files import Table as Table
from areal_view.run_files import open_run as open

__version__: str
__all__ = ["Run", "RunFiles", "Table", "__version__", "open", "run"]
