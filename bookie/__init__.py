"""The storage node, its client and the code they share. Each sub-package's docstring lists its contents."""
