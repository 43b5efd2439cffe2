"""Every metric of the catalogue is set somewhere."""

from __future__ import annotations

from pathlib import Path

from areal.observe import catalog

_OF_JOBS = "areal_rljob_"  # the operator writes these names without it


def test_every_catalogued_metric_has_an_emitter() -> None:
    root = Path(catalog.__file__).parents[3]
    files = [*root.glob("services/**/*.py"), *root.glob("trainer/**/*.py")]
    sources = "".join(path.read_text() for path in files if path != Path(catalog.__file__))
    assert {name for name in catalog.CATALOG if f'"{name.removeprefix(_OF_JOBS)}"' not in sources} == set()
