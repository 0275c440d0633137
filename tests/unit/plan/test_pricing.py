"""What is asked, what is read and what is learnt; that no text changes is in `tests/lossless`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence as Seq
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from contract.adversaries import AlwaysRight, AlwaysWrong, PlainTexts
from outdraft import step as step_module
from outdraft.draft import make_drafter
from outdraft.draft.several import Several
from outdraft.engine import Engine
from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter
from outdraft.models.table import TableTarget
from outdraft.plan import Priced, Pricing, Unpriced, make_plan, pricing as pricing_module
from outdraft.plan.calibration import Calibrator
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.plan.offer import Offer
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings, GenerationSettings
from outdraft.stats import DrafterStats
from outdraft.step import step
from outdraft.types import Budget, Commit, DraftTree, Plan, Rows
from plain import decode_plainly, reader_of_target
from support.runs import run
from support.toys import EOS, TABLE, decode_letters, make_sequence

TARGET = TableTarget(**TABLE)
PROMPT = (5, 6, 7, 8, 9)
LENGTH = 60


class Fixed(CostModel):
    """Costs that no step changes.

    Attributes:
        asked: sizes whose costs somebody wanted to know.
        observed: sizes that were timed, with their seconds.
    """

    def __init__(self, rows: Seq[int], base: Seq[float], **rates: float) -> None:
        super().__init__(rows, base, **rates)
        self.asked: list[PassSize] = []
        self.observed: list[tuple[PassSize, float]] = []

    def seconds(self, size: PassSize) -> float:
        self.asked.append(size)
        return super().seconds(size)

    def observe(self, size: PassSize, seconds: float) -> None:
        self.observed.append((size, seconds))


def flat() -> Fixed:
    """A pass takes a second, however many rows it reads."""
    return Fixed([1, 999], [1.0, 1.0])


def steep() -> Fixed:
    """Every row takes a second."""
    return Fixed([1, 2], [1.0, 2.0])


def cheap_up_to(rows: int) -> Fixed:
    """Passes take a second up to so many rows, and four for each further one."""
    return Fixed([rows, rows + 1], [1.0, 5.0])


class Says(Drafter):
    """Always guesses the same chain.

    Attributes:
        proposed_to: the request ids of each call, with its budget.
    """

    def __init__(self, name: str, *token_ids: int, acceptance: float = 0.5) -> None:
        self.name = name
        self.tree = DraftTree.chain(token_ids, acceptance, name)
        self.proposed_to: list[tuple[tuple[int, ...], Budget]] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self.proposed_to.append((tuple(sequence.request_id for sequence in batch), budget))
        return [self.tree] * len(batch)


def plain_text(length: int = LENGTH) -> tuple[int, ...]:
    settings = GenerationSettings(max_new_tokens=length)
    return decode_plainly(
        reader_of_target(TARGET), PROMPT, settings, seed=0, decode=decode_letters
    ).token_ids


TEXT = plain_text()
TEXTS: PlainTexts = {PROMPT: TEXT}


def endless(request_id: int = 0, prompt: Seq[int] = PROMPT, **settings: Any) -> Sequence:
    settings = {"max_new_tokens": LENGTH, **settings}
    return make_sequence(prompt, request_id=request_id, eos_ids=[], **settings)


def right() -> Drafter:
    return AlwaysRight(TEXTS, TARGET.vocab_size, EOS)


def one_step(pricing: Pricing, drafter: Drafter, *batch: Sequence) -> list[Commit]:
    """A step right behind the prompts: their last tokens are the roots."""
    cache = TARGET.new_cache()
    for sequence in batch:
        seq_idx = cache.add()
        TARGET.forward(Rows.chain(sequence.ids[:-1], 0, TARGET.device), cache, first_seq=seq_idx)
        cache.commit(seq_idx, range(len(sequence.ids) - 1))
    return step(batch, drafter, TARGET, cache, 15, pricing=pricing)


def asked_in(pricing: Pricing, drafter: Drafter, sequence: Sequence) -> list[int]:
    """The steps of a request in which its drafter was asked."""
    engine = Engine(TARGET, drafter, EngineSettings(), pricing=pricing)
    engine.add(sequence)
    engine.step()  # reads the prompt
    asked = []
    while not engine.is_idle:
        before = sum(record.asked for record in sequence.stats.drafters.values())
        engine.step()
        if sum(record.asked for record in sequence.stats.drafters.values()) > before:
            asked.append(sequence.stats.steps - 1)
    return asked


# --- how many guesses are read --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "width"),
    [(flat(), 6), (steep(), 0), (cheap_up_to(4), 3), (cheap_up_to(1), 0), (cheap_up_to(2), 1)],
)
def test_as_many_guesses_are_read_as_pay(costs: CostModel, width: int) -> None:
    drafter = Says("one", 1, 2, 3, 4, 5, 6)
    offer = Priced(costs).ask(drafter, [endless()], 15)
    assert offer.width == width
    assert len(offer.trees[0]) == 6  # cutting is for `make_plan`


def test_unpriced_reads_what_it_may_whatever_it_costs() -> None:
    tree = Says("one", 1, 2, 3)
    for max_nodes in (0, 2, 15):
        offer = Unpriced().ask(tree, [endless()], max_nodes)
        assert offer.width == max_nodes
        assert offer.trees == [tree.tree]


def test_no_more_are_read_than_may_be() -> None:
    offer = Priced(flat()).ask(Says("one", 1, 2, 3, 4, 5, 6), [endless()], 4)
    assert offer.width == 4


def test_no_guess_is_paid_for_that_is_too_deep_to_be_committed() -> None:
    offer = Priced(flat()).ask(Says("one", 1, 2, 3, 4), [endless(max_new_tokens=3)], 15)
    assert offer.width == 2


def test_the_time_a_pass_takes_is_asked_for_the_batch_as_it_is() -> None:
    costs = flat()
    batch = [endless(0, PROMPT), endless(1, (1,) * 9), endless(2, (2, 3))]
    Priced(costs).ask(Says("one", 1, 2), batch, 15)
    assert set(costs.asked) == {PassSize(3, rows, 8) for rows in (1, 2, 3, 4)}


def test_a_long_context_makes_rows_too_dear() -> None:
    dear_rows = Fixed([1, 99], [1.0, 1.0], per_pair=0.01)
    drafter = Says("one", 1, 2, 3, 4)
    short, long = endless(0, (1,) * 3), endless(1, (1,) * 1000)
    assert Priced(dear_rows).ask(drafter, [short], 15).width > 0
    assert Priced(dear_rows).ask(drafter, [long], 15).width == 0


def test_flat_costs_make_a_run_of_long_steps_and_steep_ones_a_plain_run() -> None:
    dear, cheap = endless(), endless()
    run(TARGET, right(), [cheap], pricing=Priced(flat()))
    run(TARGET, right(), [dear], pricing=Priced(steep()))
    assert cheap.new_ids == dear.new_ids == list(TEXT)
    assert cheap.stats.tokens_per_step > 8
    assert dear.stats.tokens_per_step == 1.0
    assert dear.stats.plain_steps == dear.stats.steps == LENGTH - 1
    assert cheap.stats.plain_steps == 0


def test_once_it_drafts_it_goes_on_for_less() -> None:
    """Of ten guesses for 1.03 to 1.04 of a plain pass; the margin is 5 % before and 2 % then."""
    drafter, sequence = Says("one", 1, acceptance=0.5), endless()
    pricing = Priced(Fixed([1, 2], [1.0, 1.45]))
    assert pricing.ask(drafter, [sequence], 15).width == 0
    pricing.costs = flat()
    assert pricing.ask(drafter, [sequence], 15).width == 1
    pricing.costs = Fixed([1, 2], [1.0, 1.45])
    assert pricing.ask(drafter, [sequence], 15).width == 1
    assert pricing.ask(drafter, [endless(1)], 15).width == 0


# --- several drafters -----------------------------------------------------------------------------


def test_guesses_of_all_parts_are_merged() -> None:
    drafter = Several([Says("one", 1, 2), Says("other", 1, 3)])
    for pricing in (Unpriced(), Priced(flat())):
        offer = pricing.ask(drafter, [endless()], 15)
        (tree,) = offer.trees
        assert [draft.drafter for draft in offer.drafts] == ["one", "other"]
        assert sorted(tree.token_ids) == [1, 2, 3]
        sources = dict(zip(tree.token_ids, offer.blends[0].sources, strict=True))
        assert sources == {1: ("one", "other"), 2: ("one",), 3: ("other",)}


def test_the_calibrated_acceptance_decides_and_not_the_stated_one() -> None:
    calibrator = Calibrator()
    boasts, modest = Says("boasts", 1, acceptance=0.9), Says("modest", 2, acceptance=0.1)
    for _ in range(200):
        calibrator.observe(boasts.tree, 0.0, (9,))
        calibrator.observe(modest.tree, 0.0, (2,))
    offer = Priced(flat(), calibrator).ask(Several([boasts, modest]), [endless()], 15)
    assert offer.trees[0].token_ids == (2, 1)
    # A warm request has other records: nothing is known of its guesses.
    warm = Priced(flat(), calibrator).ask(Several([boasts, modest]), [endless(temperature=1.0)], 15)
    assert warm.trees[0].token_ids == (1, 2)


@pytest.mark.parametrize("make", [Unpriced, lambda: Priced(flat())])
def test_every_drafter_is_counted_by_itself(make: Any) -> None:
    """Shared nodes count for each; `c` after a rejected guess is judged for nobody."""
    first, second, third = TEXT[:3]
    bad = (second + 1) % TARGET.vocab_size
    sequence = endless()
    drafter = Several(
        [
            Says("good", first, second),
            Says("half", first, bad, third),
            Says("none"),
            Says("no", bad),
        ]
    )
    one_step(make(), drafter, sequence)
    counts = {
        name: (record.asked, record.drafted, record.judged, record.accepted)
        for name, record in sequence.stats.drafters.items()
    }
    assert counts == {
        "good": (1, 2, 2, 2),
        "half": (1, 3, 2, 1),
        "none": (1, 0, 0, 0),
        "no": (1, 1, 1, 0),
    }
    assert (sequence.stats.drafted, sequence.stats.accepted) == (5, 2)


def test_what_was_not_planned_is_not_counted() -> None:
    sequence = endless()
    one_step(Priced(steep()), Says("one", *TEXT[:4]), sequence)
    assert sequence.stats.drafters["one"] == DrafterStats(
        asked=1, seconds=sequence.stats.drafters["one"].seconds
    )
    assert sequence.stats.expected_tokens == 1.0


def test_expected_tokens_are_what_the_plans_promised() -> None:
    sequence = endless()
    one_step(Unpriced(), Says("one", 1, 2, acceptance=0.5), sequence)
    assert sequence.stats.expected_tokens == 1.0 + 0.5 + 0.25


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("make", [Unpriced, lambda: Priced(flat()), lambda: Priced(cheap_up_to(9))])
def test_the_counts_of_a_ragged_batch_add_up(make: Any, temperature: float) -> None:
    """The identities are those of `support.runs`."""
    sequences = [
        endless(i, prompt, max_new_tokens=10 + 9 * i, temperature=temperature)
        for i, prompt in enumerate([PROMPT, (0, 1, 2, 0, 1, 2, 0), (4,), (3, 3, 3)])
    ]
    drafter = make_drafter("suffix,recycling,prompt-lookup")
    run(TARGET, drafter, sequences, pricing=make(), max_batch=3)
    for name in ("suffix", "recycling", "prompt-lookup"):
        records = [sequence.stats.drafters[name] for sequence in sequences]
        assert sum(record.accepted for record in records) > 0
        assert all(record.seconds > 0 for record in records)


def test_a_tree_belongs_to_the_drafter_that_was_asked_whatever_name_it_bears() -> None:
    drafter = Says("mine", *TEXT[:3])
    drafter.tree = DraftTree.chain(TEXT[:3])
    for pricing in (Unpriced(), Priced(flat())):
        sequence = endless()
        one_step(pricing, drafter, sequence)
        assert sequence.stats.drafters["mine"].accepted == 3


def test_a_guess_outside_the_vocabulary_is_laid_to_those_who_guessed() -> None:
    wild = Says("wild", 99)
    with pytest.raises(DrafterError, match="'wild' guessed tokens from 99"):
        one_step(Priced(flat()), wild, endless())
    with pytest.raises(DrafterError, match="'tame,wild' guessed tokens from 1 to 99"):
        one_step(Priced(flat()), Several([Says("tame", 1), wild, Says("silent")]), endless())


class TooMany(Says):
    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        return [self.tree] * 3


@pytest.mark.parametrize("pricing", [Unpriced(), Priced(flat())])
def test_another_number_of_drafts_than_sequences_is_an_error(pricing: Pricing) -> None:
    with pytest.raises(DrafterError, match="'bad' made 3 drafts for 2 sequences"):
        pricing.ask(Several([Says("one", 1), TooMany("bad")]), [endless(0), endless(1)], 15)


# --- who is asked ---------------------------------------------------------------------------------


def test_who_does_not_pay_is_asked_less_and_less() -> None:
    asked = asked_in(Priced(steep()), right(), endless())
    assert asked == [0, 1, 2, 4, 7, 12, 21, 38, 55]


def test_guesses_that_are_always_wrong_are_asked_for_less_and_less() -> None:
    """They take hardly any time; it is the calibrator that finds out what they are worth."""
    plain, sequence = endless(max_new_tokens=160), endless(max_new_tokens=160)
    run(TARGET, make_drafter("none"), [plain])
    drafter = AlwaysWrong({PROMPT: plain.new_ids}, TARGET.vocab_size, EOS)
    asked = asked_in(Priced(Fixed([1, 2], [1.0, 1.3])), drafter, sequence)
    assert sequence.new_ids == plain.new_ids
    assert asked[:20] == list(range(20))
    assert len([step for step in asked if step >= 100]) < 10
    assert 10 <= sequence.stats.steps - sequence.stats.plain_steps < 40


def test_where_a_line_begins_drafters_are_asked_sooner() -> None:
    """Every fourth step writes such a token: the gaps of up to sixteen steps get no longer."""
    often = [token_id for i, token_id in enumerate(TEXT) if i % 4 == 3]
    sooner = Priced(steep(), is_break=set(often).__contains__)
    asked = asked_in(Priced(steep()), right(), endless())
    more_often = asked_in(sooner, right(), endless())
    assert more_often[:4] == asked[:4]
    assert len(more_often) > len(asked)
    for step_idx in more_often[5:]:
        assert TEXT[step_idx] in often  # the token before; the prompt's pass wrote the first one


def test_who_pays_is_asked_in_every_step() -> None:
    sequence = endless()
    assert asked_in(Priced(flat()), right(), sequence) == list(range(sequence.stats.steps))


def test_who_only_repeats_what_others_guessed_is_asked_less() -> None:
    first, second = right(), right()
    first.name, second.name = "first", "second"
    sequence = endless()
    run(TARGET, Several([first, second]), [sequence], pricing=Priced(flat()), max_draft_nodes=3)
    records = sequence.stats.drafters
    assert records["first"].asked == sequence.stats.steps >= 15
    assert records["second"].asked <= 6  # in steps 0, 1, 2, 4, 7, 12
    assert records["second"].accepted > 0  # which are counted all the same


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(AlwaysRight):
    """Knows all, but thinks for long."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(TEXTS, TARGET.vocab_size, EOS)
        self._clock = clock
        self._seconds = seconds

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self._clock.now += self._seconds
        return super().propose(batch, budget)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of drafting; it stands still unless somebody moves it."""
    clock = Clock()
    monkeypatch.setattr(pricing_module, "time", SimpleNamespace(perf_counter=clock))
    return clock


@pytest.mark.parametrize(("seconds", "pays"), [(0.5, True), (2.0, True), (100.0, False)])
def test_right_guesses_pay_only_if_they_come_in_time(
    clock: Clock, seconds: float, pays: bool
) -> None:
    sequence = endless()
    # Up to four guesses are read: worth no more than four plain seconds.
    asked = asked_in(Priced(cheap_up_to(5)), Slow(clock, seconds), sequence)
    if pays:
        assert asked == list(range(sequence.stats.steps))
    else:
        assert asked == [0, 1, 2, 3]  # the first one's time is not held against it
        assert sequence.stats.drafters["adversary"].seconds == 100.0 * len(asked)


def test_sequences_that_are_asked_together_share_the_time(clock: Clock) -> None:
    """Passes take a second per cached position; one right guess saves a sequence that of its own.

    These are 5 to 17 seconds: less than the 20 of a proposal, and more than an eighth of them.
    """
    drafter = Slow(clock, 20.0)

    def steps_asked(num_seqs: int) -> tuple[int, int]:
        sequences = [endless(i, max_new_tokens=12) for i in range(num_seqs)]
        costs = Fixed([1], [1e-9], per_position=1.0)
        run(TARGET, drafter, sequences, pricing=Priced(costs), max_draft_nodes=1)
        stats = sequences[0].stats
        return stats.drafters["adversary"].asked, stats.steps

    asked, steps = steps_asked(8)
    assert asked == steps
    asked, steps = steps_asked(1)
    assert asked < 6 < steps


def close(pricing: Priced, drafter: str, sequence: Sequence) -> None:
    for _ in range(3):
        pricing._gate(drafter, sequence).observe(0.0, 1.0)


def test_only_those_who_want_are_asked_and_each_has_its_own_tree() -> None:
    pricing, drafter = Priced(flat()), Says("one", 1, 2)
    batch = [endless(7), endless(8, max_new_tokens=3), endless(9, max_new_tokens=5)]
    close(pricing, "one", batch[1])
    offer = pricing.ask(drafter, batch, 15)
    assert drafter.proposed_to == [((7, 9), Budget(15, (LENGTH - 1, 4), math.inf))]
    assert offer.drafts[0].trees == (drafter.tree, None, drafter.tree)
    assert [len(tree) for tree in offer.trees] == [2, 0, 2]


@pytest.mark.parametrize(("costs", "least"), [(flat(), 0.0), (steep(), 0.5)])
@pytest.mark.parametrize("num_seqs", [1, 3])
def test_drafters_are_told_what_a_row_has_to_bring_in(
    costs: Fixed, least: float, num_seqs: int
) -> None:
    drafter = Says("one", 1, 2)
    Priced(costs).ask(drafter, [endless(i) for i in range(num_seqs)], 15)
    ((_, budget),) = drafter.proposed_to
    assert budget.min_path_prob == least


def test_who_was_not_asked_is_not_counted() -> None:
    pricing, drafter = Priced(flat()), Says("one", *TEXT[:3])
    batch = [endless(0), endless(1)]
    close(pricing, "one", batch[0])
    first, second = one_step(pricing, drafter, *batch)
    assert first.token_ids == TEXT[:1]
    assert second.token_ids == TEXT[:4]
    assert batch[0].stats.drafters["one"] == DrafterStats()
    assert batch[0].stats.plain_steps == 1
    assert batch[1].stats.drafters["one"].accepted == 3


def test_nobody_is_bothered_where_no_sequence_wants() -> None:
    pricing, drafter = Priced(flat()), Says("one", 1)
    batch = [endless(0), endless(1)]
    for sequence in batch:
        close(pricing, "one", sequence)
    offer = pricing.ask(drafter, batch, 15)
    assert drafter.proposed_to == []
    assert (offer.width, offer.drafts[0].seconds) == (0, 0.0)
    assert pricing.ask(drafter, batch, 15).width == 1  # one step later


def test_one_drafter_may_be_asked_while_another_waits() -> None:
    pricing, sequence = Priced(flat()), endless()
    close(pricing, "one", sequence)
    offer = pricing.ask(Several([Says("one", 1), Says("other", 2)]), [sequence], 15)
    assert offer.trees[0].token_ids == (2,)


class Listens(Says):
    """Notes of which requests it heard what the target said; on a clock, that takes a while."""

    wants_logits = True

    def __init__(self, name: str, *token_ids: int, clock: Clock | None = None) -> None:
        super().__init__(name, *token_ids)
        self.heard: list[int] = []
        self._clock = clock

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        assert len(logits) == 1 + len(tree)
        self.heard.append(sequence.request_id)
        if self._clock is not None:
            self._clock.now += 100.0


def test_who_is_left_out_hears_of_every_fourth_step() -> None:
    drafter, sequence = Listens("one", EOS), endless()
    asked = asked_in(Priced(steep()), drafter, sequence)  # no guess ever pays
    skipped = sequence.stats.steps - len(asked)
    assert len(asked) < skipped
    assert len(asked) + skipped // 8 < len(drafter.heard) <= len(asked) + skipped // 4
    drafter, sequence = Listens("one", EOS), endless()
    asked_in(Unpriced(), drafter, sequence)
    assert len(drafter.heard) == sequence.stats.steps


class AttentiveRight(AlwaysRight):
    """Knows all, and takes its time to listen."""

    wants_logits = True

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(TEXTS, TARGET.vocab_size, EOS)
        self._clock = clock
        self._seconds = seconds

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        self._clock.now += self._seconds


@pytest.mark.parametrize(("seconds", "pays"), [(2.0, True), (100.0, False)])
def test_the_time_it_takes_to_listen_is_the_drafters_own(
    clock: Clock, seconds: float, pays: bool
) -> None:
    sequence = endless()
    asked = asked_in(Priced(cheap_up_to(5)), AttentiveRight(clock, seconds), sequence)
    assert (asked == list(range(sequence.stats.steps))) == pays


# --- what is learnt -------------------------------------------------------------------------------


class Timed(Priced):
    """Every step takes two seconds."""

    def learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        super().learn(offer, plan, batch, commits, 2.0)


def test_the_costs_follow_the_steps() -> None:
    pricing = Timed(CostModel([1, 99], [1.0, 1.0]))
    run(TARGET, make_drafter("none"), [endless()], pricing=pricing)
    assert pricing.costs.seconds(PassSize(1, 1, 9)) == pytest.approx(2.0, rel=0.05)


def test_the_time_of_a_step_is_that_of_the_pass_that_was_read() -> None:
    costs = flat()
    batch = [endless(0, PROMPT), endless(1, (1,) * 9)]
    drafter = Several([Says("one", 1, 2), Says("other", 1, 3)])
    one_step(Timed(costs), drafter, *batch)
    assert costs.observed == [(PassSize(2, 4, 8), 2.0)]
    assert costs.observed[0][0] in costs.asked


def test_the_time_of_drafting_is_no_time_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only a drafter moves."""
    clock = Clock()
    for module in (pricing_module, step_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))
    costs, sequence = flat(), endless()
    one_step(Priced(costs), Slow(clock, 5.0), sequence)
    assert [seconds for _, seconds in costs.observed] == [0.0]
    assert sequence.stats.drafters["adversary"].seconds == sequence.stats.draft_seconds == 5.0


@pytest.mark.parametrize(("make_costs", "width"), [(flat, 3), (steep, 0)])
def test_the_calibrator_learns_of_what_was_read_and_of_what_was_not(
    make_costs: Callable[[], Fixed], width: int
) -> None:
    pricing, sequence = Priced(make_costs()), endless()
    wrong = (TEXT[2] + 1) % TARGET.vocab_size
    tree = Says("one", *TEXT[:2], wrong, acceptance=0.3)
    one_step(pricing, tree, sequence)
    assert sequence.stats.drafted == width
    reliability = pricing.calibrator.reliability()["one"]
    # A plain step writes one token, so that the guess behind it is not judged by it.
    assert (reliability.judged, reliability.accepted) == ((3, 2) if width else (1, 1))


def test_a_drafter_that_turns_out_right_is_read_further() -> None:
    """Rows are dear: at its word the guess is worth nothing, by experience it is."""
    costs = Fixed([1, 2], [1.0, 1.5])
    pricing, drafter = Priced(costs), Says("one", 1, acceptance=0.3)
    assert pricing.ask(drafter, [endless()], 15).width == 0
    for _ in range(100):
        pricing.calibrator.observe(drafter.tree, 0.0, (1, 2))
    assert pricing.ask(drafter, [endless()], 15).width == 1


def test_a_calibrator_that_was_handed_in_is_used() -> None:
    calibrator = Calibrator()
    pricing = Priced(flat(), calibrator)
    assert pricing.calibrator is calibrator
    one_step(pricing, Says("one", 1), endless())
    assert calibrator.reliability()["one"].judged == 1


# --- what is forgotten ----------------------------------------------------------------------------


def test_nothing_of_three_hundred_requests_stays() -> None:
    pricing = Priced(flat())
    drafter = make_drafter("suffix,prompt-lookup")
    for start in range(0, 300, 4):
        batch = [endless(start + i, max_new_tokens=3 + i) for i in range(4)]
        engine = Engine(TARGET, drafter, EngineSettings(max_batch=3), pricing=pricing)
        for sequence in batch:
            engine.add(sequence)
        most = 0
        while not engine.is_idle:
            engine.step()
            most = max(most, len(pricing._requests))
            if batch[0].stats.steps == 1:
                engine.cancel(batch[3])
        assert 0 < most <= 3
        assert pricing._requests == {}
    assert len(pricing.calibrator._records) == 2


def test_a_request_that_failed_is_forgotten_too() -> None:
    class Failing(Says):
        def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
            raise RuntimeError("no idea")

    pricing, sequence = Priced(flat()), endless()
    engine = Engine(TARGET, Failing("failing"), EngineSettings(), pricing=pricing)
    engine.add(sequence)
    engine.step()
    with pytest.raises(RuntimeError, match="no idea"):
        engine.step()
    engine.cancel(sequence)
    assert pricing._requests == {}


def test_an_old_number_starts_anew() -> None:
    pricing, drafter, sequence = Priced(flat()), Says("one", 1), endless()
    close(pricing, "one", sequence)
    pricing.finish(sequence)
    assert pricing.ask(drafter, [endless()], 15).width == 1


def test_requests_it_never_saw_can_be_finished() -> None:
    for pricing in (Unpriced(), Priced(flat())):
        pricing.finish(endless(99))


# --- in the step ----------------------------------------------------------------------------------


def test_the_plan_is_as_wide_as_was_chosen() -> None:
    pricing = Priced(cheap_up_to(3))
    batch = [endless(0), endless(1)]
    offer = pricing.ask(Says("one", 1, 2, 3, 4), batch, 15)
    assert offer.width == 0  # for two sequences, a second row each is a fourth one
    offer = pricing.ask(Says("one", 1, 2, 3, 4), batch[:1], 15)
    plan = make_plan(
        offer.trees, batch[:1], offer.width, vocab_size=TARGET.vocab_size, device=TARGET.device
    )
    assert plan.rows.num_rows == 3


def test_an_engine_without_pricing_reads_all() -> None:
    sequence = endless()
    run(TARGET, Says("one", 1, 2, 3), [sequence], max_draft_nodes=2)
    # The last step has no room for a guess, and the one before may have room for one alone.
    assert sequence.stats.drafters["one"].asked == sequence.stats.steps
    assert sequence.stats.drafted >= 2 * (sequence.stats.steps - 2)
