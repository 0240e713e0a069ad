"""``python -m tests.simulation``: run histories, replay one, or look for planted defects."""

from tests.simulation.command import main

if __name__ == "__main__":
    main()
