"""A model's tokenizer without transformers: `tokenizer.json`, the chat template, and the ids that end an answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.errors import DataError
from areal.spec.model_families import file_end_ids, text_part
from areal.values.generation import Ids, as_ids
from areal.workflow.pieces import Pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

_TURN_MARK = "\u2402areal-turn\u2403"  # stands for an answer while the template of a turn is worked out


class Tokenizer:
    """Encodes, decodes and renders chats. Make it with `from_dir`."""

    def __init__(
        self,
        fast: FastTokenizer,
        *,
        eos_ids: Sequence[int],
        vocab_size: int,
        chat_template: str | None,
        special: Mapping[str, str],
        digest: str,
    ) -> None:
        self._fast = fast
        self._template_text = chat_template
        self._special = dict(special)
        self._compiled: Any = None
        self._pieces: Pieces | None = None
        self.given_eos_ids = frozenset(int(token) for token in eos_ids)  # by the model's files
        self.vocab_size = vocab_size  # of the model: ids below it are valid
        self.digest = digest  # of tokenizer.json and the chat template

    @classmethod
    def from_dir(
        cls,
        path: Path | str,
        *,
        model_dir: Path | str | None = None,
        fast: FastTokenizer | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Tokenizer:
        """Read a Hugging Face directory; `model_dir` holds config.json when it is another one. Raises DataError.

        `fast` and `config` are its tokenizer.json and config.json, where they were read already.
        """
        directory = Path(path)
        model = Path(model_dir) if model_dir is not None else directory
        file = directory / "tokenizer.json"
        fast = fast if fast is not None else read_tokenizer(directory)
        config = config if config is not None else _read_json(model / "config.json")
        settings = _read_json(directory / "tokenizer_config.json")
        template = _chat_template(directory, settings)
        special = {
            key: text
            for key in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _token_text(settings.get(key)))
        }
        eos = set(file_end_ids(config, _read_json(model / "generation_config.json")))
        if "eos_token" in special and (known := fast.token_to_id(special["eos_token"])) is not None:
            eos.add(known)
        size = fast.get_vocab_size(with_added_tokens=True)
        vocab_size = int(text_part(config).get("vocab_size", size))
        if vocab_size < size:
            raise DataError(
                f"the tokenizer in {directory} has {size} tokens but the model in {model} only {vocab_size}",
                fix="use the tokenizer that the model was trained with",
            )
        digest = hashlib.sha256(file.read_bytes() + (template or "").encode()).hexdigest()
        eos = {number for number in eos if 0 <= number < vocab_size}  # an engine knows no other
        return cls(
            fast, eos_ids=sorted(eos), vocab_size=vocab_size, chat_template=template, special=special, digest=digest
        )

    @property
    def vocabulary(self) -> dict[int, str]:
        """The token of each id, added ones too."""
        return {number: token for token, number in self._fast.get_vocab(with_added_tokens=True).items()}

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be rendered."""
        return self._template_text is not None

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template."""
        return self._template_text

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer: those of the model's files and the one that the chat template writes behind
        it. Every request to an engine names them, so that all engines end alike."""
        end = self._fast.token_to_id(self.written_end or "")
        return self.given_eos_ids if end is None else self.given_eos_ids | {int(end)}

    @cached_property
    def written_end(self) -> str | None:
        """The first control token that the chat template writes behind an answer; None where it writes none."""
        control = sorted(self.added_texts, key=len, reverse=True)
        if self._template_text is None or not control:
            return None
        chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": _TURN_MARK}]
        try:
            behind = self.render_chat(chat, generation_prompt=False).partition(_TURN_MARK)[2]
        except DataError:
            return None
        found = re.search("|".join(map(re.escape, control)), behind)
        return found[0] if found else None

    @property
    def end_texts(self) -> list[str]:
        """The texts of the tokens that end an answer."""
        return [text for token in sorted(self.eos_ids) if (text := self._fast.id_to_token(token))]

    @property
    def end_id(self) -> int | None:
        """The token that ends an answer without a chat template: the tokenizer's `eos_token`, else the model's first.

        None when there is none.
        """
        named = self._fast.token_to_id(self._special.get("eos_token", ""))
        return int(named) if named is not None else min(self.given_eos_ids, default=None)

    def encode(self, text: str, *, special: bool = True) -> Ids:
        """Token ids `[tokens]`; with `special`, also the ones that the tokenizer puts around a text."""
        return as_ids(self._fast.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int] | Ids, *, skip_special: bool = True) -> str:
        """The text of token ids."""
        plain = ids if isinstance(ids, list) else [int(token) for token in ids]
        return str(self._fast.decode(plain, skip_special_tokens=skip_special))

    def with_template(self, text: str) -> Tokenizer:
        """The same tokenizer with another chat template."""
        return Tokenizer(
            self._fast,
            eos_ids=sorted(self.given_eos_ids),
            vocab_size=self.vocab_size,
            chat_template=text,
            special=self._special,
            digest=hashlib.sha256(f"{self.digest}\n{text}".encode()).hexdigest(),
        )

    @property
    def added_texts(self) -> frozenset[str]:
        """The texts that are encoded as one token of their own wherever they stand: control tokens among them."""
        return frozenset(str(token.content) for token in self._fast.get_added_tokens_decoder().values())

    def to_json(self) -> str:
        """The tokenizer as `tokenizer.json` holds it."""
        return str(self._fast.to_str())

    def without_added(self) -> FastTokenizer:
        """The same vocabulary without added tokens: it encodes `<|im_end|>` as the characters that it is."""
        import tokenizers

        settings = json.loads(self._fast.to_str())
        settings["added_tokens"] = []
        settings["post_processor"] = None  # it would name added tokens
        return tokenizers.Tokenizer.from_str(json.dumps(settings))

    def text_of(self, token: int) -> str:
        """The text of one token as it stands in the vocabulary; empty for an unknown id."""
        return str(self._fast.id_to_token(token) or "")

    def piece(self, token: int) -> bytes:
        """The bytes that one token stands for: a text is those of its tokens. Not always UTF-8."""
        return self._all_pieces()(token)

    @property
    def has_pieces(self) -> bool:
        """Whether a text is the pieces of its tokens, one after another."""
        return self._all_pieces().exact

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that `decode` leaves out."""
        return self._all_pieces().special

    def _all_pieces(self) -> Pieces:
        pieces = self._pieces = self._pieces or Pieces(self._fast)
        return pieces

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The text of a chat by the model's template. Raises DataError when it has none or refuses these messages."""
        if self._template_text is None:
            raise DataError("this tokenizer has no chat template", fix="set rollout.chatTemplate: false")
        try:
            template = self._compiled = self._compiled or _compile(self._template_text)
            return str(
                template.render(
                    messages=[dict(message) for message in messages],
                    add_generation_prompt=generation_prompt,
                    tools=[dict(tool) for tool in tools] if tools else None,
                    documents=None,  # templates ask whether it is none, not whether it is defined
                    **self._special,
                )
            )
        except Exception as error:  # the model's own code: it fails on a shape that it does not know by any exception
            said = str(error) or type(error).__name__
            raise DataError(f"the chat template refused the messages: {said}", fix="correct the row's messages") from (
                error
            )

    def encode_turn(self, text: str, *, after_end: bool = True) -> Ids:
        """Token ids that follow a model's answer when a user says `text`: by the chat template where there is one,
        otherwise the text between two line ends. `after_end` says that the answer holds its end token already."""
        if self._template_text is None:
            return self.encode(f"\n{text}\n", special=False)
        chat = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": _TURN_MARK},
            {"role": "user", "content": text},
        ]
        _, _, tail = self.render_chat(chat).partition(_TURN_MARK)
        ends = [self._fast.id_to_token(token) for token in self.eos_ids] if after_end else []
        tail = next((tail[len(end) :] for end in ends if end and tail.startswith(end)), tail)
        return self.encode(tail, special=False)


def read_tokenizer(directory: Path) -> FastTokenizer:
    """The tokenizer.json of a directory. Raises DataError when there is none, or it is invalid."""
    import tokenizers

    file = directory / "tokenizer.json"
    if not file.is_file():
        raise DataError(
            f"{directory} holds no tokenizer.json", fix="save a fast tokenizer there, or name model.tokenizer"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{file} is no tokenizer: {error}", fix="save the tokenizer again") from error


def _compile(text: str) -> Any:
    """Compile a chat template as Hugging Face does: sandboxed, with the functions that templates expect."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """`{% generation %}…{% endgeneration %}`, around what a model says: its body is rendered."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(text)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Filter of templates: without the escapes for HTML that Jinja's own makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _token_text(value: Any) -> str:
    """Tokenizer settings hold special tokens as texts or as objects with a `content`."""
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        loaded = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}", fix="restore the file") from error
    return loaded if isinstance(loaded, dict) else {}
