from __future__ import annotations

import pytest

from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.models.table import TableTarget
from outdraft.sampling import sample_seed
from outdraft.sequences import SequenceMaker, check_one_answer
from outdraft.settings import GenerationSettings
from support.toys import EOS, LetterTokenizer


@pytest.fixture
def maker(table: TableTarget) -> SequenceMaker:
    return SequenceMaker(table, LetterTokenizer(), eos_ids=[EOS])


def test_samples_have_seeds_and_numbers_of_their_own(maker: SequenceMaker) -> None:
    samples = maker.make_samples([1, 2, 3], {"temperature": 1.0, "seed": 7, "best_of": 3})
    assert [each.seed for each in samples] == [sample_seed(7, index) for index in range(3)]
    assert len({each.request_id for each in samples}) == 3
    assert all(each.ids == [1, 2, 3] for each in samples)


def test_samples_share_no_state(maker: SequenceMaker) -> None:
    one, other = maker.make_samples(
        [1, 2, 3], {"temperature": 1.0, "n": 2, "repetition_penalty": 2.0}
    )
    assert one.processors
    assert not set(map(id, one.processors)) & set(map(id, other.processors))
    one.append(4)
    assert other.ids == [1, 2, 3]


def test_a_request_without_a_seed_is_given_one(maker: SequenceMaker) -> None:
    seeds = {maker.make([1, 2, 3], {}).seed for _ in range(3)}
    assert len(seeds) == 3
    sequence = maker.make([1, 2, 3], GenerationSettings(max_new_tokens=3))
    assert sequence.settings.seed == sequence.seed


def test_where_there_is_one_answer_several_are_refused(maker: SequenceMaker) -> None:
    with pytest.raises(SettingsError, match="one answer and not 4"):
        maker.make([1, 2, 3], {"temperature": 1.0, "n": 2, "best_of": 4})
    check_one_answer(GenerationSettings(temperature=1.0, best_of=1))


def test_tokens_outside_the_vocabulary_are_refused(maker: SequenceMaker) -> None:
    with pytest.raises(SettingsError, match="from 1 to 99"):
        maker.make([1, 99], {})


def test_engines_of_one_model_never_give_a_number_twice(table: TableTarget) -> None:
    llm = Outdraft(table, LetterTokenizer(), drafter="suffix", eos_ids=[EOS])
    other = llm.with_engine(max_batch=1)
    with llm.session() as one, other.session() as two:
        ids = [each.add("bcd").request_id for each in (one, two, one, two)]
    assert len(set(ids)) == 4
