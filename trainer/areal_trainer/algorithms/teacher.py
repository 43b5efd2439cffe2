"""On-policy distillation: a teacher's view of the sampled tokens as an advantage (arXiv 2306.13649, 2506.02208).

Pure, in float64. Over tokens that the policy samples, the expectation of (p_j − q_j)·∇ log π(token j), with p_j − q_j
constant, is the gradient of the reverse KL of the policy from the teacher at place j: each token answers for itself,
later ones change nothing (discount 0). As a loss with its gradient, the mean of p − q would have an expected gradient
of 0.
"""

import numpy as np
from numpy.typing import NDArray

_LARGEST = 20.0  # of a log-ratio: one impossible token would outweigh the batch


def taught(
    advantages: NDArray[np.float64],
    actions: NDArray[np.bool_],
    policy: NDArray[np.float32],
    teacher: NDArray[np.float32],
    coefficient: float,
) -> NDArray[np.float64]:
    """A_j − c·clip(p_j − q_j, ±20) on every action token, the given advantages elsewhere. [tokens].

    Args:
        advantages: of the rewards, normalised already: normalising afterwards would rescale the teacher's part
        actions: True for tokens the policy sampled
        policy: p, log-probabilities under the policy before the update
        teacher: q, the same tokens' under the teacher
        coefficient: c
    """
    gap = policy.astype(np.float64) - teacher.astype(np.float64)
    return np.where(actions, advantages - coefficient * np.clip(gap, -_LARGEST, _LARGEST), advantages)


def teacher_kl(trained: NDArray[np.bool_], policy: NDArray[np.float32], teacher: NDArray[np.float32]) -> float | None:
    """Mean of p − q over the trained tokens, an estimate of KL(π‖teacher) a token; None where none is trained."""
    gap = policy[trained].astype(np.float64) - teacher[trained].astype(np.float64)
    return float(gap.mean()) if gap.size else None
