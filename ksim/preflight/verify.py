"""The implementation of `DistributedRLTask.verify_distributed_setup`."""

import dataclasses
import json

from ksim.config import options_with
from ksim.errors import ConfigError
from ksim.host.notices import warn_user
from ksim.parallel.multihost import gather_texts, is_main_process
from ksim.preflight.devices import inspect_setup
from ksim.preflight.tables import print_distributed_setup
from ksim.task.distributed_rl import DistributedRLConfig
from ksim.task.distributed_setup import DistributedSetup
from ksim.task.rl import RLTask


def verify_setup(task: RLTask[DistributedRLConfig]) -> DistributedSetup:
    """Checks, prints and returns the setup of a task; see `DistributedRLTask.verify_distributed_setup`."""
    check_same_options(task.config)
    task.check()
    setup = inspect_setup(task)
    if is_main_process():
        print_distributed_setup(setup)
    for problem in setup.problems:
        warn_user(problem)
    return setup


def check_same_options(config: DistributedRLConfig) -> None:
    """Raises ConfigError unless all processes have the same options."""
    of_one_process = options_with(type(config), "of_one_process")
    own = {name: value for name, value in dataclasses.asdict(config).items() if name not in of_one_process}
    first, *others = (json.loads(text) for text in gather_texts(json.dumps(own, default=str)))
    for process, options in enumerate(others, start=1):
        different = [name for name in first if options.get(name) != first[name]]
        if different:
            listed = ", ".join(f"{name} ({options.get(name)!r}, {first[name]!r})" for name in different)
            raise ConfigError(
                f"Every process must have the same options, but process {process} differs from process 0: {listed}. "
                "If these are independent runs that were started together, add num_processes=1."
            )
