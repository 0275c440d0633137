"""What a user may set, checked when it is set; and what "auto" means.

Unknown names are refused, so a misspelt option is an error and never a shrug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from outdraft.errors import SettingsError
from outdraft.grammar.schema import as_schema_text
from outdraft.grammar.source import KINDS, GrammarSource, read_source

DEFAULT_MODEL = "smollm2-135m"
AUTO_DRAFTER = "suffix,recycling,prediction"
AUTO_ID_ONLY = "suffix"  # of these, what can be replayed without a model


def _as_tuple(value: Any) -> Any:
    """None, one or several of something; lists are taken for tuples all the way down."""
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return tuple(_as_tuple(item) if isinstance(item, list) else item for item in value)
    return (value,)


def _as_choices(value: Any) -> Any:
    return None if value is None else _as_tuple(value)


def _as_pairs(value: Any) -> Any:
    return _as_tuple(list(value.items()) if isinstance(value, Mapping) else value)


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_readable(error, type(self))) from None

    @property
    def chosen(self) -> dict[str, Any]:
        """What was named when it was made, defaults left out."""
        return {name: value for name, value in self if name in self.model_fields_set}

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, checked anew."""
        return type(self)(**{**dict(self), **changes})


def _readable(error: ValidationError, cls: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        # Of the parts between, some are names that pydantic gives to the choices it tried.
        places = [part for i, part in enumerate(problem["loc"]) if i == 0 or isinstance(part, int)]
        name = ".".join(str(part) for part in places)
        if problem["type"] == "extra_forbidden":
            known = ", ".join(sorted(cls.model_fields))
            lines.append(f"{name}: there is no such setting; known are {known}")
        elif problem["type"] == "value_error":  # of several settings together
            lines.append(str(problem["ctx"]["error"]))
        else:
            lines.append(f"{name}={problem['input']!r}: {problem['msg']}")
    return "; ".join(lines)


_TokenId = Annotated[int, Field(ge=0)]
_TokenIds = Annotated[tuple[_TokenId, ...], BeforeValidator(_as_tuple)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Text = Annotated[str, Field(min_length=1)]
_Callables = Annotated[tuple[Callable[..., Any], ...], BeforeValidator(_as_tuple)]


class GenerationSettings(_Settings):
    """What one request asks for; see docs/requests.md for the order in which it is applied.

    Args:
        max_new_tokens: tokens to generate at most.
        min_new_tokens: nothing but a length ends the text before it has so many tokens.
        temperature: 0 takes the likeliest token; above 0, logits are divided by it.
        top_k: keep the k likeliest tokens; `None` keeps all.
        top_p: keep the likeliest tokens until their probabilities reach this sum.
        min_p: keep tokens at least this fraction as likely as the likeliest.
        typical_p: keep the tokens whose surprise is nearest to the expected one until their
            probabilities reach this sum.
        epsilon_cutoff: keep tokens at least this likely.
        eta_cutoff: the same, with a lower bar where many tokens are likely.
        repetition_penalty: divides positive logits of tokens of prompt and text, and multiplies
            negative ones.
        presence_penalty, frequency_penalty: taken off the logits of tokens that the text so far
            (without the prompt) holds; once, and as often as it holds them.
        no_repeat_ngram_size: no run of so many tokens comes twice; 0 allows all.
        bad_words: strings or lists of token ids that may not come up.
        suppress_ids: tokens that may not come up.
        logit_bias: from token ids to what is added to their logits.
        logits_processors: `LogitsProcessor`s of transformers, or callables like them.
        seed: of the noise; the same seed gives the same text. `None` takes fresh entropy.
        stop: strings that end the text; the text returned ends before them.
        include_stop: the text returned ends behind the stop string instead.
        stop_ids: tokens that end the text, beside the model's own.
        stop_when: callables that end the text: called once per token with all new token ids and
            all text so far, they return whether to stop.
        ignore_eos: go on past the model's end-of-text tokens.
        logprobs: return log-probabilities: of each token, and of this many likeliest ones; 0 if
            `best_of` is given.
        prompt_logprobs: return them for the prompt's tokens, too.
        n: answers to the same prompt; the first has the request's seed.
        best_of: draw so many answers and return the `n` with the highest mean log-probability.
        prediction: the text the answer is expected to be; only a guess, for drafters that use it.
        json_schema: the text is JSON of this schema: a dict, JSON text or a pydantic model class.
        regex: all of the text matches this regular expression.
        grammar: the text follows this grammar, in Lark or GBNF.
        choices: the text is one of these. Of the last four, one can be given; see docs/grammars.md.
    """

    max_new_tokens: int = Field(default=256, ge=1)
    min_new_tokens: int = Field(default=0, ge=0)
    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    typical_p: float = Field(default=1.0, gt=0.0, le=1.0)
    epsilon_cutoff: float = Field(default=0.0, ge=0.0, lt=1.0)
    eta_cutoff: float = Field(default=0.0, ge=0.0, lt=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    presence_penalty: _Finite = 0.0
    frequency_penalty: _Finite = 0.0
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    bad_words: Annotated[
        tuple[_Text | Annotated[tuple[_TokenId, ...], Field(min_length=1)], ...],
        BeforeValidator(_as_tuple),
    ] = ()
    suppress_ids: _TokenIds = ()
    logit_bias: Annotated[tuple[tuple[_TokenId, _Finite], ...], BeforeValidator(_as_pairs)] = ()
    logits_processors: _Callables = ()
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: Annotated[tuple[_Text, ...], BeforeValidator(_as_tuple)] = ()
    include_stop: bool = False
    stop_ids: _TokenIds = ()
    stop_when: _Callables = ()
    ignore_eos: bool = False
    logprobs: int | None = Field(default=None, ge=0)
    prompt_logprobs: bool = False
    n: int = Field(default=1, ge=1)
    best_of: int | None = Field(default=None, ge=1)
    prediction: str | None = None
    json_schema: Annotated[str | None, BeforeValidator(as_schema_text)] = None
    regex: str | None = Field(default=None, min_length=1)
    grammar: str | None = Field(default=None, min_length=1)
    choices: Annotated[
        Annotated[tuple[_Text, ...], Field(min_length=1)] | None, BeforeValidator(_as_choices)
    ] = None
    _grammar_source: GrammarSource | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _has_no_contradictions(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens={self.min_new_tokens} is more than "
                f"max_new_tokens={self.max_new_tokens}; lower the one or raise the other"
            )
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(
                f"best_of={self.best_of} is less than n={self.n}; draw at least as many answers "
                "as are returned"
            )
        if self.is_greedy and self.num_samples > 1:
            raise ValueError(
                f"temperature=0.0: {self.num_samples} answers would all be the same; give a "
                "temperature above 0, or ask for one answer"
            )
        return self

    @model_validator(mode="after")
    def _has_one_grammar_that_can_be_followed(self) -> Self:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; give one of them")
        if given and self.ignore_eos:
            raise ValueError(
                f"ignore_eos goes on past the end of a text, and {given[0]} says where that is; "
                "leave one of them out"
            )
        if given:
            self._grammar_source = read_source(given[0], getattr(self, given[0]))
        return self

    @property
    def grammar_source(self) -> GrammarSource | None:
        """What the text has to look like, if that was said."""
        return self._grammar_source

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None or self.best_of is not None

    @property
    def num_samples(self) -> int:
        """Answers to draw; of these, the best `n` are returned."""
        return self.n if self.best_of is None else self.best_of


OwnSettings = GenerationSettings | Mapping[str, Any]
"""What one prompt of a list asks for; of an object, what was set when it was made."""


def settings_of_each(
    num_prompts: int, common: Mapping[str, Any], per_prompt: Seq[OwnSettings] | None
) -> list[GenerationSettings]:
    """The settings of each prompt of a list: its own before the common ones."""
    if per_prompt is None:
        return [GenerationSettings(**common)] * num_prompts
    if len(per_prompt) != num_prompts:
        raise SettingsError(
            f"per_prompt has settings for {len(per_prompt)} prompts, but there are {num_prompts}; "
            "give one for each, {} where nothing is special"
        )
    return [
        GenerationSettings(
            **{**common, **(own.chosen if isinstance(own, GenerationSettings) else own)}
        )
        for own in per_prompt
    ]


class EngineSettings(_Settings):
    """How the engine runs; none of it changes any text.

    Args:
        max_batch: sequences that share target passes; further ones wait.
        max_draft_nodes: guesses per sequence and step at most.
        adaptive: read as many guesses as pay on this machine, none if none does; otherwise as many
            as there are.
        prompt_chunk: prompt rows read in one pass, and in one step while others decode.
        max_waiting: requests that a session lets wait for a place; further ones are refused.
        max_cached_tokens: room for those that run: their number times the tokens that the longest
            may reach, prompt included, since all get room alike. A request waits until it fits, and
            one that never would is refused; `None` leaves the bound to `max_batch` and the model.
        max_kept_tokens: of ended requests that a session or a chat keeps, so that prompts which
            begin like them need not be read again; 0 keeps none.
    """

    max_batch: int = Field(default=8, ge=1)
    max_draft_nodes: int = Field(default=15, ge=0)
    adaptive: bool = True
    prompt_chunk: int = Field(default=512, ge=1)
    max_waiting: int = Field(default=1024, ge=0)
    max_cached_tokens: int | None = Field(default=None, ge=2)
    max_kept_tokens: int = Field(default=8192, ge=0)
