"""The storage node, its client and everything they share. Each sub-package says what belongs in it."""
