"""Facts of a job: everything that its files tell, each read once, before anything is written.

Owns the order: recipe, model, tokenizer, rows, teacher. Imports the recipe elsewhere (`recipe_probe`), reads rows with
the reader of `prepare`. Promises that each fault is found at its file and line, and says what it didn't look at.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from areal.admit import models
from areal.admit.models import ends_told, refuse_ends
from areal.admit.recipe_probe import SLOW_S, RecipeParts, can_try_hooks, defines, has_hooks, probe_recipe
from areal.admit.rows import ASKED_ROWS, RowMeasure, episode_item, required_columns, reward_items
from areal.admit.sources import Sources
from areal.data.snapshot import PEEKED_ROWS, DatasetPeek, peek
from areal.data.source import HuggingFaceSource, JsonlSource, ReasoningGymSource, RecipeSource, source_from_spec
from areal.engine.model_config import ModelConfig
from areal.errors import ArealError, DataError
from areal.gateway.templates.template import refuse_template, without_tools
from areal.plan import remote
from areal.spec import Facts, Finding, RLJob, Severity, check, model_families
from areal.spec.locality import in_store, remote_models
from areal.spec.locate import is_data_name, is_pattern, refuse_pipes
from areal.spec.sources import DatasetSource
from areal.workflow.tokenizer import Tokenizer, read_tokenizer

_GENERATED = 32  # rows of a library that makes them


@dataclass
class FileFacts:
    """What is known of a job's files. `faults`: dotted field and what a run would stop at; `unseen`: not looked at."""

    facts: Facts = field(default_factory=Facts)
    faults: list[tuple[str, ArealError]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    warnings: list[tuple[str, str, str]] = field(default_factory=list)  # field, message, fix
    read_as: list[tuple[str, str]] = field(default_factory=list)  # of each dataset: its field, how its rows are read
    model: models.ModelFolder | None = None  # with its weights
    teacher: models.ModelFolder | None = None
    planned: Mapping[str, Any] | None = None  # the config.json that memory is planned by


def read(job: RLJob, sources: Sources, *, here: bool = True, model_config: Path | None = None) -> FileFacts:
    """Read everything that a job names and that is on this machine.

    `here` is whether its roles run on this machine, so that programs are looked for on it. `model_config` is a
    config.json to plan memory by, for a model that isn't here.
    """
    known = _FactReader(job=job, sources=sources)
    known.look(here, model_config)
    return known


def judged(job: RLJob, known: FileFacts, base_dir: Path) -> list[Finding]:
    """What the job's files and its rules say against it."""
    rules = {"spec.recipe.file": "recipe-import", "spec.rollout.agent": "agent"}
    findings = []
    for place, error in known.faults:
        rule = rules.get(place, "dataset" if ".dataset." in place else "model")
        where = job.where(place)
        findings.append(
            Finding(rule, Severity.ERROR, place, error.message.removeprefix(f"{where}: "), error.fix, where)
        )
    findings += check(job, known.facts, base_dir=base_dir)
    for place, message, fix in known.warnings:
        rule = rules.get(place, "model")
        findings.append(Finding(rule, Severity.WARNING, place, message, fix, job.where(place)))
    return findings


def recipe_parts(
    recipe: Path | None, job: RLJob, items: Sequence[Mapping[str, Any]] = (), episode: Mapping[str, Any] | None = None
) -> RecipeParts:
    """What a recipe defines, found in a process of its own, with its graph for this job; asks its reward of `items`,
    and its workflow or agent to play `episode`."""
    if recipe is not None:
        refuse_pipes(recipe)
    return probe_recipe(recipe, spec=job.spec, items=items, episode=episode)


@dataclass(kw_only=True)
class _FactReader(FileFacts):
    job: RLJob
    sources: Sources
    tokenizer: Tokenizer | None = None

    def look(self, here: bool, model_config: Path | None) -> None:
        job = self.job
        self._model()
        parts = self._recipe(here)
        for place, source in self.sources.dataset.named.items():
            if len(source.given) == 1:
                with self._at(place):
                    self._rows(place, source, parts)
        if self.model is not None:
            self._engine_and_trainer(self.model)
        of_plan = self.model if model_config is None else models.read_model(model_config)
        if of_plan is not None and of_plan is not self.model:
            self._engine_and_trainer(of_plan)
        self._beside()
        self._programs(here)
        with self._at("spec.trainer.hooks"):
            if (
                not self.faults
                and job.spec.is_rl
                and not can_try_hooks(job.spec)
                and has_hooks(self.sources.hooks, self.sources.recipe)
            ):
                self.unseen.append("hooks: compute_advantages and compute_loss are tried where the trainer runs")
        self.planned = None if of_plan is None else of_plan.config
        if self.planned is None and job.spec.trainer.gpus:
            self.unseen.append("memory: the model isn't on this machine; name its config.json with --model-config")

    @contextmanager
    def _at(self, place: str) -> Iterator[None]:
        """Collect what is wrong with one field."""
        try:
            yield
        except ArealError as error:
            self.faults.append((place, error))

    def _recipe(self, here: bool) -> RecipeParts | None:
        agent = self.job.spec.rollout.agent
        command = here and agent is not None and agent.command is not None
        if self.sources.recipe is None and not command:
            return None
        place = "spec.rollout.agent" if self.sources.recipe is None else "spec.recipe.file"
        with self._at(place):
            parts = recipe_parts(self.sources.recipe, self.job, *self._called_with(here))
            self._told_of_calls(place, parts)
            if self.sources.recipe is None:
                return None
            self.facts = replace(
                self.facts,
                recipe_defines_reward=parts.reward,
                recipe_workflows=parts.workflows,
                recipe_agents=parts.agents,
            )
            if not parts.reward and self.job.spec.is_rl and defines(self.sources.recipe, "compute_score"):
                message = "the recipe's `compute_score` is verl's name for a reward, and nothing here calls it"
                fix = "Add `def reward(prompt, completions, prompt_ids, completion_ids, **row)` that calls it."
                self.warnings.append((place, message, fix))
            if parts.seconds > SLOW_S:
                message = f"importing the recipe takes {parts.seconds:.0f} s of processor time in every worker"
                self.warnings.append(("spec.recipe.file", message, "Do slow work inside functions, not at import."))
            return parts
        return None

    def _told_of_calls(self, place: str, parts: RecipeParts) -> None:
        """What the job's own code gave when it was called."""
        if parts.given:
            self.read_as.append(("reward", f"of {ASKED_ROWS} rows: " + "; ".join(parts.given)))
        if (played := parts.episode).given:
            self.read_as.append(("episode", f"with scripted answers it gives {'; '.join(played.given)}"))
        if played.warning:
            fix = "A model gives such answers, too: catch it, or return None."
            self.warnings.append((place, played.warning, fix))
        self.unseen += [f"recipe: {why}" for why in (parts.unseen, played.unseen) if why]

    def _called_with(self, here: bool) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """What the recipe's reward is asked of, and what an episode is played with: rows of the first source here."""
        for place, source in self.sources.dataset.named.items():
            if place.startswith("spec.dataset.train") and len(source.given) == 1 and source.recipe is None:
                named = source_from_spec(source, base_dir=Path("/"), recipe=None, split="train")
                with suppress(ArealError, OSError):  # the look at the rows says what is wrong with them
                    items = reward_items(self.job, named, self.tokenizer)
                    folders = self.sources.tokenizer, self.sources.model
                    plays = here and not self.faults and not _refused(self.job)
                    return items, episode_item(self.job, named, *folders) if plays else None
        return [], None

    def _model(self) -> None:
        job, model, tokenizer = self.job, self.sources.model, self.sources.tokenizer
        if model is None and remote.is_remote(job.spec.model.uri):
            self.unseen.append(f"model: {job.spec.model.uri} isn't on this machine; `areal run` downloads it")
        if model is not None:
            with self._at("spec.model.path"):
                refuse_pipes(*model.glob("*"))
                self.model = models.read_model(models.check_model(model, job.where("spec.model.path")), weights=True)
        if self.model is not None and self.model.weights is not None:
            heads = self.model.number("num_attention_heads")
            kv_heads = self.model.number("num_key_value_heads")
            self.facts = replace(
                self.facts,
                model_vocabulary=self.model.number("vocab_size"),
                model_context_tokens=self.model.number("max_position_embeddings")
                or self.model.number("model_max_length"),
                model_route_bytes=model_families.route_bytes(self.model.config) if job.spec.replays_routes else 0,
                model_attention_heads=heads,
                model_key_value_heads=heads if kv_heads is None else kv_heads,
                model_parameters=self.model.weights.parameters,
                model_matrices=self.model.weights.matrices,
            )
        if tokenizer is not None and (model is None or tokenizer != model or (model / "config.json").is_file()):
            named = "spec.model.tokenizer" if job.spec.model.tokenizer else "spec.model.path"
            with self._at(named):
                refuse_pipes(tokenizer / "tokenizer.json")
                fast = read_tokenizer(models.check_tokenizer(tokenizer, job.where(named)))
                ids = fast.get_vocab(with_added_tokens=True).values()
                self.facts = replace(self.facts, tokenizer_vocabulary=max(ids, default=-1) + 1)
                if model is not None and self.model is None:
                    return
                config = self.model.config if self.model is not None else None
                with suppress(ArealError):  # a rule says what is wrong with its size
                    self.tokenizer = Tokenizer.from_dir(tokenizer, model_dir=model, fast=fast, config=config)
        self._chat_template()
        if self.tokenizer is not None and self.model is not None and self.job.spec.is_rl:
            with self._at("spec.model.path"):
                refuse_ends(self.tokenizer, self.model)
                if told := ends_told(self.tokenizer):
                    self.warnings.append(("spec.model.path", told, "Nothing, if this is meant: each of them ends."))

    def _chat_template(self) -> None:
        """Check of the chat template for what the job's episodes need of it."""
        if self.tokenizer is None:
            return
        spec = self.job.spec
        with self._at("spec.model.chatTemplate" if spec.model.chat_template else "spec.model.path"):
            self.tokenizer = self.tokenizer.of_job(spec.model)
            refuse_template(self.tokenizer, spec)
            if why := without_tools(self.tokenizer, spec):
                self.warnings.append(("spec.rollout.agent", why, "Name another template in model.chatTemplate."))

    def _rows(self, field: str, source: DatasetSource, parts: RecipeParts | None) -> None:
        """The rows of one source, the `number`-th of its split."""
        recipe, reward = self.sources.recipe, self.job.spec.reward
        if in_store(source.path):
            self._unread(field, f"{source.path} isn't on this machine; `areal run` downloads it")
            return
        split, _, number = field.removeprefix("spec.dataset.").partition(".sources.")
        named = source_from_spec(source, base_dir=Path("/"), recipe=recipe or Path("recipe"), split=split)
        match named:
            case JsonlSource(path):
                if not path.exists():
                    return  # another rule's business
                if not path.is_file():
                    raise DataError(f"{path} is no file", fix="Name a file of JSON rows, one a line.")
            case RecipeSource():
                self._unread(field, "the rows of the recipe are made when the run is prepared")
                return
            case HuggingFaceSource(path=name) if not Path(name).exists() and not is_pattern(name):
                if not is_data_name(name):  # which a rule says is missing
                    self._unread(field, f"{name} on the Hugging Face hub")
                return
            case ReasoningGymSource() | HuggingFaceSource():
                pass
        verifier = reward.verifier or ("custom" if parts is not None and parts.reward else None)
        if verifier is None and parts is None and recipe is not None and defines(recipe, "reward"):
            verifier = "custom"
        needed = parts.needs if parts is not None else ()
        readable = not any(place.startswith("spec.model") for place, _ in self.faults)
        measure = RowMeasure(self.job, self.tokenizer if readable else None)
        seen = peek(
            named,
            required=required_columns(self.job, verifier, needed),
            limit=_GENERATED if isinstance(named, ReasoningGymSource) else PEEKED_ROWS,
            each=measure.measure,
        )
        self._told(field, seen.rows, measure)
        size = named.size if isinstance(named, ReasoningGymSource) else None  # where that is cheap to know
        rows = seen.rows if seen.whole else size
        self._partly(split, seen, rows, measure)
        if split == "evaluation":
            self.facts = replace(self.facts, evaluation_rows=rows)
            return
        known, longest, place = self.facts, measure.longest, measure.place
        before = known.train_rows, known.train_columns
        if number not in ("", "0"):  # what several sources have together
            rows = None if rows is None or before[0] is None else rows + before[0]
        if longest is None or (known.longest_prompt_tokens or 0) > longest:
            longest, place = known.longest_prompt_tokens, known.longest_prompt_place
        self.facts = replace(
            known,
            train_rows=rows,
            train_columns=_common(seen.columns, before[1], number),
            longest_prompt_tokens=longest,
            longest_prompt_place=place,
            prompts_too_long=known.prompts_too_long + measure.too_long,
            image_bytes=max(known.image_bytes, measure.image_bytes),
        )

    def _unread(self, field: str, why: str) -> None:
        """A source that nobody can read here: rules that need its rows or columns say nothing."""
        split = field.removeprefix("spec.dataset.").partition(".")[0]
        self.unseen.append(f"dataset.{split}: {why}")
        if split == "train":
            self.facts = replace(self.facts, train_rows=None, train_columns=None)

    def _partly(self, split: str, seen: DatasetPeek, rows: int | None, measure: RowMeasure) -> None:
        """What of a dataset's rows wasn't looked at."""
        if not seen.whole:
            of = f"of {rows:,} rows" if rows is not None else "rows"
            self.unseen.append(f"dataset.{split}: only the first {seen.rows:,} {of} were read")
        if seen.told < seen.rows and measure.looks:
            self.unseen.append(f"dataset.{split}: rows behind the first {seen.told:,} were read, but not rendered")
        if not measure.looks and self.tokenizer is None and not self.faults:
            self.unseen.append(f"dataset.{split}: rows were read, but not rendered: no tokenizer is on this machine")

    def _told(self, field: str, read: int, measure: RowMeasure) -> None:
        """What check says of the rows that it read."""
        name, dropped = field.removeprefix("spec."), self.job.spec.dataset.long_prompts == "drop"
        if measure.form is not None:
            self.read_as.append((name, f"read as {measure.form}"))
        if measure.beside:
            words = f"texts of {', '.join(sorted(measure.beside))} aren't in the prompt: nobody who answers reads them"
            self.read_as.append((name, f"{words} (the recipe's `dataset(split)` can put them in)"))
        if measure.opening is not None and name != "dataset.evaluation":
            opened, written = measure.opening
            words = f"answers are learned behind {written!r}; the chat template opens one to generate with {opened!r}"
            self.read_as.append((name, words))
        if dropped and measure.too_long and name != "dataset.evaluation":
            words = f"{measure.too_long} of {read} rows read have prompts that leave no room for an answer: dropped"
            self.read_as.append((name, words))

    def _engine_and_trainer(self, model: models.ModelFolder) -> None:
        """What both would say of a model, by their own table: of the job's, or of a config.json in its place."""
        job = self.job
        if model is self.model and any(place == "spec.model.path" for place, _ in self.faults):
            return
        with self._at("spec.model.path"):
            model_families.refuse_untrainable(model.config, str(model.path))  # first: another engine doesn't mend it
            trainer, mesh = job.spec.trainer, job.spec.trainer.mesh
            asked = {"LoRA": trainer.lora, "tensor ranks": mesh.tensor > 1, "context ranks": mesh.context > 1}
            asked["segments"] = trainer.attention_backend != "dense"
            model_families.refuse_columns(
                model.config, (name for name, wanted in asked.items() if wanted), str(model.path)
            )
            router = trainer.router_aux_coefficient, trainer.router_z_coefficient
            model_families.refuse_router_losses(model.config, str(model.path), *router)
            if trainer.gpus and asked["segments"] and model.config.get("model_type") in model_families.WITH_SINKS:
                words = f"{model.path}: attention sinks are computed on GPUs by a mask alone"
                raise DataError(words, fix="set trainer.attention: dense")
            if job.spec.is_rl and job.spec.generation.engine.type == "embedded":
                try:
                    self._served(ModelConfig.of(model.config, model.path))
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise DataError(
                        f"{model.path / 'config.json'} lacks what the engine needs, or has it wrong: {error}",
                        fix="save the model again",
                    ) from None
            if model.config.get("model_type") in model_families.VISION:
                words = "it reads images; its tower stays as it is"
                if job.spec.generation.engine.type == "sglang":
                    words += ". SGLang is sent images in its own form, which nobody tried: watch logprob_mismatch"
                self.read_as.append(("model", words))
            if model_families.is_mixture(model.config):
                words = "the trainer chooses experts anew, which rounding can change: watch the mismatch"
                if job.spec.replays_routes and (each := model_families.route_bytes(model.config)):
                    words = f"tokens are trained with the experts that sampled them: {each} bytes each"
                self.read_as.append(("model", f"a mixture of experts: {words}"))
            if job.spec.reward_model is not None:
                model_families.refuse_unscorable(model.config, str(model.path))
            self._weights("model", model)

    def _served(self, config: ModelConfig) -> None:
        """What the embedded engine is for a family without functions written by hand."""
        if config.module is None:
            return
        if self.job.spec.trainer.lora is not None:
            words = f"the embedded engine serves no adapters of a {config.architecture}"
            raise DataError(words, fix="remove trainer.lora, or use generation.engine.type: sglang")
        words = "served through its Hugging Face module: exact, below 10M parameters at half the speed of"
        self.read_as.append(("model", f"{config.architecture} is {words} {', '.join(model_families.EMBEDDED)}"))

    def _weights(self, what: str, model: models.ModelFolder) -> None:
        """Names and shapes of its weights; what can't be told of them is said."""
        if unseen := models.refuse_weights(model):
            self.unseen.append(f"{what}: {unseen}")

    def _beside(self) -> None:
        """The models beside the job's own: one that scores can, and one that teaches can teach this student."""
        job = self.job
        for place, uri in remote_models(job.spec).items():
            if place != "spec.model.uri" and remote.cached(uri) is None:
                words = f"{uri} isn't on this machine; `areal run` downloads it"
                self.unseen.append(f"{place.removeprefix('spec.')}: {words}")
        if (scores := self.sources.reward_model) is not None:
            with self._at("spec.reward.model.path"):
                where = job.where("spec.reward.model.path")
                scorer = models.read_model(models.check_model(scores, where), weights=True)
                model_families.refuse_unclassifying(scorer.config, str(scores))
                self._weights("reward.model", scorer)
                models.check_tokenizer(scores, where)
        if (found := self.sources.teacher) is not None:
            with self._at(job.spec.teacher_field):
                where = job.where(job.spec.teacher_field)
                here = not models.served_elsewhere(job)
                models.check_tokenizer(models.check_model(found, where, weights=here), where)
                self.teacher = models.read_model(found, weights=here)
                self._weights("teacher", self.teacher)
                if self.model is not None and self.tokenizer is not None and not self.faults:
                    models.refuse_teacher(job.spec, self.tokenizer, self.model, self.teacher)

    def _programs(self, here: bool) -> None:
        """Whether programs of agents and environments can be started here, where this machine is to say it."""
        agent, python = self.job.spec.rollout.agent, self.job.spec.rollout.own_python
        program = agent.command[0] if agent is not None and agent.command else None
        if here:
            self.facts = replace(
                self.facts,
                agent_program=None if program is None else shutil.which(program) is not None,
                own_python=None if python is None else shutil.which(python) is not None,
            )
            return
        if program is not None:
            self.unseen.append(f"rollout.agent.command: whether workers' image has {program}")
        if python is not None:
            self.unseen.append(f"rollout: whether workers' image has {python}")


def _refused(job: RLJob) -> bool:
    """Whether rules refuse a job whatever its files hold."""
    return any(finding.severity is Severity.ERROR for finding in check(job))


def _common(columns: frozenset[str], before: frozenset[str] | None, number: str) -> frozenset[str] | None:
    """The columns that all sources so far have; None where one of them wasn't read."""
    if number in ("", "0"):
        return columns
    return None if before is None else columns & before
