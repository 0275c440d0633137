"""JSON schemas: the forms in which they come, and where in them a fault lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from outdraft.errors import SettingsError

Schema = Mapping[str, Any]

_SHARED = ("$defs", "definitions")
_MAPS = (*_SHARED, "properties", "patternProperties", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_VALUES = ("const", "enum", "default", "examples")
_SINGLES = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contains",
    "not",
    "if",
    "then",
    "else",
)


def as_schema_text(schema: Any) -> str | None:
    """A schema as JSON text.

    Args:
        schema: a mapping, JSON text, or a class of pydantic's, which knows its own schema; keys
            that such a class does not ask for are not written, unless it says that it keeps them.

    Raises:
        SettingsError: it is none of these, or the text is no JSON object.
    """
    if schema is None:
        return None
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        schema = _closed(schema.model_json_schema())
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except json.JSONDecodeError as error:
            raise SettingsError(
                f"json_schema: the text is no JSON ({error.msg} at line {error.lineno}, "
                f"column {error.colno})"
            ) from None
    if not isinstance(schema, Mapping):
        raise SettingsError(
            "json_schema: a schema is a dict, its JSON text or a pydantic model class; "
            f"got {type(schema).__name__}"
        )
    try:
        return json.dumps(dict(schema), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"json_schema: the schema cannot be written as JSON ({error})"
        ) from None


def place_of_fault(schema: Schema, message: str, fault_of: Callable[[Schema], str]) -> str:
    """JSON pointer of the innermost part of a schema that has the same fault by itself.

    Args:
        message: what is wrong with the whole.
        fault_of: what is wrong with a schema, empty if nothing is.
    """
    shared = {name: schema[name] for name in _SHARED if name in schema}
    pointer, part, is_deeper = "", schema, True
    while is_deeper:
        is_deeper = False
        for step, inner in _parts(part):
            if fault_of({**shared, **inner}) == message:
                pointer, part, is_deeper = pointer + step, inner, True
                break
    return pointer


def _closed(part: Any) -> Any:
    """A part of a schema, with objects that have the properties they name and no others."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    closed = {key: each if key in _VALUES else _closed(each) for key, each in part.items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas directly inside of one, with the way to them."""
    # what others refer to comes first: a fault lies there and not where it is referred to
    for name in sorted(schema, key=lambda name: name not in _SHARED):
        inner = schema[name]
        found: Iterable[tuple[str, Any]] = ()
        if name in _SINGLES and isinstance(inner, Mapping):
            yield f"/{name}", inner
        elif name in _MAPS and isinstance(inner, Mapping):
            found = inner.items()
        elif name in _LISTS and isinstance(inner, list):
            found = ((str(index), each) for index, each in enumerate(inner))
        for key, each in found:
            if isinstance(each, Mapping):
                yield f"/{name}/{_escaped(key)}", each


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
