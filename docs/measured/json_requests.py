"""Thirty requests for JSON, plainly and drafted: `python json_requests.py [DTYPE]`.

Fails unless every answer parses and is, token for token, the plain one.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

import outdraft

Name = Annotated[str, StringConstraints(max_length=24)]
Line = Annotated[str, StringConstraints(max_length=60)]
Count = Annotated[int, Field(ge=0, le=9999)]


class Address(BaseModel):
    """Nested in others."""

    street: Name
    number: Annotated[int, Field(ge=1, le=999)]
    city: Literal["Zürich", "Kraków", "São Paulo", "Reykjavík", "東京"]


class Person(BaseModel):
    """An object in an object, and a choice."""

    name: Name
    age: Annotated[int, Field(ge=0, le=120)]
    address: Address
    role: Literal["reader", "author", "editor"]


class Recipe(BaseModel):
    """Arrays of objects."""

    class Ingredient(BaseModel):
        """One of them."""

        name: Name
        amount: Count
        unit: Literal["g", "ml", "tsp", "½ cup", "piece"]

    title: Line
    servings: Annotated[int, Field(ge=1, le=12)]
    ingredients: Annotated[list[Ingredient], Field(min_length=1, max_length=3)]
    steps: Annotated[list[Line], Field(min_length=1, max_length=3)]


class Review(BaseModel):
    """Unicode among the choices."""

    product: Name
    stars: Literal["★", "★★", "★★★", "★★★★", "★★★★★"]
    mood: Literal["😀", "😐", "😞"]
    pros: Annotated[list[Name], Field(max_length=3)]
    cons: Annotated[list[Name], Field(max_length=3)]
    would_buy_again: bool


class Event(BaseModel):
    """A pattern, an optional part and objects in an array in an object."""

    title: Line
    date: Annotated[str, StringConstraints(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]$")]
    place: Address | None
    guests: Annotated[list[Name], Field(min_length=1, max_length=4)]


class Call(BaseModel):
    """What a program is asked to do."""

    class Arguments(BaseModel):
        """Of the function."""

        query: Line
        limit: Annotated[int, Field(ge=1, le=100)]
        order: Literal["newest", "oldest", "relevance"]

    function: Literal["search_mail", "search_files", "search_web"]
    arguments: Arguments


class Table(BaseModel):
    """Arrays in arrays."""

    caption: Line
    columns: Annotated[list[Name], Field(min_length=2, max_length=3)]
    rows: Annotated[
        list[Annotated[list[Count], Field(min_length=2, max_length=3)]],
        Field(min_length=1, max_length=3),
    ]


REQUESTS: dict[type[BaseModel], tuple[str, ...]] = {
    Person: (
        "Make up a librarian from Poland.",
        "Describe Ada, 36, who writes books in Zürich.",
        "Who edits the paper in Reykjavík? Invent somebody.",
        "A retired teacher who likes to read.",
        "一位住在东京的作家。",
    ),
    Recipe: (
        "A recipe for pancakes.",
        "How do I make a tomato soup for four?",
        "Something sweet with apples.",
        "Une recette de crêpes bretonnes.",
        "The quickest breakfast you know.",
    ),
    Review: (
        "Review a pair of rain boots that leaked.",
        "The best headphones I ever had!",
        "A kettle that is fine, nothing more.",
        "Bewerte einen Wasserkocher, der zu laut ist.",
    ),
    Event: (
        "A birthday party for Grandma in May.",
        "Plan a chess tournament in Kraków.",
        "The yearly meeting of the garden club.",
        "A concert, with at least two guests of honour.",
    ),
    Call: (
        "Find the newest mails from Lena about the lease.",
        "Where did I save the budget of 2023?",
        "What do people write about heat pumps?",
        "Busca los correos antiguos de mi abuela.",
    ),
    Table: (
        "Sales of apples and pears in three months.",
        "Points of two teams in three games.",
        "How many letters came on Monday and Tuesday?",
        "Rainfall in Oslo and Bergen.",
    ),
    Address: (
        "Where does the pastry shop lie?",
        "The address of a museum in São Paulo.",
        "A hotel in 東京, please.",
        "Where may I send the parcel?",
    ),
}


def main() -> None:
    """Prints, for both ways, how many passes all answers took and how many of them parse."""
    llm = outdraft.load(dtype=sys.argv[1] if len(sys.argv) > 1 else "float32")
    requests = [(wanted, text) for wanted, texts in REQUESTS.items() for text in texts]
    passes = {"none": 0, "auto": 0}
    texts: dict[str, list[tuple[int, ...]]] = {drafter: [] for drafter in passes}
    num_tokens = 0
    for wanted, text in requests:
        chat = [{"role": "user", "content": f"{text} Answer with JSON."}]
        for drafter in passes:
            result = llm.generate(chat, drafter=drafter, json_schema=wanted, max_new_tokens=400)
            wanted.model_validate_json(result.text)  # raises if it does not fit
            passes[drafter] += result.stats.steps + 1
            texts[drafter].append(result.token_ids)
        num_tokens += len(result.token_ids)
    if texts["none"] != texts["auto"]:
        sys.exit("some answers differ from the plain ones")
    sys.stdout.write(
        f"{len(requests)} answers, {num_tokens} tokens, all parse, drafted as plain: "
        f"{passes['none']} passes plainly, {passes['auto']} with auto, "
        f"{passes['none'] / passes['auto']:.2f} times as many\n"
    )


main()
