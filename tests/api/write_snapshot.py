"""Writes tests/api/contract.txt from corekit.api, when the change is allowed.

A change that breaks a stable part needs a raised API_VERSION. `--unreleased` waives that for a version that nobody has yet.
"""

from __future__ import annotations

import sys

from api_contract import SNAPSHOT, current, from_text, judge, to_text


def main(arguments: list[str]) -> str | None:
    """None when written; otherwise why not."""
    new = current()
    old = from_text(SNAPSHOT.read_text("utf-8")) if SNAPSHOT.exists() else {}
    changes = judge(old, new)
    same_version = bool(old) and old["API_VERSION"] == new["API_VERSION"]
    broken = [change.text for change in changes if change.breaks]
    if broken and same_version and "--unreleased" not in arguments:
        return "these break plugins of this API_VERSION; raise it in corekit/api/types.py:\n  " + "\n  ".join(broken)
    SNAPSHOT.write_text(to_text(new), "utf-8")
    print("\n".join(change.text for change in changes) or "nothing has changed")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
