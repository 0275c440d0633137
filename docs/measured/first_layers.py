"""The default model without its later layers, as a folder: `python first_layers.py COUNT DIR`."""

from __future__ import annotations

import sys

from outdraft.models.load import load_model
from outdraft.settings import DEFAULT_MODEL


def main() -> None:
    """Writes the small model and its tokenizer."""
    count, folder = int(sys.argv[1]), sys.argv[2]
    loaded = load_model(DEFAULT_MODEL, dtype="bfloat16", device="cpu", pack=False)
    loaded.model.model.layers = loaded.model.model.layers[:count]
    loaded.model.config.num_hidden_layers = count
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)


main()
