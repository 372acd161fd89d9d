"""The command `superkernel`, also `python -m superkernel`: an interrupt while it is still being loaded ends it like a
later one."""

import sys


def main() -> int:
    """Entry point of the console script; returns the exit status."""
    try:
        from superkernel.cli import main as command

        status = command()
    except KeyboardInterrupt:
        print("superkernel: interrupted", file=sys.stderr)
        status = 130
    # Where the interrupt came out of code that is text (dataclasses make such), CPython would end a `python -m` by the
    # signal, whatever the status. Other code that is text makes it forget that.
    exec("")
    return status


if __name__ == "__main__":
    sys.exit(main())
