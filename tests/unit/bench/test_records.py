from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from outdraft.bench.records import (
    DrafterCounts,
    Key,
    Record,
    Results,
    Turn,
    prompt_key,
    replace_file,
)
from outdraft.errors import SettingsError
from support.benches import make_record, make_turn


def filled(folder: Path) -> Results:
    results = Results(folder)
    results.append([make_record("w1")], {"a": [1, 2]})
    results.append([make_record("w2"), make_record("w3", session=2)], {"a": [1, 2], "b": [3]})
    return results


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    turn = make_turn(judged_by_depth=(3, 1), accepted_by_depth=(1, 0), text="né\n")
    records = [
        make_record("w1", "suffix", turn, make_turn(draft_seconds=None, drafted=None)),
        make_record("w2", error="ValueError: no", turns=(), peak_rss_bytes=None),
    ]
    Results(tmp_path).append(records, {})
    assert Results(tmp_path).records == records


def test_counts_of_drafters_come_back(tmp_path: Path) -> None:
    counts = {"suffix": DrafterCounts(asked=4, drafted=9, judged=5, accepted=3, seconds=0.5)}
    records = [make_record("w1", "suffix", make_turn(expected_tokens=6.5, drafters=counts))]
    Results(tmp_path).append(records, {})
    assert Results(tmp_path).records == records


def test_files_of_before_expected_tokens_are_read(tmp_path: Path) -> None:
    line = asdict(make_record("w1", "suffix"))
    for name in ("expected_tokens", "drafters"):
        del line["turns"][0][name]
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    (record,) = Results(tmp_path).records
    assert record.turns[0].expected_tokens is record.turns[0].drafters is None


def test_a_record_adds_its_turns_up() -> None:
    record = make_record("w1", "plain", make_turn((1, 2), 0.5), make_turn((3,), 0.25))
    assert (record.tokens, record.seconds, record.is_ok) == (3, 0.75, True)
    assert record.key == Key("w1", "plain", 0)


def test_each_prompt_is_written_once(tmp_path: Path) -> None:
    filled(tmp_path)
    Results(tmp_path).append([make_record("w4")], {"b": [3], "c": [4]})
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"prompt": "a", "token_ids": [1, 2]},
        {"prompt": "b", "token_ids": [3]},
        {"prompt": "c", "token_ids": [4]},
    ]


def test_prompts_are_named_by_their_ids() -> None:
    assert prompt_key([1, 23]) == prompt_key((1, 23)) != prompt_key([12, 3])


def test_a_new_session_follows_the_highest(tmp_path: Path) -> None:
    assert Results(tmp_path).next_session == 0
    assert filled(tmp_path).next_session == 3


def test_keys_are_known_from_disk(tmp_path: Path) -> None:
    filled(tmp_path)
    results = Results(tmp_path)
    assert Key("w2", "plain", 0) in results
    assert Key("w2", "plain", 1) not in results


def test_a_torn_last_line_is_dropped_for_good(tmp_path: Path) -> None:
    filled(tmp_path)
    for name in ("results.jsonl", "prompts.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"half": "a li')
    results = Results(tmp_path)
    assert [record.question_id for record in results.records] == ["w1", "w2", "w3"]
    results.append([make_record("w4")], {"c": [4]})
    assert [record.question_id for record in Results(tmp_path).records] == ["w1", "w2", "w3", "w4"]
    assert all(
        json.loads(line)["prompt"] for line in (tmp_path / "prompts.jsonl").read_text().splitlines()
    )


def test_keep_only_forgets_the_others_on_disk_too(tmp_path: Path) -> None:
    results = filled(tmp_path)
    results.keep_only({Key("w1", "plain", 0), Key("w3", "plain", 0)})
    assert Key("w2", "plain", 0) not in results
    assert Results(tmp_path).records == results.records
    assert [record.question_id for record in results.records] == ["w1", "w3"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("results.jsonl", "nonsense"),
        ("results.jsonl", "[]"),
        ("results.jsonl", '{"question_id": "w1"}'),
        ("prompts.jsonl", "nonsense"),
        ("prompts.jsonl", "{}"),
    ],
)
def test_a_foreign_line_is_named(tmp_path: Path, name: str, line: str) -> None:
    filled(tmp_path)
    with (tmp_path / name).open("a") as file:
        file.write(f"{line}\n")
    number = len((tmp_path / name).read_text().splitlines())
    with pytest.raises(SettingsError, match=rf"{name}, line {number} is no line that outdraft ben"):
        Results(tmp_path)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    replace_file(path, "old")
    replace_file(path, "né")
    assert path.read_text(encoding="utf-8") == "né"
    assert list(tmp_path.iterdir()) == [path]


def test_records_and_turns_are_plain_json() -> None:
    record = make_record("w1", "suffix", make_turn(judged_by_depth=(1,), accepted_by_depth=(0,)))
    assert Record.from_json(json.loads(json.dumps(asdict(record)))) == record
    assert Turn.from_json(json.loads(json.dumps(asdict(record.turns[0])))) == record.turns[0]
