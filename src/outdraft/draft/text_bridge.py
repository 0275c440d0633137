"""Drafting across tokenizers: texts and guesses travel as text, or as tokens spelled alike.

    target's tokens   … │ "The"  " light" "house" │                   ▲ encode, keep what is new
                        ▼ decode                                      │
    text              "The lighthouse"            "The lighthouse was built"
                        ▼ encode                                      ▲ decode
    draft's tokens    … │ "The" " lighthouse"     │ ─▶ " was" " bu" "ilt"

A greedy request's guesses are spelled out and encoded as the target would. A request that samples
draws each token with the noise of that very token, so its draft keeps to tokens that both models
spell alike, one for one. Sources: universal assisted generation (Timor et al. 2025, algorithms for
heterogeneous vocabularies), here with trees and keyed noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, field

import torch

from outdraft.draft.guess_tree import ROOT, GuessTree
from outdraft.draft.links import Link
from outdraft.draft.model_runner import Guesser
from outdraft.draft.race import Runners
from outdraft.draft.token_map import FullTokenizer, TokenMap
from outdraft.sequence import Sequence
from outdraft.types import DraftTree

_REPLACEMENT = "\ufffd"
# Characters at the end of a text that are encoded anew with each token. What comes before is cut at
# a space, where hardly any tokenizer's tokens go across.
_MAX_TAIL = 400
_MIN_TAIL = 100
# Tokens decoded together with the new ones, so that joins come out right.
_CONTEXT = 10
# A character has at most four bytes, each of which may be a token.
_MAX_UNFINISHED = 3
# Paths of a tree that are spelled out.
_MAX_PATHS = 4
# The target may end a path with a longer token than the one that spells the end of the guesses.
_LAST_TOKEN = 0.7


class TextBridge(Link):
    """For models with tokenizers of their own.

    Args:
        drafter: name of the drafter.
        device: of the draft model.
    """

    def __init__(
        self,
        drafter: str,
        target: FullTokenizer,
        draft: FullTokenizer,
        tokens: TokenMap,
        *,
        device: torch.device,
    ) -> None:
        self._drafter = drafter
        self._target = target
        self._draft = draft
        self._added_ids = {*draft.all_special_ids, *draft.added_tokens_decoder}
        self._runners = Runners(tokens, device)
        self._texts: dict[int, _Text] = {}

    def read_ids(self, sequence: Sequence) -> Seq[int]:
        text = self._texts.get(sequence.request_id)
        if text is None:
            start = int(sequence.ids[0] == self._target.bos_token_id)
            text = _Text(start, start, _starting_ids(self._draft))
            self._texts[sequence.request_id] = text
        text.take_in(sequence.ids, self._target, self._draft)
        text.read_ids = [*text.frozen_ids, *_encode(self._draft, text.tail)]
        return text.read_ids

    def guesser(self, sequence: Sequence) -> Guesser:
        return lambda logits, depths: self._runners.race(sequence, logits, depths)

    def to_draft(
        self, sequence: Sequence, tree: GuessTree, max_nodes: int, max_depth: int
    ) -> DraftTree:
        text = self._texts[sequence.request_id]
        num_unfinished = len(sequence.ids) - text.num_known
        spelled = _Trie()
        for path in _paths(tree, max_nodes):
            new_text, ends = self._spell(text.read_ids, tree, path)
            token_ids = _continue(self._target, sequence.ids, num_unfinished, new_text)
            spelled.add(self._with_probs(sequence.ids, tree, path, ends, token_ids)[:max_depth])
        return spelled.to_draft_tree(self._drafter, max_nodes)

    def forget(self, request_id: int) -> None:
        self._texts.pop(request_id, None)

    def _spell(self, read_ids: Seq[int], tree: GuessTree, path: Seq[int]) -> tuple[str, list[int]]:
        """The text of a path up to the first token that is none, and where each token ends."""
        context = list(read_ids[-_CONTEXT:])
        before = _decode(self._draft, context)
        text, ends = before, []
        for node in path:
            context.append(tree.guesses[node].token_id)
            if context[-1] in self._added_ids:
                break
            text = _decode(self._draft, context)
            ends.append(len(text) - len(before))
        return text[len(before) :].rstrip(_REPLACEMENT), ends

    def _with_probs(
        self, ids: Seq[int], tree: GuessTree, path: Seq[int], ends: Seq[int], token_ids: Seq[int]
    ) -> list[tuple[int, float]]:
        """Each token with the probability of the guesses needed to spell the path up to its end."""
        context = list(ids[-_CONTEXT:])
        before = len(_decode(self._target, context))
        last_needed = 0
        found = []
        for token_id in token_ids:
            context.append(token_id)
            end = len(_decode(self._target, context)) - before
            # the maximum, because a part of a character may look longer than the whole
            last_needed = max(last_needed, sum(other_end < end for other_end in ends[:-1]))
            found.append((token_id, tree.path_probs[path[last_needed]]))
        if found:
            found[-1] = (found[-1][0], _LAST_TOKEN * found[-1][1])
        return found


@dataclass(slots=True)
class _Text:
    """One request's text.

    Args:
        start: of the target's tokens, the first that spells something.
        num_known: the target's tokens it was made from; those behind are an unfinished character.
        frozen_ids: the text up to `tail`, in the draft model's tokens.
        tail: the end of it, encoded anew when it has grown.
        read_ids: all of it in the draft model's tokens, as it was read last.
    """

    start: int
    num_known: int
    frozen_ids: list[int]
    tail: str = ""
    read_ids: list[int] = field(default_factory=list)

    def take_in(self, ids: Seq[int], target: FullTokenizer, draft: FullTokenizer) -> None:
        """Adds what the target's tokens spell, up to the last whole character."""
        num_whole = len(ids) - _num_unfinished(target, ids)
        if num_whole <= self.num_known:
            return
        context = ids[max(self.start, self.num_known - _CONTEXT) : self.num_known]
        text = _decode(target, [*context, *ids[self.num_known : num_whole]])
        self.tail += text[len(_decode(target, context)) :]
        self.num_known = num_whole
        if len(self.tail) > _MAX_TAIL:
            cut = self.tail.rfind(" ", 0, len(self.tail) - _MIN_TAIL)
            if cut > 0:
                self.frozen_ids += _encode(draft, self.tail[:cut])
                self.tail = self.tail[cut:]


class _Trie:
    """Paths of tokens, merged where they begin alike."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        self._parents: list[int] = []
        self._token_ids: list[int] = []
        self._path_probs: list[float] = []

    def add(self, path: Seq[tuple[int, float]]) -> None:
        """Takes in a path: tokens, each with the probability of all up to it."""
        parent = ROOT
        for token_id, path_prob in path:
            node = self._nodes.setdefault((parent, token_id), len(self._parents))
            if node == len(self._parents):
                self._parents.append(parent)
                self._token_ids.append(token_id)
                self._path_probs.append(0.0)
            self._path_probs[node] = max(self._path_probs[node], path_prob)
            parent = node

    def to_draft_tree(self, drafter: str, max_nodes: int) -> DraftTree:
        """The likeliest nodes; they form a tree, since no node is likelier than its parent."""
        probs = self._path_probs
        nodes = sorted(range(len(probs)), key=lambda node: -probs[node])[:max_nodes]
        place = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
        parents = tuple(place[self._parents[node]] for node in nodes)
        acceptance = tuple(
            probs[node] / (1.0 if self._parents[node] == ROOT else probs[self._parents[node]])
            for node in nodes
        )
        depths: list[int] = []
        for parent in parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return DraftTree(
            token_ids=tuple(self._token_ids[node] for node in nodes),
            parents=parents,
            acceptance=acceptance,
            drafter=drafter,
            scores=tuple(zip(acceptance, map(float, depths), strict=True)),
        )


def _paths(tree: GuessTree, max_nodes: int) -> Iterator[list[int]]:
    """The likeliest paths, each from the root's child to a leaf."""
    nodes = tree.best(max_nodes)
    inner = {tree.parents[node] for node in nodes}
    for leaf in [node for node in nodes if node not in inner][:_MAX_PATHS]:
        path = [leaf]
        while tree.parents[path[-1]] != ROOT:
            path.append(tree.parents[path[-1]])
        yield path[::-1]


def _continue(
    tokenizer: FullTokenizer, ids: Seq[int], num_unfinished: int, new_text: str
) -> list[int]:
    """The tokens that go on from `ids` with a text; none if that text does not fit on.

    Args:
        num_unfinished: of the last ids, which are part of a character that `new_text` begins with.
    """
    if not new_text:
        return []
    num_whole = len(ids) - num_unfinished
    whole, unfinished = list(ids[max(0, num_whole - _CONTEXT) : num_whole]), ids[num_whole:]
    before = _decode(tokenizer, whole)
    head, full = _encode(tokenizer, before), _encode(tokenizer, before + new_text)
    if full[: len(head)] == head:
        found = full[len(head) :]
        return found[num_unfinished:] if found[:num_unfinished] == list(unfinished) else []
    # A token would go across the end of the text, which has been written with other tokens: encode
    # as if a line began here, since some tokenizers put a space before what begins a text.
    head, full = _encode(tokenizer, "\n"), _encode(tokenizer, "\n" + new_text)
    found = full[len(head) :]
    fits = not unfinished and _decode(tokenizer, whole + found) == before + new_text
    return found if fits else []


def _num_unfinished(tokenizer: FullTokenizer, ids: Seq[int]) -> int:
    """Tokens at the end that spell only a part of a character."""
    for count in range(min(_MAX_UNFINISHED, len(ids) - 1) + 1):
        whole = ids[: len(ids) - count][-_CONTEXT:]
        if not _decode(tokenizer, whole).endswith(_REPLACEMENT):
            return count
    return 0  # the text really has such a mark


def _starting_ids(tokenizer: FullTokenizer) -> list[int]:
    """The token that this tokenizer puts before every text, if it has one."""
    first = list(tokenizer("", add_special_tokens=True)["input_ids"])[:1]
    return first if first == [tokenizer.bos_token_id] else []


def _encode(tokenizer: FullTokenizer, text: str) -> list[int]:
    if not text:
        return []
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _decode(tokenizer: FullTokenizer, token_ids: Seq[int]) -> str:
    text = tokenizer.decode(
        list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return str(text)
