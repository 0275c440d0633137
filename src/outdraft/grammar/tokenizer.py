"""A model's tokens as grammars see them, and grammars compiled for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from outdraft.errors import SettingsError
from outdraft.grammar.matcher import Matcher
from outdraft.grammar.source import GrammarSource, import_llguidance

_MAX_KEPT = 32


class GrammarTokenizer:
    """The bytes of each token; made once per model, since it takes a moment (0.2 to 1 s).

    Args:
        tokenizer: of transformers, one of those that the tokenizers library runs ("fast").
        vocab_size: of the target, which may have more rows than the tokenizer has tokens; the
            rows above are never allowed.
        eos_ids: the tokens that end a text, at least one.

    Raises:
        SettingsError: the tokenizer is of another kind, does not spell bytes or has more tokens
            than the target, or nothing ends a text.
    """

    def __init__(self, tokenizer: object, *, vocab_size: int, eos_ids: Collection[int]) -> None:
        llguidance = import_llguidance()
        self._eos_ids = tuple(sorted(eos_ids))
        if not self._eos_ids:
            raise SettingsError(
                "this model has no end-of-text token, and a grammar needs one to end its texts"
            )
        from llguidance.hf import from_tokenizer

        try:
            self._tokens = from_tokenizer(
                tokenizer,  # type: ignore[arg-type]  # it checks the class itself
                n_vocab=vocab_size,
                eos_token=list(self._eos_ids),
            )
        except ValueError as error:
            raise SettingsError(
                f"grammars cannot be used with this model's tokenizer, a "
                f"{type(tokenizer).__name__}, and {vocab_size} rows of logits: {error}"
            ) from error
        self._matcher_class = llguidance.LLMatcher
        self._compiled: OrderedDict[GrammarSource, Any] = OrderedDict()
        likely = getattr(tokenizer, "eos_token_id", None)
        self._likely_eos = likely if likely in self._eos_ids else self._eos_ids[0]

    def matcher(self, source: GrammarSource) -> Matcher:
        """For the text of one request, at its beginning; the last few grammars stay compiled.

        Raises:
            SettingsError: the grammar does not fit the tokens, or is too large.
        """
        compiled = self._compiled.get(source)
        if compiled is None:
            compiled = self._matcher_class(self._tokens, source.text)
            if compiled.is_error():
                raise SettingsError(f"{source.kind}: {compiled.get_error().strip()}")
            self._compiled[source] = compiled
            if len(self._compiled) > _MAX_KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(source)
        return Matcher(
            compiled.deep_copy(),
            self._tokens.tokenize_bytes,
            vocab_size=self._tokens.vocab_size,
            eos_ids=self._eos_ids,
            likely_eos=self._likely_eos,
        )
