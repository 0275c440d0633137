"""A draft model with the target's tokenizer; other tokenizers are in `test_text_bridge`."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import pytest
import torch

import outdraft
from outdraft.commit import append_tokens
from outdraft.draft import DrafterContext, make_drafter, race
from outdraft.draft.draft_model import DrafterWarning, DraftModel
from outdraft.draft.model_drafter import ModelDrafter
from outdraft.engine import Engine
from outdraft.errors import DrafterError, UnknownModelError
from outdraft.interfaces import TargetModel
from outdraft.models.table import TableTarget
from outdraft.models.target import CausalLM
from outdraft.sampling import choose, keyed_noise, to_probs
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings
from outdraft.types import Budget, Commit, DraftTree
from plain import decode_plainly, reader_of_target
from support.draft_models import Watched, small_llama
from support.runs import run
from support.toys import LetterTokenizer, make_sequence
from support.two_tokenizers import byte_level

every_temperature = pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])


def no_text(token_ids: Seq[int]) -> str:
    return ""


def requests(target: TargetModel, count: int = 4, temperature: float = 0.0) -> list[Sequence]:
    """Prompts and answers of different lengths, so that requests join and leave at any time."""
    return [
        make_sequence(
            [(7 * i + 3 * j) % target.vocab_size for j in range(3 + 6 * i)],
            request_id=i,
            seed=i + 1,
            eos_ids=[],
            max_context=target.max_context,
            decode=no_text,
            max_new_tokens=(13, 34, 20, 27)[i],
            temperature=temperature,
        )
        for i in range(count)
    ]


def plain_ids(target: TargetModel, sequence: Sequence) -> list[int]:
    plain = decode_plainly(
        reader_of_target(target),
        sequence.ids[: sequence.prompt_len],
        sequence.settings,
        seed=sequence.seed,
        max_context=target.max_context,
        decode=no_text,
    )
    return list(plain.token_ids)


def run_watched(
    target: TargetModel, drafter: ModelDrafter, temperature: float = 0.0, max_batch: int = 3
) -> tuple[list[Sequence], list[Commit], Watched]:
    """Runs the requests; the texts must be the plain ones, and the cache in step all the time."""
    watched = Watched(drafter)
    sequences = requests(target, temperature=temperature)
    commits = run(target, watched, sequences, max_batch=max_batch)
    for sequence in sequences:
        assert sequence.new_ids == plain_ids(target, sequence)
    return sequences, commits, watched


def accepted_share(sequences: Seq[Sequence]) -> float:
    judged = sum(sum(sequence.stats.judged_by_depth) for sequence in sequences)
    return sum(sequence.stats.accepted for sequence in sequences) / judged


def max_depth(trees: Seq[DraftTree]) -> int:
    return max(max(tree.depths(), default=0) for tree in trees)


# --- how often it is right ------------------------------------------------------------------------


@every_temperature
def test_a_copy_of_the_target_is_always_right(temperature: float) -> None:
    target = small_llama()
    drafter = DraftModel(small_llama(), target)
    sequences, commits, _ = run_watched(target, drafter, temperature)
    assert "corrected" not in {origin for commit in commits for origin in commit.origins}
    assert sum(sequence.stats.accepted for sequence in sequences) > 50


@every_temperature
def test_a_model_that_knows_nothing_of_the_target_is_nearly_always_wrong(
    temperature: float,
) -> None:
    target = small_llama()
    drafter = DraftModel(small_llama(seed=1, num_hidden_layers=1), target)
    sequences, _, _ = run_watched(target, drafter, temperature)
    assert 0.0 < accepted_share(sequences) < 0.2


@every_temperature
def test_a_model_like_the_target_is_right_and_wrong(temperature: float) -> None:
    target = TableTarget(fade=0.8, seed=1)
    drafter = DraftModel(TableTarget(fade=0.3, seed=1), target)
    sequences, commits, _ = run_watched(target, drafter, temperature)
    assert {"drafted", "corrected", "bonus"} <= {o for commit in commits for o in commit.origins}
    assert 0.2 < accepted_share(sequences) < 0.9


def test_drawing_with_the_noise_of_the_target_makes_both_draw_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, draft = TableTarget(fade=0.3, seed=1), TableTarget(fade=0.2, seed=1)
    with_it, _, _ = run_watched(target, DraftModel(draft, target), temperature=1.0)
    monkeypatch.setattr(race, "keyed_noise", lambda seed, *rest: keyed_noise(seed + 99, *rest))
    without, _, _ = run_watched(target, DraftModel(draft, target), temperature=1.0)
    assert accepted_share(with_it) > accepted_share(without) + 0.1


def assert_same(one: DraftTree, other: DraftTree) -> None:
    """The same tree, up to rounding."""
    assert (one.token_ids, one.parents) == (other.token_ids, other.parents)
    assert one.acceptance == pytest.approx(other.acceptance)


# --- what it says of its guesses ------------------------------------------------------------------


def first_tree(target: TargetModel, sequence: Sequence, max_nodes: int = 9) -> DraftTree:
    (tree,) = DraftModel(target, target).propose([sequence], Budget(max_nodes, (9,)))
    return tree


def logits_behind(target: TargetModel, ids: Seq[int]) -> torch.Tensor:
    return reader_of_target(target)(ids)


def test_greedy_guesses_are_accepted_as_often_as_the_model_is_sure() -> None:
    target = small_llama()
    sequence = make_sequence([1, 2, 3], eos_ids=[])
    tree = first_tree(target, sequence)
    texts: list[list[int]] = []
    for node, parent in enumerate(tree.parents):
        before = sequence.ids if parent < 0 else texts[parent]
        texts.append([*before, tree.token_ids[node]])
        prob = logits_behind(target, before).softmax(-1)[0, tree.token_ids[node]]
        assert tree.acceptance[node] == pytest.approx(float(prob))
        assert tree.scores[node] == pytest.approx((float(prob), len(texts[-1]) - 3))
    assert len(tree) > 5
    assert max(tree.depths()) > 1


def test_sampled_guesses_are_accepted_by_their_share_of_the_race() -> None:
    target = small_llama()
    sequence = make_sequence([1, 2, 3], seed=5, eos_ids=[], temperature=1.3, top_k=6)
    tree = first_tree(target, sequence)
    probs = to_probs(logits_behind(target, [1, 2, 3]), sequence.settings)
    shares = probs / keyed_noise(5, [3], 56, target.device)
    for node, parent in enumerate(tree.parents):
        if parent < 0:
            token_id = tree.token_ids[node]
            assert tree.acceptance[node] == pytest.approx(float(shares[0, token_id] / shares.sum()))
            assert tree.scores[node] == pytest.approx((float(probs[0, token_id]), 1.0))
    drawn = choose(logits_behind(target, [1, 2, 3]), [3], sequence.settings, 5)
    assert tree.token_ids[0] == int(drawn)


# --- how much work it does ------------------------------------------------------------------------


def test_a_batch_is_drafted_for_together() -> None:
    target = small_llama()
    _, _, watched = run_watched(target, DraftModel(small_llama(), target), max_batch=4)
    of_one, _, alone = run_watched(target, DraftModel(small_llama(), target), max_batch=1)
    assert max(watched.num_passes[1:]) <= max(alone.num_passes)  # the first also reads the prompts
    assert sum(watched.num_passes) < 0.6 * sum(alone.num_passes)
    assert len(of_one) == 4


def test_only_what_is_new_is_read() -> None:
    target = small_llama()
    sequences, _, watched = run_watched(target, DraftModel(small_llama(), target))
    prompts = sum(sequence.prompt_len for sequence in sequences)
    # the target's own token of each step, and often the last guess, which nobody needed to read
    drafts = sum(len(trees) for trees in watched.trees.values())
    assert sum(watched.num_unread) <= prompts + 2 * drafts + len(sequences)


def test_a_long_prompt_is_read_in_chunks() -> None:
    target = small_llama()
    drafter = DraftModel(small_llama(), target)
    drafter._runner._prompt_chunk = 10
    watched = Watched(drafter)
    sequence = make_sequence([i % 56 for i in range(35)], eos_ids=[], max_context=96)
    (tree,) = watched.propose([sequence], Budget(1, (1,)))
    assert watched.num_passes == [4 + 1]  # 10 + 10 + 10 + 4, then the last token
    assert_same(tree, first_tree(target, sequence, max_nodes=1))


def test_hardly_likely_guesses_are_not_read_on() -> None:
    target = small_llama()
    unsure = small_llama(initializer_range=1e-4)  # all tokens about equally likely
    _, _, watched = run_watched(target, DraftModel(unsure, target), max_batch=1)
    assert set(watched.num_passes) <= {0, 1, 2}  # 2 where it reads a prompt first


def test_no_budget_no_work() -> None:
    target = small_llama()
    watched = Watched(DraftModel(small_llama(), target))
    batch = requests(target, 2)
    assert watched.propose(batch, Budget(0, (5, 5))) == [DraftTree(drafter="model")] * 2
    assert watched.propose(batch, Budget(5, (0, 0))) == [DraftTree(drafter="model")] * 2
    assert watched.num_passes == [0, 0]
    first, second = watched.propose(batch, Budget(5, (0, 2)))
    assert not first
    assert max(second.depths()) == 2


# --- whatever happens to the requests -------------------------------------------------------------


def test_drafts_that_nobody_settles_do_no_harm() -> None:
    target = small_llama()
    watched = Watched(DraftModel(small_llama(), target))
    batch = requests(target, 3)
    trees = watched.propose(batch, Budget(6, (5, 5, 5)))
    watched.finish(batch[0])
    for sequence in batch[1:]:
        commit = append_tokens(sequence, [1, 2, 3], ("plain",) * 3)
        watched.observe(sequence, commit)
    again = watched.propose(batch, Budget(6, (5, 5, 5)))
    assert_same(again[0], trees[0])
    for sequence, tree in zip(batch[1:], again[1:], strict=True):
        assert_same(tree, first_tree(target, sequence, max_nodes=6))


def test_engines_may_share_a_drafter_and_take_turns() -> None:
    target = small_llama()
    watched = Watched(DraftModel(small_llama(), target))
    sequences = requests(target, 4)
    engines = [Engine(target, watched, EngineSettings()) for _ in range(2)]
    for sequence, engine in zip(sequences, [*engines, *engines], strict=True):
        engine.add(sequence)
    while not all(engine.is_idle for engine in engines):
        for engine in engines:
            engine.step()
    for sequence in sequences:
        assert sequence.new_ids == plain_ids(target, sequence)
        assert sequence.stats.accepted > sequence.stats.tokens / 3


# --- a draft model that is not as wide, as long or where the target is ----------------------------


@every_temperature
def test_a_shorter_context_ends_the_drafts_and_not_the_text(temperature: float) -> None:
    target = small_llama()
    draft = small_llama(max_position_embeddings=20)
    sequences, _, watched = run_watched(target, DraftModel(draft, target), temperature)
    for sequence in sequences:
        own = [len(tree) for tree in watched.trees[sequence.request_id]]
        if sequence.prompt_len > 20:
            assert not any(own)
        elif len(sequence.ids) > 25:
            assert own[0] > 0
            assert own[-1] == 0


def test_drafts_reach_one_token_beyond_the_last_position() -> None:
    target = small_llama()
    drafter = DraftModel(small_llama(max_position_embeddings=20, initializer_range=1.0), target)
    for prompt_len, depth in ((17, 4), (19, 2), (20, 1), (21, 0)):
        sequence = make_sequence([1] * prompt_len, request_id=prompt_len, eos_ids=[])
        (tree,) = drafter.propose([sequence], Budget(40, (30,)))
        assert max(tree.depths(), default=0) == depth


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(56, 64), (64, 56)])
@every_temperature
def test_vocabularies_may_be_padded(temperature: float, target_rows: int, draft_rows: int) -> None:
    target = small_llama(vocab_size=target_rows)
    draft = small_llama(seed=1, vocab_size=draft_rows, num_hidden_layers=1)
    if draft_rows > target_rows:  # a padding row that always wins
        head = draft.model.lm_head.weight
        head.data[60] = 50.0 * head.data[:56].abs().max(dim=0).values
    _, _, watched = run_watched(target, DraftModel(draft, target), temperature)
    guessed = {t for trees in watched.trees.values() for tree in trees for t in tree.token_ids}
    assert max(guessed) < 56
    assert len(guessed) > 20


def test_dtypes_may_differ() -> None:
    target = small_llama()
    sequences, _, _ = run_watched(target, DraftModel(small_llama(dtype=torch.float32), target))
    assert accepted_share(sequences) > 0.3


def test_only_ids_go_between_devices() -> None:
    target = small_llama()
    elsewhere = CausalLM(small_llama().model.to("meta"))
    drafter = DraftModel(small_llama(), elsewhere)
    sequence = requests(target, 1)[0]
    assert_same(drafter.propose([sequence], Budget(9, (9,)))[0], first_tree(target, sequence))


# --- from a name ----------------------------------------------------------------------------------


def test_a_model_is_named_by_its_folder(tmp_path: Path) -> None:
    for name in ("target", "draft"):
        small_llama(vocab_size=280).model.save_pretrained(tmp_path / name)
        byte_level(280).save_pretrained(tmp_path / name)
    every_guess = EngineSettings(adaptive=False)
    llm = outdraft.load(tmp_path / "target", dtype="float64", device="cpu", settings=every_guess)
    spec = f"model:{tmp_path / 'draft'}"
    options = {"max_new_tokens": 20, "ignore_eos": True}
    drafted = llm.generate("The ferry", drafter=spec, **options)
    assert drafted.drafter == spec
    assert drafted.token_ids == llm.generate("The ferry", drafter="none", **options).token_ids
    assert drafted.stats.accepted > 5
    drafter = llm.drafter(spec)
    model = drafter._runner.model.model
    assert model.dtype == torch.float64
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert drafter.memory_bytes == weights + drafter._runner._cache.num_bytes > weights


def context_of(target: TargetModel) -> DrafterContext:
    return DrafterContext(target, LetterTokenizer())


def test_the_model_has_to_be_named() -> None:
    with pytest.raises(DrafterError, match="needs a model to guess with, as in model:REF"):
        make_drafter("model", context_of(small_llama()))


def test_a_draft_model_is_made_for_a_target() -> None:
    with pytest.raises(DrafterError, match="'model:x' is made for a target"):
        make_drafter("model:x")


def test_a_model_that_is_not_there_says_so_itself() -> None:
    with pytest.raises(UnknownModelError, match=r"nowhere:8b\.gguf"):
        make_drafter("model:./nowhere:8b.gguf", context_of(small_llama()))


def test_a_tokenizer_that_does_not_tell_its_tokens_is_refused() -> None:
    target = small_llama()
    with pytest.raises(DrafterError, match="the target's tokenizer, a LetterTokenizer, does not"):
        DraftModel(target, target, tokenizer=LetterTokenizer(), target_tokenizer=LetterTokenizer())


def test_a_draft_model_larger_than_the_target_is_warned_of() -> None:
    target, larger = small_llama(), small_llama(num_hidden_layers=4)
    with pytest.warns(DrafterWarning, match=r"has 34,592 parameters and its target 26,848"):
        DraftModel(larger, target)


@pytest.mark.filterwarnings("error")
def test_one_of_the_same_size_is_not() -> None:
    DraftModel(small_llama(), small_llama())
