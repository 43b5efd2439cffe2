"""End tokens of a model: what its files and its chat template say of where an answer ends, compared."""

from areal.admit.models import ModelFolder
from areal.errors import DataError
from areal.spec.model_families import text_part
from areal.workflow.tokenizer import Tokenizer


def refuse_ends(tokenizer: Tokenizer, model: ModelFolder) -> None:
    """Raise DataError for a configuration that ends answers by an id that the model doesn't have."""
    named = text_part(model.config).get("eos_token_id")
    size = text_part(model.config).get("vocab_size")
    for number in named if isinstance(named, list) else [named]:
        if isinstance(number, int) and isinstance(size, int) and not 0 <= number < size:
            raise DataError(
                f"{model.path / 'config.json'}: eos_token_id {number} is outside its vocabulary of {size}",
                fix="write the id of the token that ends an answer; tokenizer.json has it",
            )
    if not tokenizer.eos_ids:
        raise DataError(
            f"{model.path}: neither config.json, generation_config.json nor the tokenizer names a token that ends an "
            "answer: every answer would run to its last allowed token",
            fix="write eos_token_id into config.json, or eos_token into tokenizer_config.json",
        )


def ends_told(tokenizer: Tokenizer) -> str:
    """That template and files end an answer by different tokens, in words; nothing where they agree."""
    end = tokenizer.written_end
    named = [text for number in sorted(tokenizer.given_eos_ids) if (text := tokenizer.text_of(number))]
    if end is None or end in named or not named:
        return ""
    return f"answers end by the chat template's {end!r}, the model's files name {', '.join(map(repr, named))}: both end"
