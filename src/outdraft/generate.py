"""Prompts in, results out: the object a user holds."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence as Seq
from functools import cached_property
from typing import Any, Self, overload

from outdraft.aio import AsyncRequests, Pieces
from outdraft.chat import Chat
from outdraft.draft import DrafterContext, make_drafter
from outdraft.engine import Engine, OnPrompt
from outdraft.errors import SettingsError
from outdraft.interfaces import Drafter, TargetModel
from outdraft.models.load import load_model
from outdraft.models.selftest import self_test
from outdraft.models.target import CausalLM
from outdraft.models.threads import set_threads
from outdraft.plan import Priced, Pricing
from outdraft.plan.cost_file import key_of, known_costs
from outdraft.plan.profile import load_profile
from outdraft.prefixes import KeptTexts
from outdraft.results import Result, Stream, best_of, result_of
from outdraft.sequences import SequenceMaker, check_one_answer
from outdraft.session import Session
from outdraft.settings import (
    AUTO_DRAFTER,
    DEFAULT_MODEL,
    EngineSettings,
    GenerationSettings,
    OwnSettings,
    settings_of_each,
)
from outdraft.text.breaks import break_finder
from outdraft.text.detokenizer import text_decoder
from outdraft.text.prompts import Prompt, Tokenizer, is_one_prompt
from outdraft.trace import OnStep


class Outdraft:
    """A target with its tokenizer and a drafter, ready to generate; see `load`.

    Args:
        eos_ids: tokens that end a text.
        drafter: used where a call names none.
        pricing: in place of what this model's passes cost here, by a profile or measured.
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
        pricing: Pricing | None = None,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.name = name
        self.settings = settings or EngineSettings()
        self.default_drafter = drafter
        self._own_pricing = pricing
        self._eos_ids = frozenset(eos_ids)
        self._drafters: dict[str, Drafter] = {}
        self._sequences = SequenceMaker(target, tokenizer, eos_ids=self._eos_ids)
        self._asynchronous: dict[int, AsyncRequests] = {}  # by the id() of the drafters they use
        self._turn = threading.RLock()  # one thread at a time has the target and the drafters
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
        wanted = check_one_answer(GenerationSettings(**settings))
        engine = self._engine(used, on_step=on_step, on_prompt=on_prompt)
        sequence = self._sequences.make(prompt, wanted)
        engine.add(sequence)
        return Stream(engine, sequence, used.name)

    def session(
        self, *, drafter: str | Drafter | None = None, on_step: OnStep | None = None
    ) -> Session:
        """Many requests at once, added and removed while others run; see `Session`."""
        used = self.drafter(drafter)
        engine = self._engine(
            used,
            on_step=on_step,
            kept=KeptTexts(self.target, self.settings.max_kept_tokens),
        )
        return Session(engine, self.settings, used.name, self._sequences)

    def chat(
        self, *, system: str | None = None, drafter: str | Drafter | None = None, **settings: Any
    ) -> Chat:
        """A conversation, each turn of which reads only what is new; see `Chat`.

        Args:
            system: what the model is told before the first turn.
            settings: of every turn, see `GenerationSettings`.

        Raises:
            SettingsError: a setting is unknown or out of range, or the model has no chat template.
        """
        check_one_answer(GenerationSettings(**settings))  # here and not at the first turn
        if self.tokenizer.chat_template is None:
            raise SettingsError(f"{self.name} has no chat template; use generate with text instead")
        return Chat(self.session(drafter=drafter), system=system, settings=settings)

    async def agenerate(
        self, prompt: Prompt, *, drafter: str | Drafter | None = None, **settings: Any
    ) -> Result:
        """Answers one prompt from a coroutine; all that wait share passes of the target.

        Steps run in a worker thread. Cancelling the wait cancels the request, and the others do
        not notice.

        Args:
            drafter: as for `generate`; requests share passes with those of the same drafter.
            settings: see `GenerationSettings`.

        Raises:
            SettingsError: as for `generate`.
            QueueFullError: as many requests wait already as may, see `EngineSettings`.
        """
        return await self._async_requests(drafter).generate(prompt, settings)

    def astream(
        self, prompt: Prompt, *, drafter: str | Drafter | None = None, **settings: Any
    ) -> Pieces:
        """Answers one prompt piece by piece; otherwise as `agenerate`."""
        return self._async_requests(drafter).stream(prompt, settings)

    async def aclose(self) -> None:
        """Cancels what `agenerate` and `astream` have running and ends their threads.

        They may be called again afterwards.
        """
        while self._asynchronous:
            _, requests = self._asynchronous.popitem()
            if requests.is_of_this_loop():
                await requests.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    def _async_requests(self, choice: str | Drafter | None) -> AsyncRequests:
        drafter = self.drafter(choice)
        requests = self._asynchronous.get(id(drafter))
        if requests is not None and not requests.is_of_this_loop():
            requests.shut_down()
            requests = None
        if requests is None:
            requests = self._asynchronous[id(drafter)] = AsyncRequests(
                self.session(drafter=drafter)
            )
        return requests

    def with_engine(self, *, pricing: Pricing | None = None, **settings: Any) -> Outdraft:
        """The same model behind an engine with other settings; see `EngineSettings`."""
        other = Outdraft(
            self.target,
            self.tokenizer,
            name=self.name,
            eos_ids=sorted(self._eos_ids),
            drafter=self.default_drafter,
            settings=self.settings.replace(**settings),
            pricing=pricing,
        )
        other._turn = self._turn
        other._sequences = self._sequences
        return other

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

    @property
    def prices_guesses(self) -> bool:
        """Whether as many guesses are read as pay; only passes of real models have a price."""
        return self.settings.adaptive and isinstance(self.target, CausalLM)

    @cached_property
    def _pricing(self) -> Pricing | None:
        """What passes cost here, measured on first use; `None` where guesses are not priced."""
        if self._own_pricing is not None:
            return self._own_pricing
        if not isinstance(self.target, CausalLM) or not self.prices_guesses:
            return None
        profile = load_profile(key_of(self.target, self.name))
        is_break = break_finder(text_decoder(self.tokenizer))
        if profile is not None:
            return Priced(profile.costs, profile.calibrator, is_break=is_break)
        return Priced(known_costs(self.target, self.name), is_break=is_break)

    def _pricing_of(self, drafter: Drafter) -> Pricing | None:
        """Plain decoding needs no prices, and nothing to be measured for them."""
        return None if drafter.is_plain else self._pricing

    def _engine(
        self,
        drafter: Drafter,
        *,
        on_step: OnStep | None,
        on_prompt: OnPrompt | None = None,
        kept: KeptTexts | None = None,
    ) -> Engine:
        return Engine(
            self.target,
            drafter,
            self.settings,
            pricing=self._pricing_of(drafter),
            on_step=on_step,
            on_prompt=on_prompt,
            kept=kept,
            turn=self._turn,
        )

    def _run(
        self,
        prompts: list[Prompt],
        settings: list[GenerationSettings],
        drafter: str | Drafter | None,
        on_step: OnStep | None,
    ) -> list[Result]:
        used = self.drafter(drafter)
        engine = self._engine(used, on_step=on_step)
        answers = [
            self._sequences.make_samples(prompt, wanted)
            for prompt, wanted in zip(prompts, settings, strict=True)
        ]
        sequences = list(itertools.chain.from_iterable(answers))
        engine.run(sequences)
        return [
            best_of([result_of(sequence, used.name) for sequence in samples], wanted)
            for samples, wanted in zip(answers, settings, strict=True)
        ]


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
