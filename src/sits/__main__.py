"""``python -m sits`` is the ``sits`` command."""

from sits.cli.main import main

if __name__ == "__main__":
    main()
