"""What a user wrote is checked at once, and a fault says where it is."""

from __future__ import annotations

import builtins
import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from outdraft.errors import SettingsError
from outdraft.grammar.schema import as_schema_text
from outdraft.grammar.source import read_source
from support.grammars import GRAMMARS


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_kind_of_grammar_is_read(name: str) -> None:
    ((kind, value),) = GRAMMARS[name].items()
    source = read_source(kind, value)
    assert source.kind == kind
    assert source == read_source(kind, value)
    assert hash(source) == hash(read_source(kind, value))


@pytest.mark.parametrize(
    "schema", [Person.model_json_schema(), json.dumps(Person.model_json_schema())]
)
def test_a_schema_is_a_dict_or_its_text(schema: Any) -> None:
    text = as_schema_text(schema)
    assert text is not None
    assert json.loads(text) == Person.model_json_schema()


class Family(BaseModel):
    members: list[Person]


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = "additional"


def test_a_model_class_asks_for_its_own_fields_and_no_others() -> None:
    schema = json.loads(as_schema_text(Family) or "")
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Person"]["additionalProperties"] is False
    del schema["additionalProperties"], schema["$defs"]["Person"]["additionalProperties"]
    assert schema == Family.model_json_schema()
    assert json.loads(as_schema_text(Anything) or "") == Anything.model_json_schema()


def test_no_schema_stays_none() -> None:
    assert as_schema_text(None) is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ('{"type": "object",}', r"no JSON .* at line 1, column 1"),
        ("[1, 2]", "got list"),
        (3, "got int"),
        (Person(name="Ada", age=36), "got Person"),
        ({"const": {1, 2}}, "cannot be written as JSON"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        as_schema_text(schema)


FAULTY = {"type": "string", "format": "zork"}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (FAULTY, "the top"),
        ({"properties": {"a": FAULTY}}, "/properties/a"),
        ({"properties": {"a/b~c": FAULTY}}, "/properties/a~1b~0c"),
        ({"properties": {"a": {"type": "array", "items": FAULTY}}}, "/properties/a/items"),
        ({"anyOf": [{"type": "null"}, {"prefixItems": [{}, FAULTY]}]}, "/anyOf/1/prefixItems/1"),
        ({"additionalProperties": FAULTY}, "/additionalProperties"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": FAULTY}}, "/$defs/x"),
        (
            {"$defs": {"x": {"type": "null"}}, "allOf": [{"$ref": "#/$defs/x"}, FAULTY]},
            "/allOf/1",
        ),
    ],
)
def test_a_fault_in_a_schema_names_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(SettingsError, match="Unknown format: zork") as caught:
        read_source("json_schema", json.dumps(schema))
    assert str(caught.value).endswith(f"at {place} of the schema")


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("json_schema", '{"not": {"type": "null"}}', 'Unimplemented keys: \\["not"\\]'),
        ("regex", "(a", "unclosed group"),
        ("grammar", "start: b", 'unknown name: "b"'),
        ("grammar", "root ::= b", "Rule 'b' not found; a Lark grammar has a rule `start: ...`"),
    ],
)
def test_what_cannot_be_followed_is_refused(kind: Any, value: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read_source(kind, value)


def test_without_the_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SettingsError, match=r"pip install 'outdraft\[grammar\]'"):
        read_source("regex", "nobody has read this one before")
