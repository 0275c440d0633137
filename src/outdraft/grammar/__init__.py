"""Texts that follow a JSON schema, a regular expression, a grammar or a list of choices.

`source.py` checks what a user wrote, `tokenizer.py` compiles it for a model's tokens, and
`matcher.py` follows one request's text in it, guesses included. The parsing is llguidance's, an
optional dependency that is imported on first use.
"""
