"""The proximal policy: which log-probability the trust region is centred on.

Pure. `trainingPass` takes it from the loss's own forward pass, `recompute` from a pass before the first update; the
others approximate it from the behaviour policy and the token's age (A-3PO, arXiv 2512.06547).
"""

from typing import Literal

import torch
from torch import Tensor

Proximal = Literal["trainingPass", "recompute", "loglinear", "behaviour"]


def log_linear(logprobs: Tensor, behaviour: Tensor, versions: Tensor, step: int) -> Tensor:
    """b + (1 − 1/a)·(sg(ℓ) − b) with age a = (step + 1) − v ≥ 1, [tokens].

    A token made by the weights that this step starts from has a = 1 and p = b; so has one that no policy made.

    Args:
        versions: the policy version of each token, −1 where not sampled, [tokens]
        step: the 0-based step, which makes version step + 1
    """
    age = torch.where(versions < 0, 1, step + 1 - versions).clamp(min=1).to(logprobs.dtype)
    far = logprobs.detach() - behaviour
    return behaviour + torch.where(age > 1, (1.0 - 1.0 / age) * far, torch.zeros_like(far))
