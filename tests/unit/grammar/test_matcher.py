"""What may follow a row depends on the tokens before it and on nothing else."""

from __future__ import annotations

import random

import pytest

from outdraft.errors import SettingsError
from outdraft.grammar.matcher import Matcher
from outdraft.grammar.source import read_source
from outdraft.types import DraftTree
from support.grammars import GRAMMARS, TOKENIZERS, grammar_tokenizer, matcher_of, tokenizer_of

every_grammar = pytest.mark.parametrize("grammar", GRAMMARS)
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS)


def allowed(matcher: Matcher) -> list[int]:
    """Tokens that may follow the committed text."""
    return matcher.mask_rows(DraftTree())[0].nonzero().flatten().tolist()


def fresh(grammar: str, tokenizer: str, token_ids: list[int]) -> Matcher:
    matcher = matcher_of(grammar, tokenizer)
    for token_id in token_ids:
        matcher.advance(token_id)
    return matcher


def ids_of(tokenizer: str, text: str) -> list[int]:
    return list(tokenizer_of(tokenizer)(text, add_special_tokens=False)["input_ids"])


def random_tree(matcher: Matcher, rng: random.Random, vocab: int) -> DraftTree:
    """Guesses of which about two thirds are allowed, at chosen places."""
    nodes: list[tuple[int, int]] = []
    for _ in range(rng.randrange(9)):
        parent = rng.randrange(-1, len(nodes))
        drawn = DraftTree(
            tuple(token for token, _ in nodes),
            tuple(place for _, place in nodes),
            (0.5,) * len(nodes),
        )
        mask = matcher.mask_rows(drawn)[parent + 1].nonzero().flatten().tolist()
        token = rng.choice(mask) if rng.random() < 0.66 else rng.randrange(vocab)
        if (token, parent) not in nodes:
            nodes.append((token, parent))
    return DraftTree(
        tuple(token for token, _ in nodes),
        tuple(place for _, place in nodes),
        tuple(rng.uniform(0.1, 1.0) for _ in nodes),
        "random",
        tuple((rng.random(),) for _ in nodes),
    )


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    return paths


@every_tokenizer
@every_grammar
def test_looking_at_guesses_changes_nothing(grammar: str, tokenizer: str) -> None:
    rng = random.Random(f"{grammar} {tokenizer}")
    vocab, eos_id = len(tokenizer_of(tokenizer)), tokenizer_of(tokenizer).eos_token_id
    for _ in range(2):
        matcher, text = matcher_of(grammar, tokenizer), list[int]()
        while not matcher.is_finished and len(text) < 16:
            tree = random_tree(matcher, rng, vocab)
            pruned = matcher.prune(tree)
            grown = matcher.add_forced(pruned, 6)
            masks = matcher.mask_rows(grown)
            for row, path in enumerate([(), *paths_of(grown)]):
                if eos_id not in path:
                    other = fresh(grammar, tokenizer, [*text, *path])
                    assert masks[row].equal(other.mask_rows(DraftTree())[0])
            matcher.advance(rng.choice(allowed(matcher)))
            text = [*text, matcher._root.token_id]


@every_tokenizer
@every_grammar
def test_pruning_keeps_what_the_masks_allow_and_nothing_else(grammar: str, tokenizer: str) -> None:
    rng = random.Random(f"{tokenizer} {grammar}")
    vocab, eos_id = len(tokenizer_of(tokenizer)), tokenizer_of(tokenizer).eos_token_id
    num_cut = 0
    matcher = matcher_of(grammar, tokenizer)
    while not matcher.is_finished and matcher._root.depth < 16:
        tree = random_tree(matcher, rng, vocab)
        masks, paths = matcher.mask_rows(tree), paths_of(tree)
        legal: set[tuple[int, ...]] = {()}
        for node, path in enumerate(paths):
            is_open = path[:-1] in legal and eos_id not in path[:-1]
            if is_open and masks[tree.parents[node] + 1, path[-1]]:
                legal.add(path)
        pruned = matcher.prune(tree)
        assert set(paths_of(pruned)) == legal - {()}
        for node, path in enumerate(paths_of(pruned)):
            before = paths.index(path)
            assert pruned.acceptance[node] == tree.acceptance[before]
            assert pruned.scores[node] == tree.scores[before]
        num_cut += len(tree) - len(pruned)
        matcher.advance(rng.choice(allowed(matcher)))
    assert num_cut > 0


@every_tokenizer
@every_grammar
def test_tokens_without_an_alternative_are_guessed_as_certain(grammar: str, tokenizer: str) -> None:
    rng = random.Random(f"{grammar} on {tokenizer}")
    vocab = len(tokenizer_of(tokenizer))
    matcher, num_forced = matcher_of(grammar, tokenizer), 0
    while not matcher.is_finished and matcher._root.depth < 16:
        pruned = matcher.prune(random_tree(matcher, rng, vocab))
        grown = matcher.add_forced(pruned, 6)
        masks, depths = matcher.mask_rows(grown), grown.depths()
        assert grown.token_ids[: len(pruned)] == pruned.token_ids
        assert grown.parents[: len(pruned)] == pruned.parents
        for node, parent in enumerate(grown.parents):
            is_certain = masks[parent + 1].sum() == 1
            if node >= len(pruned):
                assert masks[parent + 1, grown.token_ids[node]]
                assert depths[node] <= 6
                assert (grown.acceptance[node] == 1.0) == is_certain
            else:
                assert grown.acceptance[node] >= pruned.acceptance[node]
            if is_certain:
                assert grown.acceptance[node] == 1.0
        parents = set(grown.parents)
        for row, depth in enumerate([0, *depths]):
            is_end = row > 0 and grown.token_ids[row - 1] == tokenizer_of(tokenizer).eos_token_id
            if depth < 6 and not is_end and masks[row].sum() == 1:
                assert row - 1 in parents  # nothing that is forced is left out
        num_forced += len(grown) - len(pruned)
        matcher.advance(rng.choice(allowed(matcher)))
    assert num_forced > 0 or grammar not in ("json_schema", "lark", "gbnf")


@every_tokenizer
def test_a_text_may_end_where_it_is_whole_and_has_to_where_nothing_can_follow(
    tokenizer: str,
) -> None:
    eos_id = tokenizer_of(tokenizer).eos_token_id
    matcher = matcher_of("choices", tokenizer)
    assert eos_id not in allowed(matcher)
    assert not matcher.can_end
    spell(matcher, tokenizer, "no")
    assert matcher.can_end
    assert eos_id in allowed(matcher)
    assert len(allowed(matcher)) > 1
    assert matcher.forced_ids(4) == ()
    spell(matcher, tokenizer, "thing")
    assert allowed(matcher) == [eos_id]
    assert matcher.forced_ids(4) == (eos_id,)
    assert not matcher.is_finished
    matcher.advance(eos_id)
    assert matcher.is_finished
    assert matcher.forced_ids(4) == ()
    assert matcher.prune(DraftTree.chain([1, 2])) == DraftTree()


def spell(matcher: Matcher, tokenizer: str, text: str) -> None:
    """Commits allowed tokens that spell the text."""
    while text:
        tokens = ((each, tokenizer_of(tokenizer).decode([each])) for each in allowed(matcher))
        token_id, piece = next((i, p) for i, p in tokens if p and text.startswith(p))
        matcher.advance(token_id)
        text = text.removeprefix(piece)


def test_nothing_is_guessed_behind_the_end() -> None:
    matcher = fresh("choices", "bytes", ids_of("bytes", "nothin"))
    ids = [*ids_of("bytes", "g"), 256, 256, 7]
    assert matcher.prune(DraftTree.chain(ids)).token_ids == tuple(ids[:2])


def test_a_forbidden_token_cannot_be_committed() -> None:
    matcher = matcher_of("choices", "bytes")
    with pytest.raises(SettingsError, match="where the grammar forbids it"):
        matcher.advance(ids_of("bytes", "z")[0])


def test_of_several_end_tokens_the_usual_one_is_guessed_but_not_as_certain() -> None:
    tokenizer = tokenizer_of("bytes")
    grammars = type(grammar_tokenizer("bytes"))(tokenizer, vocab_size=257, eos_ids=[256, 3])
    matcher = grammars.matcher(read_source("regex", "a"))
    tree = matcher.add_forced(DraftTree(), 5)
    assert tree.token_ids == (*ids_of("bytes", "a"), 256)
    assert tree.acceptance[0] == 1.0
    assert tree.acceptance[1] < 1.0


def test_rows_above_the_tokenizers_tokens_are_never_allowed() -> None:
    matcher = matcher_of("lark", "byte-level")
    masks = matcher.mask_rows(DraftTree())
    assert masks.shape == (1, len(tokenizer_of("byte-level")) + 7)
    assert not masks[:, len(tokenizer_of("byte-level")) :].any()
