"""Texts of a corpus, document by document, as pieces of a size that a tokenizer likes.

A text file is one document. A `.jsonl` file has one per line: an object with `text`, with
`messages` (a chat), or with `prompt` and `answer` (a chat of two messages where the model has a
chat template, else the two joined).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from pathlib import Path
from typing import Any

from outdraft.errors import SettingsError
from outdraft.text.prompts import Tokenizer

_PIECE = 1 << 15  # characters
_JSON_LINES = {".jsonl", ".ndjson"}

Document = Iterator[str]
"""The pieces of its text; joined, they are the text."""


def read_documents(
    paths: Seq[Path], tokenizer: Tokenizer, on_read: Callable[[int], None] = lambda _: None
) -> Iterator[Document]:
    """The documents of all files, in order; each has to be read before the next.

    Args:
        tokenizer: its chat template turns messages into the text the model was trained on.
        on_read: hears of the bytes read, line by line.

    Raises:
        SettingsError: a file is not there or not UTF-8, or a line is no object as above.
    """
    for path in paths:
        lines = _lines(path, on_read)
        if path.suffix.lower() in _JSON_LINES:
            for number, line in lines:
                if line.strip():
                    yield iter([_text_of(line, f"{path}, line {number}", tokenizer)])
        else:
            yield _pieces(line for _, line in lines)


def check_files(paths: Seq[Path]) -> int:
    """How many bytes the files have.

    Raises:
        SettingsError: one of them is not there, or no file.
    """
    for path in paths:
        if not path.is_file():
            kind = "a folder; name the files in it" if path.is_dir() else "not there"
            raise SettingsError(f"{path} is {kind}")
    return sum(path.stat().st_size for path in paths)


def _lines(path: Path, on_read: Callable[[int], None]) -> Iterator[tuple[int, str]]:
    """The lines of a file, numbered from 1; line ends are those of the tokenizers' world."""
    check_files([path])
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            on_read(len(line))
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise SettingsError(
                    f"{path}, line {number}: not UTF-8 text ({error.reason}); convert the file"
                ) from error
            yield number, text.replace("\r\n", "\n")


def _pieces(lines: Iterator[str]) -> Document:
    """Lines joined to pieces; none begins with an empty line, which belongs to what is before."""
    piece: list[str] = []
    size = 0
    for line in lines:
        if size >= _PIECE and line.strip():
            yield "".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield "".join(piece)


def _text_of(line: str, where: str, tokenizer: Tokenizer) -> str:
    """The text of a line of JSON."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{where}: no JSON ({error.msg} at column {error.colno})") from error
    match record:
        case {"text": str(text)}:
            return text
        case {"messages": [*messages]} if _is_chat(messages):
            return _chat(messages, where, tokenizer)
        case {"prompt": str(prompt), "answer": str(answer)}:
            if tokenizer.chat_template is None:
                return prompt + answer
            messages = [
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": answer},
            ]
            return _chat(messages, where, tokenizer)
    found = f"the fields {', '.join(record)}" if isinstance(record, dict) else "no object"
    raise SettingsError(
        f'{where}: {found}; a line is {{"text": "..."}}, {{"prompt": "...", "answer": "..."}} or '
        '{"messages": [{"role": "...", "content": "..."}, ...]}'
    )


def _is_chat(messages: Seq[Any]) -> bool:
    return all(
        isinstance(message, Mapping) and {"role", "content"} <= message.keys()
        for message in messages
    )


def _chat(messages: Seq[Any], where: str, tokenizer: Tokenizer) -> str:
    from jinja2 import TemplateError

    if tokenizer.chat_template is None:
        raise SettingsError(
            f'{where}: this model has no chat template; give the text as {{"text": "..."}}'
        )
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=False
        )
    except TemplateError as error:
        raise SettingsError(
            f"{where}: the model's chat template refuses these messages ({error})"
        ) from error
    return str(text)
