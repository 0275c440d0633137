"""What a user may set, checked when it is set; and what "auto" means.

Unknown names are refused, so a misspelt option is an error and never a shrug.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from outdraft.errors import SettingsError

DEFAULT_MODEL = "smollm2-135m"
AUTO_DRAFTER = "suffix,recycling,prediction"
AUTO_ID_ONLY = "suffix"  # of these, what can be replayed without a model


def _as_tuple(value: Any) -> Any:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_readable(error, type(self))) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, checked anew."""
        return type(self)(**{**self.model_dump(), **changes})


def _readable(error: ValidationError, cls: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = ", ".join(sorted(cls.model_fields))
            lines.append(f"{name}: there is no such setting; known are {known}")
        else:
            lines.append(f"{name}={problem['input']!r}: {problem['msg']}")
    return "; ".join(lines)


class GenerationSettings(_Settings):
    """What one request asks for.

    Args:
        max_new_tokens: tokens to generate at most.
        temperature: 0 takes the likeliest token; above 0, logits are divided by it.
        top_k: keep the k likeliest tokens; `None` keeps all.
        top_p: keep the likeliest tokens until their probabilities reach this sum.
        min_p: keep tokens at least this fraction as likely as the likeliest.
        seed: of the noise; the same seed gives the same text. `None` takes fresh entropy.
        stop: strings that end the text; the text returned ends before them.
        ignore_eos: go on past the model's end-of-text tokens.
        prediction: the text the answer is expected to be; only a guess, for drafters that use it.
    """

    max_new_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_tuple)
    ] = ()
    ignore_eos: bool = False
    prediction: str | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


class EngineSettings(_Settings):
    """How the engine runs; none of it changes any text.

    Args:
        max_batch: sequences that share target passes; further ones wait.
        max_draft_nodes: guesses per sequence and step at most.
        adaptive: read as many guesses as pay on this machine, none if none does; otherwise as many
            as there are.
        prompt_chunk: prompt rows read in one pass, and in one step while others decode.
        max_waiting: requests that a session lets wait for a place; further ones are refused.
        max_kept_tokens: of ended requests that a session or a chat keeps, so that prompts which
            begin like them need not be read again; 0 keeps none.
    """

    max_batch: int = Field(default=8, ge=1)
    max_draft_nodes: int = Field(default=15, ge=0)
    adaptive: bool = True
    prompt_chunk: int = Field(default=512, ge=1)
    max_waiting: int = Field(default=1024, ge=0)
    max_kept_tokens: int = Field(default=8192, ge=0)
