"""Everything that touches transformers: loading, the target pass and its cache."""
