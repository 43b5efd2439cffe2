"""The `rollout` block: workflow, workers, limits, sampling."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from areal.spec.block import Mutability, SpecBlock, knob, resting
from areal.spec.text import LONGEST_WORD, Argument, FiniteMapping, PathText, Word

AGENT = "agent"  # the built-in workflow that runs a program which calls the policy
ENVIRONMENT = "environment"  # the built-in workflow that plays an environment by name


StopText = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_WORD)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class SamplingBlock(SpecBlock):
    """How the next token is drawn in training. Evaluation is greedy."""

    temperature: float = knob(1.0, what="Of the softmax.", ge=0, le=10)
    max_new_tokens: int = knob(1024, what="Longest answer of one turn.", unit="tokens", ge=1, le=1 << 24)
    top_p: float = knob(1.0, what="Keep the likeliest tokens up to this mass; 1 keeps all.", gt=0, le=1)
    top_k: int = knob(0, what="Keep this many likeliest tokens; 0 keeps all.", unit="tokens", ge=0, le=1 << 24)
    stop: list[StopText] = knob(
        list, what="Texts that end an answer, besides the model's end tokens; the answer keeps them.", max_length=4
    )
    stop_token_ids: list[TokenId] = knob(
        list, what="Token ids that end an answer, besides the model's end tokens.", max_length=64
    )
    min_new_tokens: int = knob(
        0,
        what="No end token is drawn before so many; RL refuses it unless otherDistribution says ignore.",
        unit="tokens",
        ge=0,
        le=1 << 24,
    )
    other_distribution: Literal["refuse", "ignore"] = knob(
        "refuse",
        what="minNewTokens draws from another distribution than the trainer's: refuse the job, or ignore that.",
    )


class AgentBlock(SpecBlock):
    """What runs each episode and calls the policy over OpenAI's or Anthropic's API: `run` or `command`."""

    run: Word | None = knob(
        None,
        what="A class of the recipe with `async def run(self, data, *, base_url, api_key, **extra) -> float`, or such "
        "a function.",
    )
    command: list[Argument] | None = knob(
        None,
        what="A program and its arguments, started once for each episode where workers run. It finds the policy by "
        "OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_…, reads its row from standard input, and prints its reward "
        "as its last word.",
        min_length=1,
        max_length=64,
    )
    max_calls: int = knob(
        256,
        what="Calls of the model that one episode may make; a later one is refused, and the episode can still be "
        "scored.",
        unit="calls",
        ge=1,
        le=100_000,
    )
    python: PathText | None = knob(
        None,
        what="With run: the Python that the agent's packages are installed in; unless given, the workers' own. The "
        "recipe is loaded there once more.",
    )


class Environment(SpecBlock):
    """What the workflow environment plays: something with reset() and step(), by name, in a process of its own."""

    name: Word = knob(
        what="A class or function of the recipe, or built in: mcp, openenv, reasoning-gym, textarena, verifiers; or an "
        "entry point of the group areal.environments."
    )
    python: PathText | None = knob(
        None, what="The Python that its packages are installed in; unless given, the workers' own."
    )
    config: FiniteMapping = knob(dict, what="Arguments of the environment.", max_length=64)


class GatewayBlock(SpecBlock):
    """Where agents call the policy: at the worker that runs them, or at processes of their own in front of all."""

    replicas: int = resting(
        0,
        what="Gateways in front of the workers: agents elsewhere in the namespace reach their sessions by them. With 0 "
        "each worker serves its own, on loopback.",
        ge=0,
        le=64,
    )
    unsupported: Literal["refuse", "ignore"] = resting(
        "refuse",
        what="Fields of a request that would change the distribution of tokens (a forced tool_choice, response_format, "
        "penalties): refuse the call, or ignore them, which the answer's header says.",
    )
    volatile_system: Literal["fork", "keepFirst"] = resting(
        "fork",
        what="When an agent's system message changes within an episode: fork begins a sequence of its own; keepFirst "
        "keeps the first text and says the new one behind what was said, where the model's template can.",
    )


class BoxesBlock(SpecBlock):
    """Sandboxes that live over the commands of an episode, for workflows: `engine.box()`."""

    max_concurrent: int = resting(
        0,
        what="Boxes at once, of all episodes together; an episode whose box has no room waits. The role boxes serves "
        "them, and with 0 there is none. They need the sandbox at tier T3.",
        unit="boxes",
        ge=0,
        le=3200,
    )


class RolloutBlock(SpecBlock):
    """Episodes: what runs them, how many at once, for how long."""

    workflow: Word = knob(
        "rlvr", what="Built in: rlvr, multi-turn, agent, environment; or the name of a workflow in the recipe."
    )
    workers: int = resting(1, what="Worker processes; each runs many episodes.", ge=1, le=1024)
    max_concurrent_rollouts: int = knob(
        256,
        what="Groups being generated at once; complete ones don't count.",
        unit="groups",
        change=Mutability.LIVE,
        ge=1,
        le=1 << 20,
    )
    ahead: int | None = knob(
        None,
        what="Batches that generation may be ahead of the newest weights, AReaL's η; half of algorithm.maxStaleness, "
        "rounded up, unless given.",
        unit="batches",
        change=Mutability.LIVE,
        ge=0,
        le=1000,
    )
    order: Literal["deadline", "admission"] = resting(
        "deadline",
        what="Batches are of whatever groups are complete, the one that would soonest be too old first; or of the "
        "groups in the order in which they were admitted.",
    )
    rounds: Literal["bySeed", "byHistory"] = resting(
        "bySeed",
        what="Rows come in the order of the seed; or within each eight batches those whose answers had about the same "
        "length lately come in the same batch, so that a synchronous step waits less for its longest answer.",
    )
    group_deadline_seconds: float = resting(
        600,
        what="After this long with a server making progress, a group ends with the samples it has.",
        unit="seconds",
        gt=0,
        le=10**8,
    )
    max_sample_tokens: int = knob(
        2048,
        what="Longest sample: prompt and all turns. The byte budget is computed from it.",
        unit="tokens",
        ge=2,
        le=1 << 24,
    )
    max_turns: int = knob(
        4, what="Most answers of an episode: workflow multi-turn and environments.", unit="turns", ge=1, le=10**6
    )
    max_filtered_per_step: int | None = resting(
        None,
        what="So many groups in a row end without training, and the run counts as stalled: 32 times "
        "algorithm.batchSize unless given. 64 that fail are enough.",
        unit="groups",
        ge=1,
        le=10**9,
    )
    max_bad_row_share: float = resting(
        0.25,
        what="One bad row costs its group only. When surely (Wilson's lower bound at 95 %, from 8 groups on) a larger "
        "share of the newest four batches, at least 512 groups, fails by its row or by the recipe's code, the run "
        "stops and says so; 1 never does.",
        gt=0,
        le=1,
    )
    chat_template: bool | None = knob(
        None, what="Apply the tokenizer's chat template to prompts that are plain text; unless given, if there is one."
    )
    sampling: SamplingBlock = knob(SamplingBlock, what="How tokens are drawn.")
    agent: AgentBlock | None = knob(None, what="Workflow agent only: what runs each episode.")
    environment: Environment | None = knob(None, what="Workflow environment only: what is played.")
    gateway: GatewayBlock = knob(GatewayBlock, what="Where agents call the policy.")
    boxes: BoxesBlock = knob(BoxesBlock, what="Sandboxes of workflows whose models call tools.")

    @property
    def own_python(self) -> str | None:
        """The interpreter that the agent or the environment has to itself."""
        blocks = {AGENT: self.agent, ENVIRONMENT: self.environment}
        block = blocks.get(self.workflow)
        return block.python if block is not None else None
