"""A chat of three turns, with reuse and from scratch: `python chat_turns.py [DTYPE]`.

Fails unless the answers are the same, token for token.
"""

from __future__ import annotations

import statistics
import sys

import outdraft

SYSTEM = (
    "You are the assistant of a small public library. You answer questions of visitors about its "
    "opening hours (Tuesday to Saturday, nine to six), its reading rooms, its children's corner on "
    "the first floor, the lending of books (four weeks, renewed twice), of films and games (one "
    "week, not renewed), and about events. You are friendly and brief, you never invent facts, and "
    "you send people to the front desk where you do not know."
)
QUESTIONS = (
    "I have borrowed two novels and a film. When do I have to bring them back?",
    "And if I have not finished the novels by then?",
    "Where can my daughter read in the meantime?",
)
REPEATS = 5


def main() -> None:
    """Prints the time to each turn's first token, medians of runs that take turns."""
    llm = outdraft.load(dtype=sys.argv[1] if len(sys.argv) > 1 else "float32")
    options = {"max_new_tokens": 60}
    llm.generate("Hello", max_new_tokens=8)  # what comes first is slower
    reused: list[list[float]] = [[] for _ in QUESTIONS]
    scratch: list[list[float]] = [[] for _ in QUESTIONS]
    for _ in range(REPEATS):
        with llm.chat(system=SYSTEM, **options) as chat:
            for turn, question in enumerate(QUESTIONS):
                messages = [*chat.messages, {"role": "user", "content": question}]
                whole = llm.generate(messages, **options)
                answer = chat.send(question)
                if answer.token_ids != whole.token_ids:
                    sys.exit(f"turn {turn + 1} differs from the same chat from scratch")
                reused[turn].append(answer.stats.first_token_seconds)
                scratch[turn].append(whole.stats.first_token_seconds)
                if len(reused[0]) == REPEATS:
                    sys.stdout.write(
                        f"turn {turn + 1}: {answer.stats.reused_prompt_tokens} of "
                        f"{answer.prompt_tokens} prompt tokens reused, first token after "
                        f"{1000 * statistics.median(reused[turn]):.0f} ms, from scratch after "
                        f"{1000 * statistics.median(scratch[turn]):.0f} ms\n"
                    )


main()
