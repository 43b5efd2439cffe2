"""Message graph of a session: calls with the token ids given and sampled, and the episode they make.

Pure values, shared by the gateway, which grows the graph, and by the workflow, which trains it. Every sampled token is
masked in for exactly one sequence of its sample.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from areal.errors import DataError
from areal.values.generation import GenerationResult, Ids
from areal.workflow import episode
from areal.workflow.episode import Episode, Transcript


@dataclass(frozen=True)
class Node:
    """One answered call: the ids given after its parent's answer (all ids of the prompt for a root), then the answer.

    Calls with the same `question` ask the same thing at the same place: siblings by resampling.
    """

    number: int  # in the order in which the calls were made; a parent's is smaller
    parent: int | None
    given: Ids  # [tokens]
    result: GenerationResult
    question: int
    request: int = -1  # the first node of the request that it answers; itself, where it is the only choice

    @property
    def asked_by(self) -> int:
        """The request that it answers."""
        return self.number if self.request < 0 else self.request


@dataclass(frozen=True)
class SessionEnding:
    """A session at its end: what was sampled, the reward that its agent posted, and how many answers of tools its
    policy wasn't given."""

    nodes: tuple[Node, ...] = ()
    reward: float | None = None
    withheld: int = 0


@dataclass(frozen=True)
class Branches:
    """What became of the nodes: one sequence a leaf, and the answers that nobody took up."""

    episode: Episode
    orphans: int  # answers sampled but in no sequence


def kept(nodes: Sequence[Node]) -> frozenset[int]:
    """The nodes that are trained.

    Of the answers to one question those that a later call continues; if there is none, the choices of its newest
    request.
    """
    continued = {node.parent for node in nodes if node.parent is not None}
    newest = {node.question: node.asked_by for node in sorted(nodes, key=lambda node: node.asked_by)}
    questions_continued = {node.question for node in nodes if node.number in continued}
    return frozenset(
        node.number
        for node in nodes
        if node.number in continued
        or (node.question not in questions_continued and newest[node.question] == node.asked_by)
    )


def path_of(nodes: Iterable[Node], number: int) -> list[Node]:
    """The nodes from the root to `number`."""
    by_number = {node.number: node for node in nodes}
    path = [by_number[number]]
    while (parent := path[-1].parent) is not None:
        path.append(by_number[parent])
    return path[::-1]


def branches_of(nodes: Sequence[Node], reward: float) -> Branches:
    """The episode of a session's nodes, every sequence with the session's reward. Raises DataError without a node."""
    if not nodes:
        raise DataError("the agent ended without a call of the model", fix="send its calls to the base_url it is given")
    trained = kept(nodes)
    inner = {node.parent for node in nodes if node.number in trained}
    owned: set[int] = set()
    sequences = []
    for leaf in sorted(trained - inner):
        path = path_of(nodes, leaf)
        sequences.append(_sequence(path, owned, reward))
        owned |= {node.number for node in path}
    return Branches(Episode(sequences), len(nodes) - len(trained))


def _sequence(path: Sequence[Node], owned: set[int], reward: float) -> episode.Sequence:
    """The tokens of a path, trained but for nodes that another sequence owns."""
    transcript = Transcript(path[0].given)
    shared: list[slice] = []
    for node in path:
        if node.parent is not None:
            transcript.given(node.given)
        start = len(transcript)
        transcript.sampled(node.result)
        if node.number in owned:
            shared.append(slice(start, len(transcript)))
    whole = transcript.sequence(reward)
    mask = np.array(whole.loss_mask)
    for place in shared:
        mask[place] = 0
    return replace(whole, loss_mask=mask)
