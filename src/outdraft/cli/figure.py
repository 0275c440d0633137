"""The picture of one step: what was guessed, what the target wrote, and where they part ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from outdraft.types import Commit, DraftTree

_GAP = 2  # between columns
_NUM_DROPPED = 2  # guesses shown behind the first wrong one
_MAX_TOKEN_WIDTH = 16
_MIN_WIDTH = 4  # "root" stands under its token
_LABEL = " " * 8
_PASS = " one target pass "
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})

Show = Callable[[int], str]
"""From a token id to its text."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What one step guessed and committed.

    Args:
        root_id: the last token committed before.
    """

    root_id: int
    tree: DraftTree
    commit: Commit

    @property
    def num_accepted(self) -> int:
        return self.commit.origins.count("drafted")


@dataclass(frozen=True, slots=True)
class _Column:
    """One guess, under the target's own token for its place."""

    own: str
    mark: str
    guess: str
    style: str

    @property
    def width(self) -> int:
        return max(cell_len(self.own), cell_len(self.guess), _MIN_WIDTH)


def choose_step(steps: Seq[RecordedStep], show: Show) -> RecordedStep | None:
    """The step that shows best what drafting is: some guesses right, and one wrong."""
    drafted = (step for step in steps if len(step.tree))
    return max(drafted, key=lambda step: _how_instructive(step, show), default=None)


def _how_instructive(step: RecordedStep, show: Show) -> tuple[bool, bool, bool, int, int]:
    last = step.commit.origins[-1]
    has_some = 2 <= step.num_accepted <= 8
    texts = [show(token_id) for token_id in step.commit.token_ids]
    begin_anew = not any(text[:1].isalnum() for text in texts)  # no second halves of words
    readability = begin_anew + texts[-1].strip().isalnum()
    closeness = -abs(step.num_accepted - 3)
    return has_some, last == "corrected", last == "bonus", readability, closeness


def draw_step(step: RecordedStep, show: Show, width: int) -> RenderableType:
    """The step as plain decoding does it and as drafted, side by side where there is room."""
    plain, drafted = _draw_plain(step, show, width), _draw_drafted(step, show, width)
    caption = Text(_caption(step, show), style="dim")
    gap = 6
    if _width_of(plain) + gap + _width_of(drafted) > width:
        return Group(*plain, Text(), *drafted, Text(), caption)
    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_row(Group(*plain), Group(*drafted))
    return Group(grid, Text(), caption)


def guessed_path(step: RecordedStep) -> list[int]:
    """Tokens of the path that is shown: the accepted guesses, the first wrong one, some behind it.

    Where the target left the tree, the likeliest of the guesses it refused is taken.
    """
    tree, children = step.tree, _children(step.tree)
    path: list[int] = []
    node = -1
    for token_id in step.commit.token_ids[: step.num_accepted]:
        node = next(child for child in children[node] if tree.token_ids[child] == token_id)
        path.append(token_id)
    was_cut = step.commit.origins[-1] == "drafted"  # by a stop rule, in the middle of the path
    while not was_cut and node in children and len(path) <= step.num_accepted + _NUM_DROPPED:
        node = max(children[node], key=lambda child: tree.acceptance[child])
        path.append(tree.token_ids[node])
    return path


def visible(text: str) -> str:
    """A token's text on one line, with its spaces and line ends to be seen."""
    shown = "".join(char if char.isprintable() else "\ufffd" for char in text.translate(_VISIBLE))
    if cell_len(shown) > _MAX_TOKEN_WIDTH:
        shown = set_cell_size(shown, _MAX_TOKEN_WIDTH - 1).rstrip() + "…"
    return shown or "∅"


def _children(tree: DraftTree) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    return children


# --- drawing --------------------------------------------------------------------------------------


def _draw_plain(step: RecordedStep, show: Show, width: int) -> list[Text]:
    """Each token read gives the next one.

    writes    y2   y3   y4
              ▲    ▲    ▲
              one target pass per token
              ▲    ▲    ▲
    reads     y1   y2   y3
    """
    written = [visible(show(token_id)) for token_id in step.commit.token_ids]
    read = [visible(show(step.root_id)), *written[:-1]]
    columns = [_Column(own, "▲", given, "dim") for own, given in zip(written, read, strict=True)]
    columns = _fit(columns, width - len(_LABEL))
    arrows = _row("", columns, _mark_of)
    return [
        Text.assemble(("plain decoding", "bold"), f": {_count(len(written), 'pass', 'passes')}"),
        Text(),
        _row("writes", columns, lambda column: (column.own, "")),
        arrows,
        Text(f"{_LABEL} one target pass per token", style="dim"),
        arrows,
        _row("reads", columns, lambda column: (column.guess, "")),
    ]


def _draw_drafted(step: RecordedStep, show: Show, width: int) -> list[Text]:
    """One pass reads the root and all guesses.

    writes           d2   d3   y4
    same?            ✓    ✓    ✗
              ┌────────────────────────┐
    reads       y1   d2   d3   d4   d5
               root  ╰───── draft ─────╯
    """
    root = _Column("", "", visible(show(step.root_id)), "")
    columns = [root, *_fit(_columns(step, show), width - len(_LABEL) - root.width - _GAP)]
    inner = max(sum(column.width + _GAP for column in columns) - 2, len(_PASS))
    box = ("┌" + "─" * inner + "┐", f"│{_PASS.center(inner)}│", "└" + "─" * inner + "┘")
    num_drafted = sum(bool(column.guess) for column in columns[1:])
    room = sum(column.width + _GAP for column in columns[1 : num_drafted + 1]) - _GAP
    draft = " draft ".center(room - 2, "─") if room > len(" draft ") else "draft"
    root_room = root.width + _GAP
    return [
        Text.assemble(("drafted decoding", "bold"), ": 1 pass"),
        Text(),
        _row("writes", columns, lambda column: (column.own, "bold" if column.mark == "✗" else "")),
        _row("same?", columns, _mark_of),
        *(Text(f"{_LABEL}{line}", style="dim") for line in box),
        _row("reads", columns, lambda column: (column.guess, column.style)),
        Text(f"{_LABEL}{'root'.center(root_room)} ╰{draft}╯", style="dim"),
    ]


def _columns(step: RecordedStep, show: Show) -> list[_Column]:
    written = [visible(show(token_id)) for token_id in step.commit.token_ids]
    guesses = [visible(show(token_id)) for token_id in guessed_path(step)]
    num_accepted = step.num_accepted
    columns = [
        _Column(own, "✓", guess, "green")
        for own, guess in zip(written[:num_accepted], guesses[:num_accepted], strict=True)
    ]
    wrong = guesses[num_accepted:]
    if len(written) > num_accepted:
        own = written[-1]
        is_bonus = step.commit.origins[-1] == "bonus"
        columns.append(
            _Column(own, "+", "", "cyan") if is_bonus else _Column(own, "✗", wrong[0], "bold red")
        )
    return columns + [_Column("", "", guess, "dim") for guess in wrong[1:]]


def _fit(columns: list[_Column], width: int) -> list[_Column]:
    """As many columns as there is room for.

    The last ones go first if they have not been judged, then the first ones.
    """
    columns = list(columns)
    while len(columns) > 2 and sum(column.width + _GAP for column in columns) > width:
        if not columns[-1].own:
            columns.pop()
            continue
        columns.pop(0)
        columns[0] = replace(columns[0], own="…", guess="…")
    return columns


def _row(label: str, columns: Seq[_Column], cell_of: Callable[[_Column], tuple[str, str]]) -> Text:
    """One line of the picture; each cell is a text and its style, centred in its column."""
    row = Text(label.ljust(len(_LABEL)), style="")
    row.stylize("dim")
    for column in columns:
        cell, style = cell_of(column)
        room = column.width + _GAP - cell_len(cell)
        row.append(" " * (room // 2)).append(cell, style).append(" " * (room - room // 2))
    return row


def _mark_of(column: _Column) -> tuple[str, str]:
    return column.mark, column.style


def _width_of(lines: Seq[Text]) -> int:
    return max(line.cell_len for line in lines)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _caption(step: RecordedStep, show: Show) -> str:
    last = visible(show(step.commit.token_ids[-1]))
    drafted = _count(len(step.tree), "guess", "guesses")
    match step.commit.origins[-1]:
        case "corrected":
            wrong, *behind = guessed_path(step)[step.num_accepted :]
            end = f"the target's own {last} replaces {visible(show(wrong))}"
            end += ", and the guesses behind it are dropped" * bool(behind)
        case "bonus":
            end = f"all guesses on the way are right, and the pass gives {last} on top: the bonus"
        case _:
            end = "the text ends within the guesses"
    more = "; of the tree of guesses, the path the target followed is shown" * _has_branches(step)
    return f"{drafted} read at once, {step.num_accepted} accepted: {end}{more}."


def _has_branches(step: RecordedStep) -> bool:
    return any(len(siblings) > 1 for siblings in _children(step.tree).values())
