"""Parameters of one cell. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from areal_judge.sandbox.cell.confinement import Confinement
from areal_judge.sandbox.cell.means import Means
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.values import Layers

SETUP_FAILED = 120
CONTROL, ENTRY, RULES, FIRST_FREE = 3, 4, 5, 6  # a cell's descriptors before it has a run


@dataclass(frozen=True)
class CellPlace:
    """One cell to make."""

    shape: CellShape  # of its first program
    uid: int
    means: Means
    layers: Layers
    confinement: Confinement
    rules: int | None  # a ruleset made ahead, where all cells share one
    join: tuple[int, ...]  # descriptors of the cgroups' process lists

    @property
    def inside(self) -> bool:
        """Whether cells are namespaces with a warden; otherwise a cell is the program's process itself."""
        return self.means.namespaces and self.layers.namespaces

    @property
    def held(self) -> bool:
        """Whether programs are held by Landlock."""
        return self.layers.landlock and self.means.landlock_abi > 0
