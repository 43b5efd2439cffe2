"""The claims and the cells that measure them: the standard library alone, so that any machine can list them.

A cell is a function of a module here, run in a process of its own. What it measures is held against the claim's bound
in one place, `Claim.holds`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

KINDS = ("correctness", "memory", "speed", "loop")  # in the order in which they are tried


@dataclass(frozen=True)
class Claim:
    """One sentence that a number decides. Without a bound the number itself is what is claimed to be measurable."""

    name: str
    says: str
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    stand_in: bool = True  # whether a CPU can stand in for the card

    def holds(self, measured: float) -> bool:
        """Whether the number is within the bound; what is no number never is."""
        low, high = self.at_least, self.at_most
        if measured != measured:
            return False
        return (low is None or measured >= low) and (high is None or measured <= high)

    @property
    def bound(self) -> str:
        """The bound in words."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else "a number"


@dataclass(frozen=True)
class Cell:
    """Claims that one process measures, and how long it may take."""

    name: str
    kind: str
    module: str
    limit_s: float
    claims: tuple[Claim, ...]
    few: bool = False  # of the few stand-ins that every landing measures
    cards: int = 1

    @property
    def stands_in(self) -> bool:
        """Whether any of its claims can be tried without a card."""
        return any(claim.stand_in for claim in self.claims)


def _memory(name: str, says: str) -> Cell:
    claims = tuple(
        Claim(f"{name}-{micros}", f"{says}, {words} `areal check` plans", "of the plan − 1", 0.03, stand_in=False)
        for micros, words in ((1, "one micro-batch: the peak is at most what"),
                              (2, "two micro-batches: the peak is what"))
    )  # fmt: skip
    return Cell(f"memory-{name}", "memory", "memory", 150, claims)


def _speed(name: str, says: str, goals: dict[str, float]) -> Cell:
    ways = {
        "4k": "rows of 4,096 tokens", "16k": "rows of 16,384 tokens", "32k": "rows of 32,768 tokens",
        "32k-full": "rows of 32,768 tokens, full recompute", "16k-plain": "rows of 16,384 tokens, nothing compiled",
    }  # fmt: skip
    claims = tuple(
        Claim(f"{name}-{way}", f"{says}, {words}: useful operations a second", "of the card's peak",
              at_least=goals.get(way), stand_in=way == "4k")
        for way, words in ways.items()
    )  # fmt: skip
    return Cell(f"speed-{name}", "speed", "speed", 400, claims)


_DIFFER = "differing numbers"
CELLS = (
    Cell("attention", "correctness", "attention", 120, (
        Claim("varlen-causal", "attention by segments is the mask's, in float32", "largest difference", 0.02),
        Claim("varlen-prefix", "segments that share a prompt are the mask's", "largest difference", 0.02),
        Claim("varlen-lengths", "rows of twenty random layouts are the mask's", "largest difference", 0.02),
        Claim("varlen-window", "a sliding window by segments is the mask's with it", "largest difference", 0.02),
        Claim("varlen-gqa", "shared key heads are as if copied", "largest difference", 0.02),
        Claim("varlen-gradient", "gradients by segments point where the mask's do", "smallest cosine", at_least=0.999),
        Claim("flex-blocks", "attention by blocks is the mask's", "largest difference", 0.02),
        Claim("flex-gradient", "gradients by blocks point where the mask's do", "smallest cosine", at_least=0.999,
              stand_in=False),
    ), few=True),
    Cell("packing", "correctness", "gradients", 120, (
        Claim("packed-alone", "a packed sequence scores as alone, by the mask", "mean difference", 0.02),
        Claim("packed-prompt", "a sequence that shares a prompt scores as alone", "mean difference", 0.02),
        Claim("packed-order", "the order of sequences in a batch doesn't matter", "mean difference", 0.02),
    )),
    Cell("recompute", "correctness", "gradients", 180, (
        Claim("recompute-selective", "gradients are those of nothing computed again", "relative norm", 2e-3),
        Claim("recompute-full", "gradients are those of nothing computed again", "relative norm", 2e-3),
        Claim("recompute-offload", "gradients are those of inputs kept on the card", "relative norm", 2e-3),
    ), few=True),
    Cell("compile", "correctness", "gradients", 900, (
        Claim("compile-logprobs", "compiled layers score as others", "mean difference", 0.02),
        Claim("compile-gradient", "their gradients point the same way", "smallest cosine", at_least=0.999),
        Claim("compile-selective", "so with selective recompute", "smallest cosine", at_least=0.999),
        Claim("compile-lengths", "rows of twenty lengths share their graphs", "graphs compiled after the first two", 0),
    )),
    Cell("head", "correctness", "gradients", 120, (
        Claim("head-plain", "chunked log-probabilities are a plain softmax's", "mean difference", 1e-3),
        Claim("head-gradient", "their gradients are a plain softmax's", "relative norm", 5e-3),
        Claim("head-chunk", "chunks of 2,048 tokens give what chunks of 220 give", "mean difference", 1e-3),
        Claim("head-float32", "a float32 head adds up what float32 products do", "largest difference", 1e-3),
        Claim("head-divergence", "a chunked divergence is the whole distributions'", "largest difference", 1e-3),
    )),
    Cell("optimizer", "correctness", "states", 180, (
        Claim("moments-bfloat16", "20 steps with bfloat16 moments reach float32's loss", "relative difference", 0.01),
        Claim("moments-host", "20 steps with moments in host memory reach float32's loss", "relative difference", 0.01),
        Claim("rounding-unbiased", "stochastic rounding is right in the mean", "standard errors from it", 5),
        Claim("not-finite", "a gradient that is no number changes no weight", _DIFFER, 0),
    )),
    Cell("checkpoint", "correctness", "states", 180, (
        Claim("checkpoint-state", "a checkpoint brings back weights and moments", _DIFFER, 0),
        Claim("checkpoint-steps", "the steps after it are the uninterrupted run's", _DIFFER, 0),
        Claim("checkpoint-random", "its random numbers go on", _DIFFER, 0),
        Claim("checkpoint-kinds", "moments of one kind go on as another's", "relative difference", 0.01),
        Claim("checkpoint-crashes", "a save that is cut short anywhere leaves the one before", "damaged resumes", 0),
    )),
    Cell("publish", "correctness", "states", 120, (
        Claim("published-bytes", "a published version has the engine's weights", _DIFFER, 0),
        Claim("published-update", "an update reaches the next version", "tensors that stayed", 0),
        Claim("published-delta", "a delta applied to its base is the whole version", _DIFFER, 0),
    ), few=True),
    Cell("canary", "correctness", "canary", 240, (
        Claim("canary-clean", "an engine on the host's cores scores the canary as the card does", "of what is allowed",
              1),
        Claim("canary-faults", "it finds five planted faults", "faults found", at_least=5),
        Claim("canary-memory", "the second model is gone when the canary is made", "MiB left", 64),
    )),
    Cell("host-memory", "memory", "memory", 180, (
        Claim("pinned-bytes", "a checkpoint's copy takes what its tensors have", "of their bytes − 1", 0.03),
        Claim("pinned-everything", "every view of the copy is pinned", "views that aren't", 0, stand_in=False),
        Claim("pinned-back", "host memory is given back when nobody shares it", "of it that stays", 0.05),
    )),
    Cell("device-memory", "memory", "memory", 180, (
        Claim("freed-engine", "a dropped engine gives its memory back", "of it that stays", 0.05),
        Claim("freed-frozen", "an offloaded model takes no memory while nobody asks it", "of it that stays", 0.05),
        Claim("frozen-bytes", "and comes back byte by byte", _DIFFER, 0),
        Claim("fragments", "200 micro-batches of random lengths fragment little", "reserved of allocated", 1.3,
              stand_in=False),
        Claim("synchronisations", "host synchronisations of a pass don't grow with its layers", "more with 6 than 2", 0,
              stand_in=False),
    )),
    _memory("0.5b-selective", "Qwen2.5-0.5B, 8,192 tokens, selective recompute"),
    _memory("0.5b-full", "Qwen2.5-0.5B, 8,192 tokens, full recompute"),
    _memory("1.5b-selective", "Qwen2.5-1.5B, 8,192 tokens, selective recompute"),
    _memory("1.5b-full", "Qwen2.5-1.5B, 8,192 tokens, full recompute"),
    _memory("1.5b-compiled", "Qwen2.5-1.5B, 8,192 tokens, selective recompute, compiled layers"),
    _memory("8b-third-selective", "12 layers of Qwen3-8B, 4,096 tokens, selective recompute"),
    Cell("handle", "memory", "processes", 120, (
        Claim("handle-bytes", "another process reads a flat bucket by its handle", _DIFFER, 0),
        Claim("handle-memory", "the bucket's memory is back once both dropped it", "MiB left", 64),
    )),
    Cell("weight-group", "correctness", "processes", 120, (
        Claim("group-bytes", "a server receives the broadcast's bytes", _DIFFER, 0),
        Claim("group-lost", "a server that dies in a broadcast costs its trainer seconds", "s", 10),
    )),
    Cell("two-cards", "correctness", "processes", 300, (
        Claim("nccl-step", "two ranks on two cards take one rank's step", "relative difference", 0.01),
    ), cards=2),
    Cell("kernels", "correctness", "processes", 900, (
        Claim("sglang-kernels", "SGLang's kernels compile here, and a second start compiles none", "exit status", 0,
              stand_in=False),
    )),
    Cell("ceilings", "speed", "speed", 90, (
        Claim("matrix-product", "8,192 × 8,192 × 8,192 in bfloat16", "TFLOP/s"),
        Claim("device-copy", "a copy in the card's memory, read and written", "GB/s"),
        Claim("to-host", "a copy to pinned host memory", "GB/s", at_least=20, stand_in=False),
        Claim("to-device", "a copy from pinned host memory", "GB/s", at_least=20, stand_in=False),
    )),
    _speed("0.5b", "Qwen2.5-0.5B", {}),
    _speed("1.5b", "Qwen2.5-1.5B", {}),
    _speed("8b-eight", "8 layers of Qwen3-8B", {"16k": 0.45, "32k": 0.45}),
    Cell("loop", "loop", "loop", 600, (
        Claim("loop-clean", "a GRPO run trains on the card; each group once, by the audit", "problems", 0),
        Claim("loop-mismatch", "trainer and engine agree on what was sampled", "mean difference", 0.05),
        Claim("loop-killed", "a trainer that is killed resumes, and trains no group twice", "problems", 0),
    )),
)  # fmt: skip


def chosen(names: Iterable[str] = ()) -> list[Cell]:
    """Cells in the order in which they are tried; of these names, or kinds, where some are given.

    Raises ValueError for a name that is neither.
    """
    wanted = set(names)
    if unknown := wanted - {cell.name for cell in CELLS} - set(KINDS):
        raise ValueError(f"no cell and no kind is named {', '.join(sorted(unknown))}")
    found = [cell for cell in CELLS if not wanted or wanted & {cell.name, cell.kind}]
    return sorted(found, key=lambda cell: KINDS.index(cell.kind))
