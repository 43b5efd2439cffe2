"""Sharing of equal blocks between parsed jobs: most jobs have the same settings in most blocks, and one copy of them.

Blocks never change, so nobody sees which copy a job has. A block is forgotten with the last job that has it.
"""

from weakref import WeakValueDictionary

from areal.spec.block import SpecBlock
from areal.spec.job import RLJob

Blocks = WeakValueDictionary[str, SpecBlock]


def shared(job: RLJob, blocks: Blocks) -> RLJob:
    """The same job, of the blocks in `blocks` as far as it has equal ones. The others are added."""
    return job.model_copy(update={"spec": _shared(job.spec, blocks)})


def _shared(block: SpecBlock, blocks: Blocks) -> SpecBlock:
    inner = {name: value for name in type(block).model_fields if isinstance(value := getattr(block, name), SpecBlock)}
    # What was not given follows from the class: which fields were given is part of a block's meaning.
    key = f"{type(block).__qualname__} {block.model_dump_json(exclude_unset=True)}"
    if (known := blocks.get(key)) is not None:
        return known
    own = block.model_copy()
    vars(own).update({name: _shared(value, blocks) for name, value in inner.items()})
    return blocks.setdefault(key, own)
