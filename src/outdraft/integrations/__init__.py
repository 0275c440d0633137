"""outdraft inside other libraries."""
