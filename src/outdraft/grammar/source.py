"""What a text has to look like, as somebody wrote it, checked before any model is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal, get_args

from outdraft.errors import SettingsError
from outdraft.grammar.schema import place_of_fault

Kind = Literal["json_schema", "regex", "grammar", "choices"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The settings by which a grammar comes."""

# As Python's json.dumps writes it. Free white space would let a model write nothing else for ever.
_JSON_STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A checked grammar.

    Args:
        kind: the setting it came by.
        text: what llguidance makes of it.
    """

    kind: Kind
    text: str


@lru_cache(maxsize=64)  # requests with the same grammar come in numbers
def read_source(kind: Kind, value: str | tuple[str, ...]) -> GrammarSource:
    """Checks what a user wrote.

    Args:
        value: JSON text of a schema, a regular expression, a Lark or GBNF grammar, or choices.

    Raises:
        SettingsError: llguidance is not installed, or refuses it; the message names the place.
    """
    if kind == "choices":
        text = _of_choices(value)
    else:
        assert isinstance(value, str)
        make = {"json_schema": _of_schema, "regex": _of_regex, "grammar": _of_grammar}[kind]
        text = make(value)
    fault = _fault_of(text)
    if fault and kind == "json_schema":
        assert isinstance(value, str)
        schema = json.loads(value)
        pointer = place_of_fault(schema, fault, lambda part: _fault_of(_of_schema(part)))
        fault = f"{fault}, at {pointer or 'the top'} of the schema"
    if fault:
        raise SettingsError(f"{kind}: {fault}")
    return GrammarSource(kind, text)


def import_llguidance() -> ModuleType:
    """The library that knows grammars.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise SettingsError(
            "json_schema, regex, grammar and choices need llguidance; "
            "run `pip install 'outdraft[grammar]'`"
        ) from error
    return llguidance


def _of_schema(schema: Any) -> str:
    matcher = import_llguidance().LLMatcher
    return str(matcher.grammar_from_json_schema(schema, defaults=_JSON_STYLE))


def _of_regex(regex: str) -> str:
    return str(import_llguidance().LLMatcher.grammar_from_regex(regex))


def _of_grammar(text: str) -> str:
    try:
        return str(import_llguidance().grammar_from("grammar", text))
    except ValueError as error:
        raise SettingsError(
            f"grammar: {error}; a Lark grammar has a rule `start: ...`, one in GBNF `root ::= ...`"
        ) from None


def _of_choices(choices: Seq[str]) -> str:
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return str(import_llguidance().LLMatcher.grammar_from_lark(f"start: {alternatives}"))


def _fault_of(text: str) -> str:
    is_error, messages = import_llguidance().LLMatcher.validate_grammar_with_warnings(text)
    return messages[0].strip() if is_error else ""
