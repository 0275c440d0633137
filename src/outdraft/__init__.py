"""outdraft: the same text from a language model, sooner.

    import outdraft

    llm = outdraft.load("smollm2-135m")
    print(llm.generate("The capital of France is", max_new_tokens=20).text)

Everything public is here; the modules below are private.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from outdraft.chat import Chat
    from outdraft.draft import drafter_names, make_drafter
    from outdraft.errors import (
        CacheError,
        DrafterError,
        FetchError,
        ModelError,
        OutdraftError,
        QueueFullError,
        SelfTestError,
        SettingsError,
        UnknownModelError,
        UnsupportedModelError,
    )
    from outdraft.generate import Outdraft, load
    from outdraft.integrations.transformers import custom_generate
    from outdraft.interfaces import Drafter
    from outdraft.results import Piece, Result, Stream
    from outdraft.session import Request, Session
    from outdraft.settings import EngineSettings, GenerationSettings
    from outdraft.stats import Stats
    from outdraft.types import Budget, Commit, DraftTree, TokenLogprob

# Names are looked up on first use, so that `import outdraft` does not wait for torch.
_HOME_OF = {
    "Chat": "outdraft.chat",
    **dict.fromkeys(["drafter_names", "make_drafter"], "outdraft.draft"),
    **dict.fromkeys(
        [
            "CacheError",
            "DrafterError",
            "FetchError",
            "ModelError",
            "OutdraftError",
            "QueueFullError",
            "SelfTestError",
            "SettingsError",
            "UnknownModelError",
            "UnsupportedModelError",
        ],
        "outdraft.errors",
    ),
    **dict.fromkeys(["Outdraft", "load"], "outdraft.generate"),
    "custom_generate": "outdraft.integrations.transformers",
    "Drafter": "outdraft.interfaces",
    **dict.fromkeys(["Piece", "Result", "Stream"], "outdraft.results"),
    **dict.fromkeys(["Request", "Session"], "outdraft.session"),
    **dict.fromkeys(["EngineSettings", "GenerationSettings"], "outdraft.settings"),
    "Stats": "outdraft.stats",
    **dict.fromkeys(["Budget", "Commit", "DraftTree", "TokenLogprob"], "outdraft.types"),
}

__all__ = [
    "Budget",
    "CacheError",
    "Chat",
    "Commit",
    "DraftTree",
    "Drafter",
    "DrafterError",
    "EngineSettings",
    "FetchError",
    "GenerationSettings",
    "ModelError",
    "Outdraft",
    "OutdraftError",
    "Piece",
    "QueueFullError",
    "Request",
    "Result",
    "SelfTestError",
    "Session",
    "SettingsError",
    "Stats",
    "Stream",
    "TokenLogprob",
    "UnknownModelError",
    "UnsupportedModelError",
    "__version__",
    "custom_generate",
    "drafter_names",
    "load",
    "make_drafter",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'outdraft' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
