"""Prompts in, results out: the object a user holds."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence as Seq
from functools import cached_property
from types import TracebackType
from typing import Any, Self, overload

from outdraft.draft import DrafterContext, make_drafter
from outdraft.engine import Engine, OnPrompt
from outdraft.errors import SettingsError
from outdraft.grammar.matcher import Matcher
from outdraft.grammar.tokenizer import GrammarTokenizer
from outdraft.interfaces import Drafter, TargetModel
from outdraft.models.load import load_model
from outdraft.models.processors import make_processors
from outdraft.models.selftest import self_test
from outdraft.models.target import CausalLM
from outdraft.models.threads import set_threads
from outdraft.plan import Priced, Pricing
from outdraft.plan.cost_file import known_costs
from outdraft.results import Piece, Result, best_of, result_of
from outdraft.sampling import sample_seed
from outdraft.sequence import Sequence
from outdraft.settings import (
    AUTO_DRAFTER,
    DEFAULT_MODEL,
    EngineSettings,
    GenerationSettings,
    OwnSettings,
    settings_of_each,
)
from outdraft.text.prompts import Prompt, Tokenizer, bad_word_ids, is_one_prompt, to_prompt_ids
from outdraft.trace import OnStep
from outdraft.types import Commit


class Stream:
    """The pieces of one answer as they come.

    Leaving it early, by `cancel()`, a `with` block or deletion, frees all the request held.
    """

    def __init__(self, engine: Engine, sequence: Sequence, drafter: str) -> None:
        self._engine = engine
        self._sequence = sequence
        self._drafter = drafter

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        if self._sequence.finish_reason is not None:
            raise StopIteration
        (commit,) = self._step()
        return Piece(commit.text, commit.token_ids, commit.origins, commit.logprobs)

    def _step(self) -> list[Commit]:
        try:
            return self._engine.step()
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Ends the answer where it stands; `result` then says `cancelled`."""
        self._engine.cancel(self._sequence)

    @property
    def result(self) -> Result:
        """The whole answer.

        Raises:
            SettingsError: it has not ended yet.
        """
        if self._sequence.finish_reason is None:
            raise SettingsError("the stream has not ended; read it to the end or cancel() it first")
        return result_of(self._sequence, self._drafter)

    def __del__(self) -> None:
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()


class Outdraft:
    """A target with its tokenizer and a drafter, ready to generate; see `load`.

    Args:
        eos_ids: tokens that end a text.
        drafter: used where a call names none.
    """

    def __init__(
        self,
        target: TargetModel,
        tokenizer: Tokenizer,
        *,
        name: str = "model",
        eos_ids: Seq[int] = (),
        drafter: str | Drafter = "auto",
        settings: EngineSettings | None = None,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.name = name
        self.settings = settings or EngineSettings()
        self.default_drafter = drafter
        self._eos_ids = frozenset(eos_ids)
        self._drafters: dict[str, Drafter] = {}
        self._request_ids = itertools.count()
        self.drafter(drafter)  # an unknown name is refused here and not at the first request

    @overload
    def generate(
        self,
        prompts: Prompt,
        *,
        drafter: str | Drafter | None = None,
        on_step: OnStep | None = None,
        **settings: Any,
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompts: Seq[Prompt],
        *,
        drafter: str | Drafter | None = None,
        on_step: OnStep | None = None,
        per_prompt: Seq[OwnSettings] | None = None,
        **settings: Any,
    ) -> list[Result]: ...

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        *,
        drafter: str | Drafter | None = None,
        on_step: OnStep | None = None,
        per_prompt: Seq[OwnSettings] | None = None,
        **settings: Any,
    ) -> Result | list[Result]:
        """Answers one prompt, or a list of prompts as one batch.

        Args:
            prompts: text as it stands, chat messages, token ids, or a list of any of these.
            drafter: a method's name, `"none"` for plain decoding, or a `Drafter`.
            on_step: is told of every step; `outdraft.trace.Tracer` makes such observers.
            per_prompt: for each of several prompts, what it asks for beside or instead of
                `settings`.
            settings: see `GenerationSettings`.

        Raises:
            SettingsError: a setting is unknown or out of range, or a prompt is empty or too long.
        """
        if is_one_prompt(prompts):
            if per_prompt is not None:
                raise SettingsError("per_prompt is for a list of prompts; this is a single one")
            wanted = [GenerationSettings(**settings)]
            return self._run([prompts], wanted, drafter, on_step)[0]  # type: ignore[list-item]
        wanted = settings_of_each(len(prompts), settings, per_prompt)
        return self._run(list(prompts), wanted, drafter, on_step)  # type: ignore[arg-type]

    def stream(
        self,
        prompt: Prompt,
        *,
        drafter: str | Drafter | None = None,
        on_step: OnStep | None = None,
        on_prompt: OnPrompt | None = None,
        **settings: Any,
    ) -> Stream:
        """Answers one prompt piece by piece; other arguments as for `generate`.

        Args:
            on_prompt: is told, after each piece of the prompt, how many tokens of how many were
                read: a long one takes a while.
        """
        used = self.drafter(drafter)
        wanted = GenerationSettings(**settings)
        if wanted.num_samples > 1:
            raise SettingsError(
                f"a stream is one answer and not {wanted.num_samples}; leave out n and best_of, or "
                "call generate()"
            )
        engine = Engine(
            self.target,
            used,
            self.settings,
            pricing=self._pricing,
            on_step=on_step,
            on_prompt=on_prompt,
        )
        sequence = self._sequence(prompt, wanted)
        engine.add(sequence)
        return Stream(engine, sequence, used.name)

    def with_engine(self, **settings: Any) -> Outdraft:
        """The same model behind an engine with other settings; see `EngineSettings`."""
        return Outdraft(
            self.target,
            self.tokenizer,
            name=self.name,
            eos_ids=sorted(self._eos_ids),
            drafter=self.default_drafter,
            settings=self.settings.replace(**settings),
        )

    def drafter(self, choice: str | Drafter | None = None) -> Drafter:
        """The drafter of that name, made once; `None` is the default one."""
        choice = self.default_drafter if choice is None else choice
        if isinstance(choice, Drafter):
            return choice
        if not isinstance(choice, str):
            raise SettingsError(
                f"drafter={choice!r}: a drafter is a name such as 'suffix' or a Drafter object"
            )
        name = AUTO_DRAFTER if choice == "auto" else choice
        if name not in self._drafters:
            context = DrafterContext(self.target, self.tokenizer)
            self._drafters[name] = make_drafter(name, context)
        return self._drafters[name]

    @cached_property
    def _pricing(self) -> Pricing | None:
        """What passes cost here, measured on first use; `None` where guesses are not priced."""
        if not self.settings.adaptive or not isinstance(self.target, CausalLM):
            return None
        return Priced(known_costs(self.target, self.name))

    def _run(
        self,
        prompts: list[Prompt],
        settings: list[GenerationSettings],
        drafter: str | Drafter | None,
        on_step: OnStep | None,
    ) -> list[Result]:
        used = self.drafter(drafter)
        engine = Engine(self.target, used, self.settings, pricing=self._pricing, on_step=on_step)
        answers = [
            self._sequences(prompt, wanted)
            for prompt, wanted in zip(prompts, settings, strict=True)
        ]
        sequences = list(itertools.chain.from_iterable(answers))
        for sequence in sequences:
            engine.add(sequence)
        try:
            while not engine.is_idle:
                engine.step()
        finally:
            for sequence in sequences:
                engine.cancel(sequence)
        return [
            best_of([result_of(sequence, used.name) for sequence in samples], wanted)
            for samples, wanted in zip(answers, settings, strict=True)
        ]

    def _sequences(self, prompt: Prompt, settings: GenerationSettings) -> list[Sequence]:
        """One for each answer to be drawn, each with a seed of its own."""
        seed = _seed_of(settings)
        seeds = [sample_seed(seed, index) for index in range(settings.num_samples)]
        return [self._sequence(prompt, settings.replace(seed=each)) for each in seeds]

    def _sequence(self, prompt: Prompt, settings: GenerationSettings) -> Sequence:
        prompt_ids = to_prompt_ids(self.tokenizer, prompt)
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < self.target.vocab_size:
            raise SettingsError(
                f"the prompt has token ids from {min(prompt_ids)} to {max(prompt_ids)}; the "
                f"target's vocabulary has {self.target.vocab_size}, from 0 on"
            )
        end_ids = frozenset() if settings.ignore_eos else self._eos_ids
        processors, drafting_off_reason = make_processors(
            settings,
            prompt_len=len(prompt_ids),
            end_ids=sorted(end_ids | set(settings.stop_ids)),
            bad_words=bad_word_ids(self.tokenizer, settings.bad_words),
            vocab_size=self.target.vocab_size,
            device=self.target.device,
        )
        return Sequence(
            next(self._request_ids),
            prompt_ids,
            settings,
            seed=_seed_of(settings),
            eos_ids=self._eos_ids,
            max_context=self.target.max_context,
            decode=text_decoder(self.tokenizer),
            prediction_ids=self._prediction_ids(settings),
            matcher=self._matcher(settings),
            processors=processors,
            drafting_off_reason=drafting_off_reason,
        )

    def _matcher(self, settings: GenerationSettings) -> Matcher | None:
        source = settings.grammar_source
        return None if source is None else self._grammar_tokenizer.matcher(source)

    @cached_property
    def _grammar_tokenizer(self) -> GrammarTokenizer:
        """The tokenizer as grammars see it, made on first use."""
        return GrammarTokenizer(
            self.tokenizer, vocab_size=self.target.vocab_size, eos_ids=self._eos_ids
        )

    def _prediction_ids(self, settings: GenerationSettings) -> list[int]:
        if settings.prediction is None:
            return []
        return list(self.tokenizer(settings.prediction, add_special_tokens=False)["input_ids"])


def load(
    ref: Any = DEFAULT_MODEL,
    *,
    dtype: Any = "auto",
    device: Any = "auto",
    drafter: str | Drafter = "auto",
    settings: EngineSettings | None = None,
    check_model: bool = True,
    pack: bool = True,
    quantize: str | None = None,
    threads: int | None = None,
) -> Outdraft:
    """Loads a model and makes it ready to generate.

    Args:
        ref: a hub id, a local folder, a `.gguf` file, an alias such as `smollm2-135m`, or a
            `(model, tokenizer)` pair already in memory.
        dtype: `"auto"` takes the checkpoint's on GPUs and, on CPUs, bfloat16 where the hardware
            multiplies it natively and float32 elsewhere.
        device: `"auto"` takes a GPU where there is one.
        drafter: how to guess where a call names no method.
        check_model: prove on the loaded model that reading several rows at once changes nothing.
        pack: lay the weights out for this machine's CPU; `False` leaves the model to transformers.
        quantize: `"int8"` rounds the weights for CPUs: faster, and another model's text.
        threads: for the whole process; without it `OUTDRAFT_THREADS`, else torch's own choice.

    Raises:
        ModelError: the model is unknown, cannot be fetched or cannot be driven exactly.
        DrafterError: the drafter is unknown.
        SettingsError: dtype, device, quantize or threads is none.
    """
    set_threads(threads)
    loaded = load_model(ref, dtype=dtype, device=device, pack=pack, quantize=quantize)
    target = CausalLM(loaded.model, loaded.packing)
    if check_model:
        self_test(target)
    return Outdraft(
        target,
        loaded.tokenizer,
        name=loaded.name,
        eos_ids=loaded.eos_ids,
        drafter=drafter,
        settings=settings,
    )


def text_decoder(tokenizer: Tokenizer) -> Callable[[Seq[int]], str]:
    """From new token ids to the text a user sees, special tokens left out."""

    def decode(token_ids: Seq[int]) -> str:
        text = tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    return decode


def token_shower(tokenizer: Tokenizer) -> Callable[[int], str]:
    """From one token id to its text, special tokens included."""

    def show(token_id: int) -> str:
        text = tokenizer.decode(
            [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)

    return show


def _seed_of(settings: GenerationSettings) -> int:
    return secrets.randbits(63) if settings.seed is None else settings.seed
