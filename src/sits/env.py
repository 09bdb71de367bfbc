"""``python -m sits.env`` is ``sits doctor``: what is found on this machine, what is missing, and the fix."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command with the arguments given."""
    from sits.cli.doctor_command import command
    from sits.cli.main import run

    sys.exit(run(command, "sits doctor"))


if __name__ == "__main__":
    main()
