"""A model's tokenizer without transformers: `tokenizer.json`, the chat template, and the ids that end an answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.errors import DataError
from areal.image_shape import ImageShape
from areal.values.generation import Ids, as_ids
from areal.values.images import MARK, Image
from areal.workflow.content import ChatShape, ContentEncoder, RenderedChat, shape_of
from areal.workflow.pieces import Pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

    from areal.spec.sources import ModelBlock
    from areal.workflow.bridge import TurnBridge

_OWN_NAMES = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token", "documents"}
)


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
        kwargs: Mapping[str, Any] | None = None,
        image_shape: ImageShape | None = None,
    ) -> None:
        self._fast = fast
        self.image_shape = image_shape  # of a model that reads images
        self.chat_template = chat_template  # its text
        self._special = dict(special)
        # The job's arguments of the chat template. Requests may give these names other values.
        self.kwargs: Mapping[str, Any] = dict(kwargs or {})
        self._began = datetime.now()
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
        job: ModelBlock | None = None,
    ) -> Tokenizer:
        """Read a Hugging Face directory; `model_dir` holds config.json when it is another one. Raises DataError.

        `fast` and `config` are its tokenizer.json and config.json, where they were read already. `job` may name another
        chat template, and arguments of it.
        """
        from areal.spec.model_families import file_end_ids, text_part  # loads what understands jobs: not in a probe

        directory = Path(path)
        model = Path(model_dir) if model_dir is not None else directory
        file = directory / "tokenizer.json"
        fast = fast if fast is not None else read_tokenizer(directory)
        config = config if config is not None else _read_json(model / "config.json")
        settings = _read_json(directory / "tokenizer_config.json")
        template = chat_template_of(directory)
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
        made = cls(
            fast,
            eos_ids=sorted(eos),
            vocab_size=vocab_size,
            chat_template=template,
            special=special,
            digest=digest,
            image_shape=ImageShape.from_dir(model, config),
        )
        return made if job is None else made.of_job(job)

    def of_job(self, job: ModelBlock) -> Tokenizer:
        """With the job's chat template and its arguments. Raises DataError for a template that is none, and for
        arguments that it doesn't read."""
        if job.chat_template is None and not job.chat_template_kwargs:
            return self
        made = self.with_template(job.chat_template or self.chat_template, job.chat_template_kwargs)
        if unread := sorted(set(job.chat_template_kwargs) - made.template_names):
            raise DataError(
                f"the chat template reads no {', '.join(unread)}",
                fix="name in model.chatTemplateKwargs what it reads: " + (", ".join(made.free_names) or "nothing"),
            )
        return made

    @property
    def vocabulary(self) -> dict[int, str]:
        """The token of each id, added ones too."""
        return {number: token for token, number in self._fast.get_vocab(with_added_tokens=True).items()}

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be rendered."""
        return self.chat_template is not None

    @cached_property
    def template_names(self) -> frozenset[str]:
        """The variables that the chat template reads."""
        from jinja2 import TemplateError, meta

        try:
            tree = _environment(self._began).parse(self.chat_template or "")
        except TemplateError as error:
            raise DataError(f"the chat template is none: {error}", fix="correct model.chatTemplate") from error
        return frozenset(meta.find_undeclared_variables(tree))

    @property
    def free_names(self) -> list[str]:
        """Those of them that a job may set."""
        return sorted(self.template_names - _OWN_NAMES - set(_environment(self._began).globals))

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer: those of the model's files and the one that the chat template writes behind
        it. Every request to an engine names them, so that all engines end alike."""
        end = self.turns.end
        shape = self.image_shape
        placeholders = () if shape is None else (shape.token, shape.video)  # written, they stand for nothing
        return self.given_eos_ids.union(token for token in (*placeholders, end) if token is not None)

    @property
    def written_end(self) -> str | None:
        """The token by which the chat template closes an answer; None where it writes none."""
        end = self.turns.end if self.has_chat_template else None
        return None if end is None else self.text_of(end)

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

    def with_template(self, text: str | None, kwargs: Mapping[str, Any] | None = None) -> Tokenizer:
        """The same tokenizer with another chat template, and arguments of it."""
        pinned = f"{text}{json.dumps(dict(kwargs), sort_keys=True) if kwargs else ''}"
        return Tokenizer(
            self._fast,
            eos_ids=sorted(self.given_eos_ids),
            vocab_size=self.vocab_size,
            chat_template=text,
            special=self._special,
            digest=hashlib.sha256(f"{self.digest}\n{pinned}".encode()).hexdigest(),
            kwargs=kwargs,
            image_shape=self.image_shape,
        )

    @cached_property
    def added(self) -> Mapping[str, int]:
        """The texts that are encoded as one token of their own wherever they stand: control tokens among them."""
        return {str(token.content): number for number, token in self._fast.get_added_tokens_decoder().items()}

    @property
    def added_texts(self) -> frozenset[str]:
        """The texts of `added`."""
        return frozenset(self.added)

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
        return self._pieces(token)

    @property
    def has_pieces(self) -> bool:
        """Whether a text is the pieces of its tokens, one after another."""
        return self._pieces.exact

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that `decode` leaves out."""
        return self._pieces.special

    @cached_property
    def _pieces(self) -> Pieces:
        return Pieces(self._fast)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a chat by the model's template, `kwargs` over the job's arguments of it.

        Messages are given in the shape that the template reads. Raises DataError when it has none or refuses these.
        """
        if self.chat_template is None:
            raise DataError(
                "this tokenizer has no chat template",
                fix="name one in model.chatTemplate, or give rows a text as their prompt",
            )
        calls = any(message.get("tool_calls") for message in messages)
        shape = self._call_shape if calls else self._shape
        return self._rendered(shape.shaped(messages), generation_prompt, tools, kwargs)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        try:
            return str(
                self._compiled.render(
                    **{
                        **self._special,
                        "documents": None,  # templates ask whether it is none, not whether it is defined
                        **self.kwargs,
                        **(kwargs or {}),
                        "messages": [dict(message) for message in messages],
                        "add_generation_prompt": generation_prompt,
                        "tools": [dict(tool) for tool in tools] if tools else None,
                    }
                )
            )
        except Exception as error:  # the model's own code: it fails on a shape that it does not know by any exception
            said = str(error) or type(error).__name__
            raise DataError(f"the chat template refused the messages: {said}", fix="correct the row's messages") from (
                error
            )

    @cached_property
    def _compiled(self) -> Any:
        return _environment(self._began).from_string(self.chat_template)

    @cached_property
    def _shape(self) -> ChatShape:
        return shape_of(lambda chat, tools: self._rendered(chat, True, tools))

    @cached_property
    def _call_shape(self) -> ChatShape:
        return self._shape.with_calls(lambda chat, tools: self._rendered(chat, True, tools))

    @cached_property
    def turns(self) -> TurnBridge:
        """Bridge of ids between an answer and the next one."""
        from areal.workflow.bridge import TurnBridge

        return TurnBridge(self)

    @cached_property
    def content(self) -> ContentEncoder:
        """Encodes chats in which what is said is data."""
        return ContentEncoder(self)

    @cached_property
    def image_text(self) -> str:
        """What the chat template writes for an image. Raises DataError where that isn't one placeholder."""
        part, said, shape = {"type": "image"}, {"type": "text", "text": MARK}, self.image_shape
        try:
            with_one, without = (
                self._rendered([{"role": "user", "content": content}], True, None).partition(MARK)[0]
                for content in ([part, said], [said])
            )
        except DataError:
            with_one = without = ""
        text = with_one.removeprefix(without)
        if shape is None or text == with_one or (self.encode(text, special=False) == shape.token).sum() != 1:
            raise DataError(
                "the chat template writes no placeholder for an image", fix="name the model's own in model.chatTemplate"
            )
        return text

    def encode_chat(self, rendered: RenderedChat, images: Sequence[Image] = ()) -> Ids:
        """Token ids of a chat `[tokens]`: control strings in what is said there are the tokens of their characters, and
        each mark of an image is as many placeholders as the image takes. Raises DataError."""
        if not images or self.image_shape is None:
            return self.content.encode(rendered)
        return self.image_shape.expanded(self.content.encode(rendered.replaced(MARK, self.image_text)), images)

    def encode_plain(self, text: str) -> Ids:
        """Token ids of a prompt that is no chat `[tokens]`, with what the tokenizer puts around a text: control strings
        in it are the tokens of their characters."""
        ids = self.encode(text)
        if self.content.control is None or not self.content.control.search(text):
            return ids
        bare, around = self.encode("a", special=False).tolist(), self.encode("a").tolist()
        lead = next((place for place in range(len(around)) if around[place : place + len(bare)] == bare), 0)
        said = self.content.encode(RenderedChat(text, ((0, len(text)),)))
        return as_ids([*around[:lead], *said.tolist(), *around[lead + len(bare) :]])

    def encode_turn(self, text: str, *, after_end: bool = True) -> Ids:
        """Token ids that follow a model's answer when a user says `text`: by the chat template where there is one,
        otherwise the text between two line ends.

        `after_end` says that the answer holds its end token already. Raises DataError where the template can't be
        continued exactly, or loses the text.
        """
        end = self.turns.end if after_end else None
        return self.turns.ids([{"role": "user", "content": text}], last_id=end)


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


def _environment(began: datetime) -> Any:
    """Jinja environment of chat templates, as Hugging Face has it: sandboxed, with the functions that they expect.

    `began` is what they read as the time: a prompt doesn't change while a run goes on.
    """
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
    environment.globals["strftime_now"] = began.strftime
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Filter of templates: without the escapes for HTML that Jinja's own makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


MORE_TEMPLATES = Path("additional_chat_templates")


def chat_template_of(directory: Path) -> str | None:
    """The template of a tokenizer; None where it has none. Where it has another one for requests with tools, one text
    that takes either, by the rules of transformers. Raises DataError for a file that is no JSON.
    """
    files = ("tokenizer_config.json", "chat_template.json")
    found = next((one for name in files if (one := _read_json(directory / name).get("chat_template"))), None)
    named = {entry.get("name"): entry.get("template") for entry in found} if isinstance(found, list) else {}
    beside = [directory / "chat_template.jinja", directory / MORE_TEMPLATES / "tool_use.jinja"]
    plain, tools = (file.read_text() if file.is_file() else None for file in beside)
    plain, tools = plain or named.get("default", found), tools or named.get("tool_use")
    if isinstance(plain, str) and isinstance(tools, str):
        ends = [text.removesuffix("\n") for text in (tools, plain)]  # as Jinja leaves it out at a template's end
        return f"{{% if tools %}}{ends[0]}{{% else %}}{ends[1]}{{% endif %}}"
    return plain if isinstance(plain, str) else None


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
