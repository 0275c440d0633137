"""Questions about a text of a given length, as chats: `python questions.py TOKENS > FILE.jsonl`.

The texts are outdraft's own documents, cut to the length by the default model's tokenizer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from outdraft.models.load import load_tokenizer
from outdraft.settings import DEFAULT_MODEL

DOCS = Path(__file__).parents[1]
TASKS = (
    "Summarize the text above in a few sentences.",
    "Which commands does the text above name? List them, each with what it does.",
    "Explain to a colleague who has not read it what the text above is about.",
)


def main() -> None:
    """Prints the questions, one chat a line."""
    num_tokens = int(sys.argv[1])
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    pages = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
    for i, task in enumerate(TASKS):
        text = "\n".join(pages[i:] + pages[:i])
        kept = tokenizer(text, add_special_tokens=False)["input_ids"][:num_tokens]
        content = f"{tokenizer.decode(kept)}\n\n{task}"
        chat = {"messages": [{"role": "user", "content": content}]}
        sys.stdout.write(f"{json.dumps(chat)}\n")


main()
