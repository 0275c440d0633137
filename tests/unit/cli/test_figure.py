from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from rich.cells import cell_len
from rich.console import Console

from outdraft.cli.figure import RecordedStep, choose_step, draw_step, guessed_path, visible
from outdraft.types import Commit, DraftTree, Origin

WORDS = [",", " and", " my", " brother", " eat", " ate", " most", " of", " the", "日本語", "x" * 40]
COMMA, AND, MY, BROTHER, EAT, ATE, MOST, OF, THE, JAPANESE, LONG = range(len(WORDS))


def make_step(
    tree: DraftTree, token_ids: Seq[int], last: Origin, root: int = COMMA
) -> RecordedStep:
    num_accepted = len(token_ids) - (last != "drafted")
    origins: tuple[Origin, ...] = ("drafted",) * num_accepted
    if last != "drafted":
        origins += (last,)
    return RecordedStep(root, tree, Commit(0, tuple(token_ids), origins))


CORRECTED = make_step(
    DraftTree.chain([AND, MY, BROTHER, EAT, MOST, OF, THE]), [AND, MY, BROTHER, ATE], "corrected"
)
BONUS = make_step(DraftTree.chain([AND, MY]), [AND, MY, BROTHER], "bonus")
# root ─▶ and ─▶ my, and ─▶ of;   root ─▶ the
TREE = DraftTree((AND, THE, MY, OF), (-1, -1, 0, 0), (0.6, 0.3, 0.2, 0.7))


def draw(step: RecordedStep, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(draw_step(step, WORDS.__getitem__, width))
    return [line.rstrip() for line in captured.get().splitlines()]


def under(line: str, other: str, word: str) -> str:
    """What stands in `other` where `word` stands in `line`."""
    start = line.index(word)
    return other[start : start + len(word)].strip()


# --- which step -----------------------------------------------------------------------------------


def chain_step(num_accepted: int, last: Origin) -> RecordedStep:
    ids = list(range(20))
    tree = DraftTree.chain(ids[: num_accepted + (last == "corrected")])
    return make_step(tree, ids[: num_accepted + 1], last)


def choose(steps: Seq[RecordedStep]) -> RecordedStep | None:
    return choose_step(steps, lambda token_id: " cat")


def test_a_few_right_guesses_and_a_wrong_one_show_most() -> None:
    best = chain_step(3, "corrected")
    others = [
        chain_step(0, "corrected"),
        chain_step(9, "corrected"),
        chain_step(3, "bonus"),
        chain_step(1, "bonus"),
        chain_step(2, "corrected"),
    ]

    assert choose([*others[:3], best, *others[3:]]) is best


def test_a_bonus_is_better_than_too_many_guesses() -> None:
    bonus = chain_step(4, "bonus")

    assert choose([chain_step(9, "corrected"), bonus, chain_step(1, "corrected")]) is bonus


def test_whole_words_read_best() -> None:
    halves = make_step(DraftTree.chain([1, 2, 3, 4]), [1, 2, 3, 5], "corrected")
    words = make_step(DraftTree.chain([6, 7, 8]), [6, 7, 9], "corrected")

    def show(token_id: int) -> str:
        return "at" if token_id == 1 else " cat"

    assert choose([words, halves]) is halves
    assert choose_step([words, halves], show) is words


def test_a_wrong_word_reads_better_than_a_wrong_comma() -> None:
    comma = make_step(DraftTree.chain([1, 2, 3, 4]), [1, 2, 3, 5], "corrected")
    word = make_step(DraftTree.chain([6, 7, 8]), [6, 7, 9], "corrected")

    assert choose_step([comma, word], lambda token_id: "," if token_id == 5 else " cat") is word


def test_steps_without_draft_show_nothing() -> None:
    plain = make_step(DraftTree(), [AND], "plain")

    assert choose([plain]) is None
    assert choose([]) is None
    assert choose([plain, CORRECTED]) is CORRECTED


# --- which path -----------------------------------------------------------------------------------


def test_the_path_goes_a_little_beyond_the_first_wrong_guess() -> None:
    assert guessed_path(CORRECTED) == [AND, MY, BROTHER, EAT, MOST, OF]


def test_the_path_of_a_bonus_ends_with_the_draft() -> None:
    assert guessed_path(BONUS) == [AND, MY]


def test_where_the_target_leaves_a_tree_the_likeliest_guess_is_shown() -> None:
    assert guessed_path(make_step(TREE, [AND, BROTHER], "corrected")) == [AND, OF]
    assert guessed_path(make_step(TREE, [BROTHER], "corrected")) == [AND, OF]


def test_the_accepted_branch_is_followed_and_not_the_likeliest() -> None:
    assert guessed_path(make_step(TREE, [AND, MY, BROTHER], "bonus")) == [AND, MY]


def test_a_path_cut_by_a_stop_rule_ends_there() -> None:
    assert guessed_path(make_step(TREE, [AND], "drafted")) == [AND]


# --- the picture ----------------------------------------------------------------------------------


def test_marks_stand_between_guesses_and_the_targets_own_tokens() -> None:
    lines = draw(CORRECTED, width=60)
    start = lines.index("drafted decoding: 1 pass")
    writes, same, top, middle, bottom, reads, names = lines[start + 2 : start + 9]

    for word in ("␣and", "␣my", "␣brother"):
        assert under(writes, reads, word) == word
        assert under(writes, same, word) == "✓"
    assert under(writes, reads, "␣ate") == "␣eat"
    assert under(writes, same, "␣ate") == "✗"
    assert under(reads, writes, "␣most") == under(reads, same, "␣most") == ""
    assert reads.split()[:2] == ["reads", ","]
    assert "one target pass" in middle
    assert len(top) == len(middle) == len(bottom)
    assert names.split()[0] == "root"
    assert "draft" in names


def test_plain_decoding_takes_a_pass_per_token() -> None:
    lines = draw(CORRECTED, width=60)

    assert lines[0] == "plain decoding: 4 passes"
    assert lines[2].split() == ["writes", "␣and", "␣my", "␣brother", "␣ate"]
    assert lines[6].split() == ["reads", ",", "␣and", "␣my", "␣brother"]
    assert lines[3].split() == lines[5].split() == ["▲"] * 4


def test_halves_stand_side_by_side_where_there_is_room() -> None:
    wide, narrow = draw(CORRECTED, width=120), draw(CORRECTED, width=60)

    assert "plain decoding: 4 passes" in wide[0]
    assert "drafted decoding: 1 pass" in wide[0]
    assert "drafted" not in narrow[0]
    assert len(wide) < len(narrow)


def test_captions_say_what_happened() -> None:
    corrected, bonus = " ".join(draw(CORRECTED)), " ".join(draw(BONUS))
    cut = " ".join(draw(make_step(TREE, [AND], "drafted")))
    wrong = " ".join(draw(make_step(DraftTree.chain([EAT]), [ATE], "corrected")))

    assert "7 guesses read at once, 3 accepted" in corrected
    assert "own ␣ate replaces ␣eat, and the guesses behind it are dropped." in corrected
    assert "␣brother on top: the bonus." in bonus
    assert "+" in bonus
    assert "the text ends within the guesses" in cut
    assert "of the tree of guesses, the path the target followed is shown" in cut
    assert "1 guess read at once, 0 accepted: the target's own ␣ate replaces ␣eat." in wrong


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize(
    "step",
    [
        CORRECTED,
        BONUS,
        make_step(TREE, [AND, MY], "drafted"),
        make_step(DraftTree.chain([JAPANESE, LONG, AND]), [JAPANESE, LONG, MY], "corrected", LONG),
        make_step(DraftTree.chain([BROTHER] * 15), [BROTHER] * 16, "bonus"),
    ],
)
def test_no_line_is_wider_than_the_terminal(step: RecordedStep, width: int) -> None:
    lines = draw(step, width)

    assert max(cell_len(line) for line in lines) <= width
    assert sum("one target pass │" in line or "one target pass  " in line for line in lines) == 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" cat", "␣cat"),
        ("\n\t", "⏎⇥"),
        ("\x1b[31m", "\ufffd[31m"),
        ("", "∅"),
        ("x" * 40, "x" * 15 + "…"),
        ("日" * 20, "日" * 7 + "…"),
    ],
)
def test_tokens_are_made_visible(text: str, wanted: str) -> None:
    assert visible(text) == wanted
