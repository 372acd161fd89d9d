"""The command `superkernel`, also `python -m superkernel`: an interrupt while it is still being loaded ends it like a
later one."""

import sys


def main() -> int:
    """Entry point of the console script; returns the exit status."""
    try:
        from superkernel.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("superkernel: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
