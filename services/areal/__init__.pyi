"""Types of what `areal` loads at first use."""

from areal_operator.job_handle import ClusterRun as ClusterRun
from areal_operator.job_handle import submit as submit
from areal_view.library import Run as Run
from areal_view.library import Table as Table
from areal_view.library import open_run as open
from areal_view.library import run as run

__version__: str
__all__ = ["ClusterRun", "Run", "Table", "__version__", "open", "run", "submit"]
