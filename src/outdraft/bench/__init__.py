"""Methods held against each other on the same questions, and the figures that come of it."""
