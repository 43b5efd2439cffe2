"""Generalised advantage estimation (GAE, arXiv 1506.02438) over packed sequences, by token or by turn.

Pure, in float64. Only action tokens are steps: prompt, tool and feedback tokens between them are skipped, not
discounted. By turn, an answer is one step, however long it is.
"""

import numpy as np
from numpy.typing import NDArray


def gae(
    rewards: NDArray[np.float64],
    values: NDArray[np.float64] | None,
    actions: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    *,
    gamma: float = 1.0,
    lam: float | NDArray[np.float64] = 1.0,
    bootstrap: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Advantages A and returns G = A + V, [tokens] each, 0 off the action tokens.

        A_{K+1} = 0;  V_{K+1} = bootstrap;  for k = K … 1:  δ = R_k + γV_{k+1} − V_k;  A_k = δ + γλA_{k+1}

    Args:
        rewards: [tokens]
        values: V of the state before each token, [tokens]; None is 0 everywhere
        actions: [tokens]
        offsets: [sequences + 1]
        lam: λ, one number or one a sequence
        bootstrap: V of the state after the last token, [sequences]: 0 where the episode ended by itself, the critic's
            value where it was cut by length; None is 0
    """
    sequences = len(offsets) - 1
    places = np.flatnonzero(actions)
    owner = np.searchsorted(offsets, places, side="right") - 1
    steps = np.bincount(owner, minlength=sequences)
    longest = int(steps.max(initial=0))
    # Right-aligned, so that every sequence's last step is in the last column and one loop serves all.
    within = np.arange(len(places)) - np.repeat(np.cumsum(steps) - steps, steps)
    column = longest - steps[owner] + within
    reward = np.zeros((sequences, longest + 1))
    value = np.zeros((sequences, longest + 1))
    reward[owner, column] = rewards[places]
    if values is not None:
        value[owner, column] = values[places]
    if bootstrap is not None:
        value[:, longest] = bootstrap
    decay = gamma * np.asarray(lam, dtype=np.float64)
    advantage = np.zeros((sequences, longest + 1))
    for k in range(longest - 1, -1, -1):
        delta = reward[:, k] + gamma * value[:, k + 1] - value[:, k]
        advantage[:, k] = delta + decay * advantage[:, k + 1]
    advantages = np.zeros(len(actions))
    returns = np.zeros(len(actions))
    advantages[places] = advantage[owner, column]
    returns[places] = (advantage + value)[owner, column]
    return advantages, returns


def turn_gae(
    rewards: NDArray[np.float64],
    values: NDArray[np.float64] | None,
    actions: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    turns: NDArray[np.int64],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`gae` whose steps are turns: one has the sum of its rewards and the value at its *first* action token.

    All action tokens of a turn get its advantage A and its return G = A + V.

    Args:
        turns: the turn of each token, numbers that grow along the batch and are no other sequence's, [tokens]
    """
    places = np.flatnonzero(actions)
    _, first, turn = np.unique(turns[places], return_index=True, return_inverse=True)
    begins = np.zeros(len(actions), np.bool_)
    begins[places[first]] = True
    summed = np.zeros(len(actions))
    summed[begins] = np.bincount(turn, rewards[places], len(first))
    by_turn = gae(summed, values, begins, offsets, gamma=gamma, lam=lam, bootstrap=bootstrap)
    advantages, returns = np.zeros(len(actions)), np.zeros(len(actions))
    advantages[places], returns[places] = (found[places[first]][turn] for found in by_turn)
    return advantages, returns
