"""Grammars of every kind, and who can read what they allow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from outdraft.grammar.matcher import Matcher
from outdraft.grammar.source import GrammarSource, read_source
from outdraft.grammar.tokenizer import GrammarTokenizer
from outdraft.models.byte_tokenizer import byte_tokenizer
from support.two_tokenizers import byte_level, metaspace

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "colour": {"enum": ["red", "green", "blue-green"]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "colour", "sizes"],
    "additionalProperties": False,
}
REGEX = r"([A-Z][a-z]{1,4} (is|was) [0-9]{1,3}(, )?){1,3}"
LARK = """
start: "the " NOUN (" and the " NOUN)* "."
NOUN: /[a-z]{1,5}/ | "naïve 🙂"
"""
GBNF = """
root ::= "sum(" item (", " item){1,3} ")"
item ::= [0-9]+ | "x"
"""
CHOICES = ("no", "nothing", "not at all", 'say "🙂"\n')

GRAMMARS: dict[str, dict[str, Any]] = {
    "json_schema": {"json_schema": json.dumps(SCHEMA)},
    "regex": {"regex": REGEX},
    "lark": {"grammar": LARK},
    "gbnf": {"grammar": GBNF},
    "choices": {"choices": CHOICES},
}


def is_right(name: str, text: str) -> bool:
    """Whether a whole text is one of those that the grammar of that name allows."""
    if name == "json_schema":
        return _fits_schema(json.loads(text))
    if name == "choices":
        return text in CHOICES
    noun = "([a-z]{1,5}|naïve 🙂)"
    patterns = {
        "regex": REGEX,
        "lark": rf"the {noun}( and the {noun})*\.",
        "gbnf": r"sum\(([0-9]+|x)(, ([0-9]+|x)){1,3}\)",
    }
    return re.fullmatch(patterns[name], text) is not None


def _fits_schema(value: Any) -> bool:
    return (
        list(value) == ["name", "colour", "sizes"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and value["colour"] in ("red", "green", "blue-green")
        and 1 <= len(value["sizes"]) <= 3
        and all(type(size) is int for size in value["sizes"])
    )


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "bytes": byte_tokenizer,
    "byte-level": lambda: byte_level(420),
    "metaspace": lambda: metaspace(420),
}


@cache
def tokenizer_of(name: str) -> Any:
    return TOKENIZERS[name]()


@cache
def grammar_tokenizer(name: str) -> GrammarTokenizer:
    """Of a target whose logits have a few rows more than the tokenizer has tokens."""
    tokenizer = tokenizer_of(name)
    return GrammarTokenizer(
        tokenizer, vocab_size=len(tokenizer) + 7, eos_ids=[tokenizer.eos_token_id]
    )


@cache
def source_of(name: str) -> GrammarSource:
    ((kind, value),) = GRAMMARS[name].items()
    return read_source(kind, value)


def matcher_of(grammar: str, tokenizer: str) -> Matcher:
    return grammar_tokenizer(tokenizer).matcher(source_of(grammar))
