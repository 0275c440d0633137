"""Jacobi iteration beside the verification: what the target says of guesses becomes n-grams.

Guesses from: a pool of n-grams of the request. It is filled with its text, with what the target
said after every row, and above all after rows that are read for this purpose alone: a trunk of
guessed tokens behind the root, and behind each trunk token what the target said of it in the steps
before. All are nodes of one tree:

    root ──▶ t1 ──▶ t2 ──▶ t3        the trunk, one token of each column
              └▶ a1  └▶ a2  └▶ a3    the column's next token, as the target wrote it last step
    root ──▶ v1 ──▶ v2               verification: n-grams of the pool that go on from here
              └───▶ v3

The target's tokens after a1, a2, a3 lengthen the columns. A column that has become an n-gram gives
up its first token, so that the trunk is made of what the target wrote one iteration earlier.

Score: length of the n-gram that a verification node ends, and how many others followed the same
context since; 0 for lookahead rows, whose acceptance is what they are worth, not the probability
that they are right. Cost: the lookahead rows, and some microseconds for each row. Source:
Lookahead Decoding (Fu et al. 2024), which masks the same rows with a pattern of its own.
"""

from __future__ import annotations
