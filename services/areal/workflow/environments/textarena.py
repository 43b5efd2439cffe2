"""TextArena's games for one player: `config: {game: GuessTheNumber-v0, …}`, further keys are the game's own.

The seed is the row's `seed`, else made from the row, so that all samples of a group play the same game. The reward is
what the game gives at its end.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import textarena
from textarena.core import ObservationType, Wrapper

_LOCK = threading.Lock()  # games draw from Python's one generator


def make(row: dict[str, Any], *, game: str, **settings: Any) -> Game:
    """One game. The row may have a `seed`."""
    made = textarena.make(game, **settings)
    while isinstance(made, Wrapper):  # they tell the whole history at each turn; the transcript has it already
        made = made.env
    return Game(made, game, _seed(row))


def _seed(row: dict[str, Any]) -> int:
    if "seed" in row:
        return int(row["seed"])
    return int.from_bytes(hashlib.sha256(json.dumps(row, sort_keys=True).encode()).digest()[:4], "little")


class Game:
    """One player's game. Its random numbers go on from its own seed, whatever other games draw between its moves."""

    def __init__(self, game: Any, name: str, seed: int) -> None:
        self._game, self._name, self._seed = game, name, seed
        self._random = random.Random(seed).getstate()

    def reset(self) -> tuple[str, dict[str, Any]]:
        """The rules and the first sight of the game."""
        seen: str = self._drawing(self._begin)
        return seen, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One move."""
        moved: tuple[str, float, bool] = self._drawing(lambda: self._move(action))
        return *moved, False, {}

    def _begin(self) -> str:
        try:
            self._game.reset(num_players=1, seed=self._seed)
        except AssertionError as error:
            raise ValueError(f"{self._name} can't be played by one player: {error}") from error
        return self._seen()

    def _move(self, action: str) -> tuple[str, float, bool]:
        done, _ = self._game.step(action=action)
        if not done:
            return self._seen(), 0.0, False
        rewards, _ = self._game.close()
        return "", float((rewards or {}).get(0, 0.0)), True

    def _seen(self) -> str:
        _, seen = self._game.get_observation()
        return "\n".join(message for _, message, kind in seen if kind is not ObservationType.PLAYER_ACTION)

    def _drawing(self, act: Callable[[], Any]) -> Any:
        with _LOCK:
            random.setstate(self._random)
            try:
                return act()
            finally:
                self._random = random.getstate()
