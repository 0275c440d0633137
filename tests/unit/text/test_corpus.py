from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from outdraft.errors import SettingsError
from outdraft.text import corpus
from outdraft.text.corpus import check_files, read_documents
from support.toys import LetterTokenizer


class ChatTokenizer(LetterTokenizer):
    """Writes a chat as `role: text;` and wants the user to begin."""

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert not add_generation_prompt
        if conversation[0]["role"] != "user":
            raise TemplateError("the user begins")
        return "".join(f"{turn['role']}: {turn['content']};" for turn in conversation)


def read(*paths: Path, tokenizer: Any = None) -> list[list[str]]:
    return [list(document) for document in read_documents(paths, tokenizer or ChatTokenizer())]


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.md"
    first.write_text("one\n\ntwo\n")
    second.write_text("three")
    assert read(first, second) == [["one\n\ntwo\n"], ["three"]]


def test_an_empty_file_is_a_document_without_pieces(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    assert read(tmp_path / "a.txt") == [[]]


def test_a_long_text_comes_in_pieces_that_join_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_PIECE", 10)
    text = "a line\nanother line\n\n\n  third\nfourth\n\nlast"
    (tmp_path / "a.txt").write_text(text)
    (pieces,) = read(tmp_path / "a.txt")
    assert "".join(pieces) == text
    assert len(pieces) > 2
    assert all(piece.split("\n")[0].strip() for piece in pieces)


def test_line_ends_and_marks_of_windows_are_left_behind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\r\n".encode())
    assert read(tmp_path / "a.txt") == [["one\ntwo\n"]]


def test_a_line_of_json_is_a_document(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        {"text": "plain\ntext", "id": 7},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
        {"prompt": "how", "answer": "so"},
    )
    path.write_text(path.read_text().replace("\n", "\n\n"))  # empty lines are nothing
    assert read(path) == [
        ["plain\ntext"],
        ["user: hi;assistant: ho;"],
        ["user: how;assistant: so;"],
    ]


def test_without_a_chat_template_prompt_and_answer_are_joined(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"prompt": "how ", "answer": "so"})
    assert read(path, tokenizer=ChatTokenizer(has_template=False)) == [["how so"]]


def test_messages_need_a_chat_template(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(SettingsError, match=r"a\.jsonl, line 1: this model has no chat template"):
        read(path, tokenizer=ChatTokenizer(has_template=False))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: no JSON"),
        ('{"txt": "a", "id": 1}', "line 2: the fields txt, id; a line is"),
        ('{"text": 5}', "line 2: the fields text; a line is"),
        ('["text"]', "line 2: no object; a line is"),
        ('{"messages": ["hi"]}', "line 2: the fields messages"),
        ('{"messages": [{"role": "assistant", "content": "hi"}]}', "refuses .*the user begins"),
    ],
)
def test_a_line_that_is_none_of_these_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(SettingsError, match=reason):
        read(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\xff\xfe\n")
    with pytest.raises(SettingsError, match=r"a\.txt, line 2: not UTF-8"):
        read(tmp_path / "a.txt")


def test_files_have_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("12345")
    assert check_files([tmp_path / "a.txt", tmp_path / "a.txt"]) == 10
    with pytest.raises(SettingsError, match=r"b\.txt is not there"):
        check_files([tmp_path / "a.txt", tmp_path / "b.txt"])
    with pytest.raises(SettingsError, match="is a folder"):
        check_files([tmp_path])


def test_reading_says_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("é\r\nb".encode())
    read_sizes: list[int] = []
    for document in read_documents([tmp_path / "a.txt"], ChatTokenizer(), read_sizes.append):
        list(document)
    assert sum(read_sizes) == check_files([tmp_path / "a.txt"])
