"""The storage node, its client and everything they share. Each sub-package has a docstring with its contents."""
