"""Write what is generated from the command table and the presets: `python -m superkernel.target.engines.generate`.

Writes csrc/sim/engine_commands.inc and the parts between markers of docs/hardware.md, in the checkout this module lies
in; a test compares both with what this module would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from superkernel.core.errors import MachineError
from superkernel.target.engines.document import commands, presets
from superkernel.target.engines.header import header

ROOT = Path(__file__).resolve().parents[3]
HEADER = ROOT / "csrc" / "sim" / "engine_commands.inc"
PAGE = ROOT / "docs" / "hardware.md"
PARTS = {"presets": presets, "commands": commands}


def page(text: str) -> str:
    """The page with its generated parts as of now. Raises MachineError where a marker is missing."""
    for name, part in PARTS.items():
        begin, end = (f"<!-- {word} generated: {name} -->" for word in ("begin", "end"))
        if text.count(begin) != 1 or text.count(end) != 1:
            raise MachineError("marker missing or repeated", location=str(PAGE), expected=f"{begin} and {end}, once")
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n\n{part()}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> int:
    """Writes the files where they differ."""
    if not HEADER.parent.is_dir() or not PAGE.is_file():
        raise MachineError("not a checkout", location=str(ROOT), expected="csrc/sim and docs/hardware.md")
    for path, text in ((HEADER, header()), (PAGE, page(PAGE.read_text(encoding="utf-8")))):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
