"""The page of all options, generated from the configs and the launcher.

python -m ksim.tools.options > docs/options.md
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from ksim.config import GROUPS, describe_values, options_metadata, options_with
from ksim.launch.options import OPTIONS as LAUNCHER_OPTIONS
from ksim.task import AMPConfig, DistillConfig, DistributedPPOConfig, PPOConfig, REPPOConfig
from ksim.tools.terms import table

COMMAND = "python -m ksim.tools.options > docs/options.md"

HEAD = """# All options

`{command}` generates this page from the code.

Set options as `name=value` on the command line, or as fields of a task's config. A task may have other defaults and
more options: `--help` lists them, and `--help NAME` prints one with all that this page says of it.

The column *counts* gives the scope of a value: all processes together (`global`), each process, device or environment,
or process 0 alone, which evaluates and writes all files. The processes of a job must have the same values, except of
{differing}. [DISTRIBUTED_TRAINING.md](../DISTRIBUTED_TRAINING.md#configuration-options) explains how to choose
devices and the batch. [Tested on](tested.md) lists the devices that ksim has run on.
"""
LAUNCHER = """## The launcher

`python -m ksim.launch [OPTIONS] (-m MODULE | FILE) [ARGUMENT ...]` is described in
[clusters.md](clusters.md#with-the-launcher).
"""
SCOPES = {
    "per process": ("devices", "num_devices", "process_id", "log_level", "hang_timeout_s"),
    "per device": ("remat",),
    "per environment": ("rollout_length",),
    "process 0": (
        "console",
        "tensorboard",
        "max_runtime",
        "checkpoint",
        "export_dir",
        "save_every_n_seconds",
        "max_to_keep",
    ),
    "-": ("run_mode", "pmap_axis_name", "matmul_precision"),
}
"""Options by scope, unless they have the scope of their group; `-` is for what is not a number of anything."""
GROUP_SCOPES = {"Environment": "-", "Evaluation": "process 0", "Viewer": "process 0"}
"""Scopes of the options of a group, by default global."""

OTHERS = (
    ("Adversarial motion priors", AMPConfig()),
    ("Teacher and student", DistillConfig()),
    ("REPPO", REPPOConfig()),
)
"""Algorithms with options of their own."""


def page() -> str:
    """The whole page, in Markdown."""
    base = options_metadata(DistributedPPOConfig)
    differing = [f"`{name}`" for name in options_with(DistributedPPOConfig, "per_process")]
    lines = [HEAD.format(command=COMMAND, differing=" and ".join(differing))]
    for group in GROUPS:
        names = [name for name, known in base.items() if known["group"] == group]
        if names:
            lines += [f"## {group}", "", *options_table(DistributedPPOConfig(), names), ""]
    for title, config in OTHERS:
        names = [name for name in options_metadata(type(config)) if name not in options_metadata(PPOConfig)]
        lines += [f"## {title}", "", f"`{type(config).__name__}` has these options besides those above.", ""]
        lines += [*options_table(config, names), ""]
    return "\n".join([*lines, LAUNCHER, *launcher_table(), ""])


def options_table(config: Any, names: Iterable[str]) -> list[str]:
    """The table of some options of a config."""
    metadata = options_metadata(type(config))
    rows = []
    for name in names:
        known = metadata[name]
        meaning = known["help"] + (f". {known['details']}" if "details" in known else "")
        default = getattr(config, name)
        default = default if isinstance(default, str) else json.dumps(default)
        cells = (f"`{name}`", describe_values(type(config), name), f"`{default}`" if default else "")
        rows.append((*cells, scope(name, known["group"]), meaning.replace("<", "&lt;")))
    return table(("option", "type", "default", "counts", "meaning"), rows)


def scope(name: str, group: str) -> str:
    """The scope of an option of a group."""
    return next((scope for scope, names in SCOPES.items() if name in names), GROUP_SCOPES.get(group, "global"))


def launcher_table() -> list[str]:
    """The table of the launcher's own options."""
    rows = [
        (f"`{name} {value}`", meaning.replace("<", "&lt;")) for name, (value, _, meaning) in LAUNCHER_OPTIONS.items()
    ]
    return table(("option", "meaning"), rows)


if __name__ == "__main__":
    sys.stdout.write(page())
