"""Rules of SGLang's arguments: flags of its server by their effect on a run.

The table is of SGLang 0.5.23, by pattern; the first that fits counts. A flag that fits none is unknown.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from fnmatch import fnmatchcase

from areal.spec.job import RLJob
from areal.spec.rules import Facts, rule, warning
from areal.spec.serving import SglangEngine

VERSION = "0.5.23"
_ARGUMENTS = "spec.generation.engine.extraArgs"
_AGENT_OWNS = (  # flags of SGLang's server that the agent sets itself
    "--model-path", "--model", "--tokenizer-path", "--host", "--port", "--dtype", "--tp", "--tp-size",
    "--tensor-parallel-size", "--api-key", "--admin-api-key", "--max-running-requests", "--skip-tokenizer-init",
    "--weight-version", "--stream-interval", "--enable-return-routed-experts",
)  # fmt: skip


class Effect(Enum):
    """The effect of a flag on what is trained."""

    HARMLESS = "logs, limits, metrics or memory"
    NUMBERS = "log-probabilities differ from the trainer's in the last digits"
    COARSE = "log-probabilities differ from the trainer's by more than rounding"
    REFUSED = "not with versions that change in the middle of a run"


@dataclass(frozen=True)
class FlagKind:
    """Flags of one effect and, where they are refused, the reason."""

    effect: Effect
    patterns: tuple[str, ...]
    reason: str = ""


def _kind(effect: Effect, patterns: str, reason: str = "") -> FlagKind:
    return FlagKind(effect, tuple(patterns.split()), reason)


_REFUSED = {  # why → flags
    "speculation is unproved with a version for each token and with weights that change in mid-answer": """
        --speculative-* --*-spec-* --spec-* --enable-multi-layer-eagle --uno-* --decoupled-spec-* --dllm-*
        --enable-linear-replayssm-spec""",
    "prefill, decoding and encoding apart have caches that a change of weights doesn't reach": """
        --disaggregation-* --encoder-* --language-* --optimistic-prefill-attempts --num-reserved-decode-tokens
        --enable-pdmux --pdmux-* --sm-group-num --enable-adaptive-dispatch-to-encoder --enable-pd-role-switch""",
    "a second cache keeps keys and values of older weights": """
        --enable-hierarchical-cache --enable-hicache --hicache-* --hierarchical-* --enable-lmcache --lmcache-*
        --enable-flexkv --flexkv-* --enable-hisparse --hisparse-* --*unified-cache-* --enable-unified-memory
        --kv-events-config --weight-cache-* --radix-cache-backend --enable-session-radix-cache
        --enable-streaming-session --enable-linker-mla-dedup --enable-response-store""",
    "a pause and the canary would reach one of several schedulers behind an address; raise generation.replicas": """
        --dp-size --data-parallel-size --dp --enable-dp-attention* --attn-dp-size --moe-dp-size --dwdp-size
        --attention-*-parallel-size --moe-data-parallel-size --decode-context-parallel-size --context-bucket
        --enable-dp-lm-head --load-balance-method --dcp-* --attn-cp-size --*-cp-* --enable-prefill-cp --cp-strategy
        --enable-kv-cache-sharding""",
    "a server is one process group on one machine; use engine.tensorParallel and generation.replicas": """
        --pp-* --pipeline-parallel-size --nnodes --node-rank --dist-init-addr --nccl-init-addr --gated-launch-port
        --use-ray --base-gpu-id --gpu-id-step --device""",
    "adapters are the job's: set trainer.lora": """
        --enable-lora --enable-lora-overlap-loading --lora-paths --lora-target-modules --lora-eviction-policy
        --lora-strict-loading --lora-drain-wait-threshold --experts-shared-outer-loras --lora-use-virtual-experts
        --max-lora-chunk-size""",
    "the gateway renders, parses and samples by the job; the engine is given tokens": """
        --chat-template --hf-chat-template-name --completion-template --trust-request-chat-template
        --default-chat-template-kwargs --tool-call-parser --reasoning-parser --tool-server --sampling-defaults
        --preferred-sampling-params --strip-thinking-cache --enable-strict-thinking --allow-auto-truncate
        --tokenizer-mode --tokenizer-backend --served-model-name""",
    "it makes something else than the tokens that the model samples": """
        --is-embedding --encoder-only --prefill-only-* --enable-mis --asr-* --return-*hidden-states*
        --enable-return-hidden-states --enable-return-aux-hidden-states --return-aux-* --mlx-*
        --sampling-mask-max-tokens --enable-custom-logit-processor""",
    "weights are kept in another form than new versions come in": """
        --quantize-and-serve --modelopt-* --rl-quant-profile --ple-* --cpu-offload-gb --offload-* --kt-*
        --enable-paged-experts --paged-experts-* --mamba-ssm-dtype""",
    "the agent loads the model and every later version": """
        --load-format --model-loader-extra-config --startup-weight-load-mode --custom-weight-loader
        --weight-loader-* --remote-instance-* --engine-info-bootstrap-port --modelexpress-config --download-dir
        --model-checksum --delete-ckpt-after-loading --decrypted-* --checkpoint-engine-* --revision --model-impl
        --model-config-parser --forward-hooks --enable-weights-cpu-backup --enable-draft-weights-cpu-backup
        --enable-memory-saver""",
    "it changes how the agent reaches, starts or reads the server, or lets code in that the job doesn't name": """
        --config --config-file --json-model-override-args --trust-remote-code --ssl-* --enable-ssl-refresh --grpc-*
        --smg-* --fastapi-root-path --sidecar* --enable-http2 --http2-* --enable-http-worker-reuseport
        --file-storage-path --skip-server-warmup --warmups --incremental-streaming-output --stream-*
        --batch-notify-size --return-input-ids --return-output-ids --msprobe-dump-config --debug-tensor-*
        --crash-dump-folder --enable-watermark --watermark-config --uvicorn-*""",
    "it is for models or machines on which no run here was tried": """
        --ep --ep-* --expert-* --deepep-* --fuseep-mode --moe-a2a-backend --moe-dense-tp-size --elastic-* --eplb-*
        --enable-eplb --enable-elastic-expert-backup --mooncake-* --enable-waterfill --max-ep-size
        --init-expert-location --*-shared-experts-* --shared-experts-tp-size --*-moe-* --*megamoe* --*monokernel*
        --*megakernel* --monokernel-backend --*mamba* --linear-* --enable-linear-replayssm --dsa-* --dsv4-*
        --*-dsa-* --*-deepseek-* --qsa-* --mm-* --*-mm-* --image-processor-backend --disable-fast-image-processor
        --enable-multimodal --allowed-media-domains --media-url-* --limit-mm-* --c128-page-size --swa-*
        --disable-hybrid-swa-memory --*-swa-* --enable-*-mlp-* --enable-layernorm-sp --enable-tp-lm-head-*
        --enable-attn-tp-* --disable-attn-tp-* --enable-precise-embedding-* --enable-scattered-sconv
        --flashinfer-mla-* --flashinfer-mxfp4-* --flashinfer-a2a-* --fp4-*
        --enable-return-indexer-topk --enable-page-major-kv-layout --enable-lean-attention --boundary-reduction
        --enable-quant-communications --prefill-kv-cache-* --numa-node --enable-nccl-nvls --enable-symm-mem
        --enable-mscclpp --enable-torch-symm-mem --*-aiter-* --pre-warm-nccl --enable-p2p-check""",
}

_KINDS = (
    *(_kind(Effect.REFUSED, patterns, reason) for reason, patterns in _REFUSED.items()),
    _kind(Effect.COARSE, "--quantization --quantization-param-path --kv-cache-dtype --torchao-config"),
    _kind(
        Effect.NUMBERS,
        """--attention-backend --prefill-attention-backend --decode-attention-backend --sampling-backend
        --moe-runner-backend --fp8-gemm-backend --bf16-gemm-backend --enable-torch-compile* --torch-compile-max-bs
        --disable-radix-cache --disable-chunked-prefix-cache --enable-mixed-chunk --rl-on-policy-target
        --enable-two-batch-overlap --enable-single-batch-overlap --tbo-* --triton-* --enable-tf32-matmul
        --enable-fp32-lm-head --enable-fused-qk-norm-rope --disable-custom-all-reduce --lora-backend
        --grammar-backend --flashinfer-allreduce-* --enforce-disable-flashinfer-*
        --enable-flashinfer-allreduce-fusion --enable-deterministic-inference""",
    ),
    _kind(
        Effect.HARMLESS,
        """-h --help --context-length --mem-fraction-static --max-total-tokens --max-prefill-tokens
        --max-queued-requests --chunked-prefill-size --prefill-* --min-free-slots-delay --enable-prefill-delayer
        --enable-dynamic-chunking --schedule-* --enable-priority-scheduling --disable-priority-preemption
        --default-priority-value --abort-on-priority-when-disabled --priority-scheduling-* --retraction-policy
        --page-size --radix-eviction-policy* --disable-overlap-schedule --num-continuous-decode-steps
        --scheduler-recv-interval --nccl-port --dist-timeout --random-seed --watchdog-timeout --soft-watchdog-timeout
        --sleep-on-idle --gc-* --log-* --show-time-cost --enable-metrics* --enable-mfu-metrics --load-*
        --tokenizer-metrics-* --tokenizer-worker-num --detokenizer-worker-num --extra-metric-labels --bucket-*
        --prompt-tokens-buckets --generation-tokens-buckets --decode-log-interval --enable-request-time-stats-logging
        --enable-forward-pass-metrics --forward-pass-* --enable-trace --trace-modules --otlp-* --export-metrics-*
        --constrained-json-* --disable-flashinfer-autotune --flashinfer-autotune-* --cuda-graph-* --disable-*-cuda-graph
        --disable-cuda-graph* --enable-profile-cuda-graph --enable-cudagraph-gc --debug-cuda-graph
        --enable-layerwise-nvtx-marker --max-lora-rank --max-loaded-loras --max-loras-per-batch --kv-canary*
        --enable-dynamic-batch-tokenizer --dynamic-batch-tokenizer-* --*-tokenizer-batch-* --enable-cache-report
        --disable-outlines-disk-cache""",
    ),
)


def kind_of(flag: str) -> FlagKind | None:
    """The kind of a flag that is written whole (`--page-size`); None for one that SGLang doesn't have."""
    positive = f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag
    return next((kind for kind in _KINDS if any(fnmatchcase(positive, each) for each in kind.patterns)), None)


def flags_of(job: RLJob) -> list[str]:
    """The flags that a job gives SGLang, without their values."""
    engine = job.spec.generation.engine
    if not isinstance(engine, SglangEngine):
        return []
    words = [argument.partition("=")[0] for argument in engine.extra_args]
    return [word for word in words if word.startswith("-") and not word.lstrip("-").replace(".", "").isdecimal()]


@rule(
    _ARGUMENTS,
    "extraArgs leaves alone what the agent sets.",
    fix="Remove it from generation.engine.extraArgs; the job's own fields set it.",
    cel=(
        "self.spec.generation.engine.type != 'sglang' || !has(self.spec.generation.engine.extraArgs) || "
        f"self.spec.generation.engine.extraArgs.all(a, !(a.split('=')[0] in {list(_AGENT_OWNS)}))"
    ),
)
def sglang_arguments(job: RLJob, facts: Facts) -> str | None:
    taken = [flag for flag in flags_of(job) if flag in _AGENT_OWNS]
    return f"{', '.join(taken)} is set by the generation agent" if taken else None


@rule(
    _ARGUMENTS,
    "With the flags in extraArgs tokens, versions and log-probabilities are what the run takes them for.",
    fix="Remove it from generation.engine.extraArgs.",
)
def sglang_unsupported(job: RLJob, facts: Facts) -> str | None:
    kinds = {flag: kind_of(flag) for flag in flags_of(job) if flag not in _AGENT_OWNS}
    refused = [f"{flag}: {kind.reason}" for flag, kind in kinds.items() if kind and kind.effect is Effect.REFUSED]
    return "; ".join(refused) or None


def _unknown(job: RLJob) -> str | None:
    known = [each for kind in _KINDS for each in kind.patterns if "*" not in each]
    for flag in flags_of(job):
        if flag not in _AGENT_OWNS and kind_of(flag) is None:
            close = get_close_matches(flag, known, n=1) or [each for each in known if each.startswith(flag)][:1]
            hint = f"; did you mean {close[0]}?" if close else ""
            return f"SGLang {VERSION} has no flag {flag} (a flag must be written whole){hint}"
    return None


@rule(
    _ARGUMENTS,
    f"Every flag in extraArgs is one of SGLang {VERSION}.",
    fix="Correct it, or name another SGLang by generation.engine.python.",
)
def sglang_unknown(job: RLJob, facts: Facts) -> str | None:
    engine = job.spec.generation.engine
    return None if isinstance(engine, SglangEngine) and engine.python else _unknown(job)


@warning(
    _ARGUMENTS,
    "Flags of another SGLang are known.",
    fix="Compare logprob_mismatch (docs/flat-reward.md) with a run without them.",
)
def sglang_own_flags(job: RLJob, facts: Facts) -> str | None:
    engine = job.spec.generation.engine
    return _unknown(job) if isinstance(engine, SglangEngine) and engine.python else None


@rule(
    _ARGUMENTS,
    "Tokens of a quantised engine are trained with truncated weights.",
    fix="Set algorithm.advanced.truncate: {upper: 2.0}, or remove the flag.",
)
def sglang_coarse(job: RLJob, facts: Facts) -> str | None:
    coarse = [flag for flag in flags_of(job) if (kind := kind_of(flag)) and kind.effect is Effect.COARSE]
    if not coarse or job.spec.algorithm.advanced.truncate is not None:
        return None
    return f"with {', '.join(coarse)} the engine samples from other probabilities than the trainer's, beyond rounding"
