"""``python -m tests.simulation``: run histories, replay one, or search for planted defects."""

from tests.simulation.command import main

if __name__ == "__main__":
    main()
