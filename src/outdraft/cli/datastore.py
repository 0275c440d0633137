"""`outdraft datastore`: texts made into a file that the drafter `datastore:PATH` guesses from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outdraft.cli import common
from outdraft.errors import SettingsError

if TYPE_CHECKING:
    from outdraft.draft.datastore_file import Header
    from outdraft.models.progress import StageProgress
    from outdraft.text.corpus import Document
    from outdraft.text.prompts import Tokenizer

BUILD_EXAMPLES = common.examples(
    "outdraft datastore build docs/*.md --output docs.datastore",
    "outdraft datastore build answers.jsonl --model Qwen/Qwen3-0.6B --output answers.datastore",
    'outdraft generate "How do I install it?" --drafter datastore:docs.datastore',
)
INFO_EXAMPLES = common.examples(
    "outdraft datastore info docs.datastore",
    "outdraft datastore info docs.datastore --verify",
)

# As in `draft.datastore_build`, which takes too long to import for a page of help; a test holds
# them together.
DEFAULT_SHARD_TOKENS = 1 << 26

datastore_app = typer.Typer(
    help="Make a corpus into a file to guess from, or look at such a file.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def build(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...",
            help="Text files, one document each, or .jsonl files with one document per line: an "
            "object with text, with messages, or with prompt and answer.",
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="The datastore to write.")
    ],
    model: common.ModelOption = common.DEFAULT_MODEL,
    shard_tokens: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Tokens sorted at once, in 10 to 15 bytes of memory each; a larger corpus is "
            "looked up in several parts.",
        ),
    ] = DEFAULT_SHARD_TOKENS,
) -> None:
    """Build a datastore from texts.

    It belongs to the tokenizer of the model named; of the model itself, nothing is read. Texts
    that resemble the answers to come are worth most: earlier answers, documentation, code, forms.
    An existing datastore of that name is replaced once the new one is whole.
    """
    from outdraft.draft.datastore_build import build_datastore
    from outdraft.models.checkpoint import quiet_transformers
    from outdraft.models.load import load_tokenizer
    from outdraft.models.progress import StageProgress
    from outdraft.text.corpus import check_files
    from outdraft.text.vocabulary import Vocabulary

    num_bytes = check_files(files)
    _check_output(output)
    tokenizer = load_tokenizer(model)
    with StageProgress(common.err_console()) as bar, quiet_transformers():
        reading = _Reading(files, tokenizer, bar, num_bytes)
        header = build_datastore(
            output,
            reading.documents(),
            Vocabulary.of(tokenizer, model),
            shard_tokens=shard_tokens,
            on_sort=reading.show_sorting,
        )
    console = common.out_console()
    console.print(f"{output}: {_summary(header)}", markup=False, soft_wrap=True)
    common.note(f"use it with --drafter datastore:{output}")


def info(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A datastore.")],
    *,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", metavar="", help="Read all of it and hold it against its checksum."
        ),
    ] = False,
) -> None:
    """Show what a datastore holds and which tokenizer it belongs to."""
    from outdraft.draft.datastore_file import check_contents, read_header

    header = check_contents(path) if verify else read_header(path)
    vocabulary = header.vocabulary
    lines = [
        f"{path}: {_summary(header)}",
        f"tokenizer: {vocabulary.described}",
    ]
    if verify:
        lines.append("checksum: as it was written")
    common.out_console().print("\n".join(lines), markup=False, soft_wrap=True)


datastore_app.command(help=common.help_of(build), epilog=BUILD_EXAMPLES)(build)
datastore_app.command(help=common.help_of(info), epilog=INFO_EXAMPLES)(info)


class _Reading:
    """Reads and tokenises the files while a bar shows how far it has come."""

    def __init__(
        self, files: list[Path], tokenizer: Tokenizer, bar: StageProgress, num_bytes: int
    ) -> None:
        self._files = files
        self._tokenizer = tokenizer
        self._bar = bar
        self._num_bytes = num_bytes
        self._num_read = 0
        self._is_sorting = True  # the bar does not stand at "reading" yet

    def documents(self) -> Iterator[Iterator[list[int]]]:
        """The token ids of each document, piece by piece."""
        from outdraft.text.corpus import read_documents

        for document in read_documents(self._files, self._tokenizer, self._show_reading):
            yield self._token_ids(document)

    def show_sorting(self, shard: int) -> None:
        self._is_sorting = True
        self._bar.begin(f"sorting part {shard + 1}")

    def _token_ids(self, document: Document) -> Iterator[list[int]]:
        for piece in document:
            yield list(self._tokenizer(piece, add_special_tokens=False)["input_ids"])

    def _show_reading(self, num_bytes: int) -> None:
        if self._is_sorting:
            self._is_sorting = False
            self._bar.begin("reading and tokenising", self._num_bytes)
        self._num_read += num_bytes
        self._bar.advance_to(self._num_read)


def _check_output(path: Path) -> None:
    """Refuses to write over anything but a datastore."""
    from outdraft.draft.datastore_file import is_datastore

    if path.exists() and not is_datastore(path):
        raise SettingsError(
            f"--output {path} is there already and no datastore; name another file, or remove it"
        )
    if not path.absolute().parent.is_dir():
        raise SettingsError(f"--output {path}: there is no folder {path.absolute().parent}")


def _summary(header: Header) -> str:
    documents = "document" if header.num_documents == 1 else "documents"
    return (
        f"{header.num_tokens:,} tokens of {header.num_documents:,} {documents}, "
        f"{header.num_bytes / 1e6:.1f} MB"
    )
