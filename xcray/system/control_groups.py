"""The control groups of Linux that this process is in, in both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


class ControlGroup(NamedTuple):
    """The folder of a control group, and the version of control groups: 1 or 2."""

    folder: Path
    version: int


def control_groups(
    controller: str, proc: Path = PROC, cgroups: Path = CGROUPS
) -> list[ControlGroup]:
    """Return this process's control groups of a controller ("cpu", "memory"), and their ancestors.

    Folders can be missing: a container sees its own group as the root.
    """
    out: list[ControlGroup] = []
    for line in read_lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, version = cgroups, 2
        elif controller in controllers.split(","):
            root, version = cgroups / controller, 1
        else:
            continue
        steps = [step for step in path.split("/") if step and step != ".."]
        out += [ControlGroup(root.joinpath(*steps[:n]), version) for n in range(len(steps) + 1)]
    return out


def read_lines(path: Path) -> list[str]:
    """Return the lines of a small file; none if it is unreadable, as on systems without /proc."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
