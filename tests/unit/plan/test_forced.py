"""What a grammar forces is planned first, and is nobody's merit but the grammar's."""

from __future__ import annotations

from outdraft.draft.plain import NoDrafter
from outdraft.grammar.source import read_source
from outdraft.interfaces import Drafter
from outdraft.plan import Unpriced
from outdraft.plan.blend import blend
from outdraft.plan.cost_model import CostModel
from outdraft.plan.forced import FORCED, add_forced
from outdraft.plan.pricing import Priced
from outdraft.sequence import Sequence
from outdraft.types import DraftTree
from support.grammars import grammar_tokenizer, tokenizer_of
from support.toys import make_sequence

END = 256


def ids(text: str) -> list[int]:
    return list(tokenizer_of("bytes")(text)["input_ids"])


def sequence_with(regex: str | None, **options: int) -> Sequence:
    matcher = None
    if regex is not None:
        matcher = grammar_tokenizer("bytes").matcher(read_source("regex", regex))
    return make_sequence(ids("x"), matcher=matcher, eos_ids=[END], **options)


class Fixed(Drafter):
    """Always says the same."""

    name = "fixed"

    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def propose(self, batch, budget):  # type: ignore[no-untyped-def]
        return [self._tree] * len(batch)


def test_every_path_goes_on_to_where_there_is_a_choice() -> None:
    sequence = sequence_with("ab[cd](e|f)gh?")
    tree = DraftTree.chain(ids("abc"), 0.5, "fixed")
    grown = add_forced(blend([tree]), sequence, 15)
    assert grown.tree.token_ids == (*ids("ab"), *ids("c"))
    assert grown.tree.acceptance == (1.0, 1.0, 0.5)
    assert grown.sources == ((FORCED, "fixed"), (FORCED, "fixed"), ("fixed",))


def test_the_ends_of_guesses_go_on_too_and_the_best_nodes_stand_first() -> None:
    sequence = sequence_with("(a|b)(cde|f(g|h))")
    tree = DraftTree((*ids("b"), *ids("a"), *ids("c")), (-1, -1, 1), (0.3, 0.6, 0.5), "fixed")
    grown = add_forced(blend([tree]), sequence, 15)
    probs = grown.tree.path_probs()
    assert probs == sorted(probs, reverse=True)
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(grown.tree.token_ids, grown.tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    assert set(paths) == {
        *(tuple(ids(path)) for path in ("a", "b", "ac", "acd", "acde")),
        (*ids("acde"), END),
    }
    assert grown.tree.drafter == "fixed,grammar"
    assert grown.sources[paths.index((*ids("acde"), END))] == (FORCED,)


def test_nothing_is_forced_on_a_text_without_grammar_or_without_room() -> None:
    merged = blend([DraftTree.chain([1], 0.5, "fixed")])
    assert add_forced(merged, sequence_with(None), 15) is merged
    assert add_forced(merged, sequence_with("abc", max_new_tokens=1), 15) is merged
    assert add_forced(merged, sequence_with("abc"), 0) is merged


def test_forced_paths_end_where_the_request_does() -> None:
    sequence = sequence_with("abcdefgh", max_new_tokens=4)
    assert add_forced(blend([]), sequence, 15).tree.token_ids == tuple(ids("abc"))
    assert add_forced(blend([]), sequence, 2).tree.token_ids == tuple(ids("ab"))


def test_the_grammars_guesses_come_with_those_of_drafters_but_not_with_plain_decoding() -> None:
    batch = [sequence_with("ab[cd]"), sequence_with(None)]
    guess = DraftTree.chain(ids("abz"), 0.5, "fixed")
    offer = Unpriced().ask(Fixed(guess), batch, 15)
    assert [draft.drafter for draft in offer.drafts] == ["fixed", FORCED]
    assert [len(tree) for tree in offer.trees] == [2, 3]  # z is forbidden in the first
    fixed, forced = offer.drafts
    assert [len(tree or ()) for tree in fixed.trees] == [2, 3]
    assert forced.trees[1] is None
    plain = Unpriced().ask(NoDrafter(), batch, 15)
    assert [len(tree) for tree in plain.trees] == [0, 0]
    assert [draft.drafter for draft in plain.drafts] == ["none"]


def test_certain_guesses_are_worth_their_rows() -> None:
    flat = CostModel([1, 2, 4, 8, 16], [1.0, 1.01, 1.02, 1.03, 1.04], per_pair=0.0)
    offer = Priced(flat).ask(Fixed(DraftTree(drafter="fixed")), [sequence_with("abcdef")], 15)
    assert offer.width == len(ids("abcdef")) + 1  # and the end
    steep = CostModel([1, 2, 4, 8, 16], [1.0, 9.0, 99.0, 999.0, 9999.0], per_pair=0.0)
    offer = Priced(steep).ask(Fixed(DraftTree(drafter="fixed")), [sequence_with("abcdef")], 15)
    assert offer.width == 0
