"""The command `ksim-train`, which trains an example by name or the task of a file, and shows a run by its directory.

ksim-train quadruped num_envs=512
"""

import ast
import importlib.util
import os
import pkgutil
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ksim.checkpoint.run_dir import holds_run, read_command
from ksim.errors import ConfigError, near_misses, quoted
from ksim.host.machine import python_word
from ksim.host.terminal import print_line

EXAMPLES = "ksim.examples"
"""The package of the examples in an installed ksim. In the repository they are also the package `examples`."""
DEFAULT = "walking_distributed"
NOT_TASKS = {"deploy"}
"""Examples that train nothing."""

USAGE = """Usage: ksim-train [TASK] [OPTION=VALUE ...]

Trains a task and writes its run under runs/ in the current folder. TASK is the path of a .py file, as
`python -m ksim.tools.new` writes, the directory of a run, to watch it, or one of the examples; without it, {default}:

{tasks}

ksim-train max_iterations=500                     first steps of the walking humanoid, on all devices
ksim-train walking run_mode=view checkpoint=pretrained
                                                  shows it as it walks after training
ksim-train runs/my_robot/run_000                  shows the newest policy of a run, also while it trains
ksim-train TASK --help                            all options of a task; --help NAME: one of them

To train by several processes: python -m ksim.launch --nproc-per-node 2 -m {examples}.{default}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the task as its own program. Returns 2 for an unknown task, 0 after the help."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv in (["--help"], ["-h"]):
        tasks = "\n".join(f"  {name:<22}{summary}" for name, summary in example_tasks().items())
        print_line(USAGE.format(default=DEFAULT, examples=EXAMPLES, tasks=tasks))
        return 0
    is_named = bool(argv) and not argv[0].startswith("-") and "=" not in argv[0]
    name, options = (argv[0], argv[1:]) if is_named else (DEFAULT, argv)
    try:
        run_task(name, options)
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    return 0


def example_tasks() -> dict[str, str]:
    """The first lines of the docstrings of all examples that train, by example."""
    spec = importlib.util.find_spec(EXAMPLES)
    if spec is None or spec.submodule_search_locations is None:
        return {}
    summaries = {}
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        if not module.ispkg and module.name not in NOT_TASKS:
            source = Path(spec.submodule_search_locations[0], f"{module.name}.py").read_text(encoding="utf-8")
            summaries[module.name] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return summaries


def run_task(name: str, options: Sequence[str]) -> None:
    """Runs an example like `python -m`, or a file like `python`. Most of them exit the process at the end.

    Raises:
        ConfigError: There is no such example, file or run.
    """
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ConfigError(f"There is no file {quoted(name)}.")
        sys.argv = [name, *options]
        sys.path[0] = str(Path(name).resolve().parent)
        runpy.run_path(name, run_name="__main__")
        return
    tasks = example_tasks()
    if name not in tasks:
        if holds_run(Path(name)):
            run_again(Path(name), options)
            return
        raise ConfigError(
            f"There is no example {quoted(name)}. {near_misses(name, tasks)} The path of a task of your own "
            "ends in .py, and a run's directory holds its config.yaml."
        )
    sys.argv = [name, *options]  # runpy replaces the first by the module's file
    runpy.run_module(f"{EXAMPLES}.{name}", run_name="__main__", alter_sys=True)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def run_again(run_dir: Path, options: Sequence[str]) -> None:
    """Runs the program of a run on its newest checkpoint, to view it unless the options name another run_mode.

    Raises:
        ConfigError: The run does not name its program, or that is not here.
    """
    *module, name = read_command(run_dir)
    given = {option.partition("=")[0] for option in options}
    usual = {"run_mode": "view", "checkpoint": str(run_dir)}
    argv = [*(f"{key}={value}" for key, value in usual.items() if key not in given), *options]
    sys.path[:0] = [os.getcwd()]  # as `python -m` does, and a command does not
    if not (_is_module(name) if module else Path(name).is_file()):
        raise ConfigError(
            f"The program of the run {run_dir}, {name}, is not here. Go to the folder in which the run was started."
        )
    print_line(f"{python_word()} {shlex.join([*module, name, *argv])}")
    if not module:
        run_task(name, argv)
        return
    sys.argv = [name, *argv]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.exit(main())
