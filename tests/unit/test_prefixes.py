from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from outdraft.models.table import TableCache, TableTarget
from outdraft.prefixes import KeptTexts, common_len


def cache_with(*texts: Seq[int]) -> TableCache:
    cache = TableCache()
    for text in texts:
        cache.add()
        cache.entries[-1] = [(token_id, place) for place, token_id in enumerate(text)]
    return cache


def kept_texts(table: TableTarget, max_tokens: int, *texts: Seq[int]) -> KeptTexts:
    kept = KeptTexts(table, max_tokens)
    for text in texts:
        kept.keep(cache_with([9, 9], text), 1, text)
    return kept


def found(kept: KeptTexts, text: Seq[int]) -> list[int] | None:
    """The tokens that were found, as the cache has them."""
    beginning = kept.longest(text)
    if beginning is None:
        return None
    assert isinstance(beginning.cache, TableCache)
    entries = beginning.cache.entries[beginning.seq_idx][: beginning.length]
    assert [place for _, place in entries] == list(range(len(entries)))
    return [token_id for token_id, _ in entries]


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 3, 3], 1), ([2], [1], 0)],
)
def test_common_beginnings(one: list[int], other: list[int], length: int) -> None:
    assert common_len(one, other) == common_len(other, one) == length


def test_the_longest_common_beginning_wins(table: TableTarget) -> None:
    kept = kept_texts(table, 100, [1, 2, 3], [1, 2, 4, 5, 6], [7, 8])
    assert found(kept, [1, 2, 4, 5, 9]) == [1, 2, 4, 5]
    assert found(kept, [1, 2, 3, 4]) == [1, 2, 3]
    assert found(kept, [7]) == [7]
    assert found(kept, [5, 1, 2]) is None
    assert found(kept, []) is None


def test_a_text_replaces_those_it_begins_with(table: TableTarget) -> None:
    kept = kept_texts(table, 100, [1, 2], [3], [1, 2, 3], [1, 2])
    assert kept.num_tokens == 4
    assert found(kept, [1, 2, 3, 4]) == [1, 2, 3]


def test_what_was_used_last_stays(table: TableTarget) -> None:
    kept = kept_texts(table, 6, [1, 1], [2, 2], [3, 3])
    assert found(kept, [1, 1]) == [1, 1]
    kept.keep(cache_with([4, 4, 4]), 0, [4, 4, 4])
    assert kept.num_tokens == 5
    assert [found(kept, [token_id]) for token_id in (1, 2, 3, 4)] == [[1], None, None, [4]]


def test_a_text_that_is_too_long_is_kept_from_its_beginning(table: TableTarget) -> None:
    kept = kept_texts(table, 4, [1, 1], list(range(9)))
    assert kept.num_tokens == 4
    assert found(kept, list(range(9))) == [0, 1, 2, 3]


def test_what_the_cache_lacks_is_not_known(table: TableTarget) -> None:
    kept = KeptTexts(table, 100)
    kept.keep(cache_with([1, 2]), 0, [1, 2, 3])
    assert found(kept, [1, 2, 3]) == [1, 2]


def test_a_kept_text_does_not_change_with_the_cache_it_came_from(table: TableTarget) -> None:
    kept = KeptTexts(table, 100)
    cache = cache_with([1, 2, 3])
    kept.keep(cache, 0, [1, 2, 3])
    cache.entries[0].clear()
    assert found(kept, [1, 2, 3]) == [1, 2, 3]


def test_nothing_is_kept_where_nothing_may_be(table: TableTarget) -> None:
    assert kept_texts(table, 0, [1, 2]).num_tokens == 0
    kept = kept_texts(table, 9, [1, 2])
    kept.clear()
    assert (kept.num_tokens, found(kept, [1, 2])) == (0, None)
