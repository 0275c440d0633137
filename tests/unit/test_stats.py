from __future__ import annotations

from outdraft.stats import DrafterStats, Stats


def test_new_counters_are_zero_and_divide_nothing_by_zero() -> None:
    stats = Stats()
    assert (stats.tokens_per_step, stats.tokens_per_second, stats.acceptance_by_depth) == (0, 0, [])


def test_plain_decoding_has_exactly_one_token_per_step() -> None:
    stats = Stats()
    stats.count_tokens(["plain"])  # the prompt pass
    for _ in range(9):
        stats.count_step(num_drafted=0, judged=(), num_matched=0)
        stats.count_tokens(["plain"])
    assert stats.tokens_per_step == 1.0
    assert stats.tokens == stats.steps + 1 == stats.own_tokens == 10
    assert stats.plain_steps == stats.steps


def test_a_step_is_plain_if_nothing_was_drafted_whatever_was_accepted() -> None:
    stats = Stats()
    stats.count_step(num_drafted=0, judged=(), num_matched=0)
    stats.count_step(num_drafted=3, judged=(1,), num_matched=0)
    stats.count_step(num_drafted=2, judged=(1, 1), num_matched=2)
    assert (stats.steps, stats.plain_steps) == (3, 1)


def test_drafters_of_one_request_are_not_those_of_another() -> None:
    stats = Stats()
    stats.drafters["suffix"] = DrafterStats(asked=3)
    assert Stats().drafters == {}
    assert DrafterStats() == DrafterStats(asked=0, drafted=0, judged=0, accepted=0, seconds=0.0)


def test_the_prompt_pass_counts_as_a_pass() -> None:
    stats = Stats()
    stats.count_tokens(["plain"])
    stats.count_step(num_drafted=4, judged=(1, 1, 1, 1), num_matched=4)
    stats.count_tokens(["drafted"] * 4 + ["bonus"])
    assert stats.tokens_per_step == 6 / 2


def test_tokens_are_counted_by_where_they_came_from() -> None:
    stats = Stats()
    stats.count_tokens(["plain"])
    stats.count_tokens(["drafted", "drafted", "corrected"])
    stats.count_tokens(["drafted", "bonus"])
    assert (stats.tokens, stats.accepted, stats.own_tokens) == (6, 3, 3)


def test_acceptance_by_depth_counts_judged_guesses_alone() -> None:
    stats = Stats()
    stats.count_step(num_drafted=5, judged=(2, 1), num_matched=1)
    stats.count_step(num_drafted=3, judged=(1, 1, 1), num_matched=3)
    stats.count_step(num_drafted=0, judged=(), num_matched=0)
    stats.count_step(num_drafted=2, judged=(1,), num_matched=0)
    assert (stats.steps, stats.drafted) == (4, 10)
    assert stats.judged_by_depth == [4, 2, 1]
    assert stats.accepted_by_depth == [2, 1, 1]
    assert stats.acceptance_by_depth == [0.5, 0.5, 1.0]


def test_tokens_per_second_is_tokens_by_wall_time() -> None:
    assert Stats(tokens=10, seconds=4.0).tokens_per_second == 2.5


def test_target_time_adds_up() -> None:
    stats = Stats(target_seconds=5.0)
    with stats.time_target():
        pass
    assert 5.0 < stats.target_seconds < 6.0


def test_rows_and_plain_steps_are_shares_of_steps() -> None:
    stats = Stats(steps=8, drafted=20, plain_steps=2)
    assert (stats.rows_per_step, stats.plain_share) == (3.5, 0.25)
    assert (Stats().rows_per_step, Stats().plain_share) == (1.0, 0.0)
