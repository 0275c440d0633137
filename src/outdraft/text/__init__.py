"""Text in and out of token ids: chat templates and the incremental detokenizer."""
