"""The checks of a task that need no compilation."""

from typing import Any

from ksim.preflight.hook_names import check_hook_names
from ksim.preflight.hooks import check_eval_environment, check_hooks
from ksim.preflight.memory import check_memory, env_shapes
from ksim.task.learned import LearnedTask


def check_task(task: LearnedTask[Any]) -> None:
    """Raises ConfigError for every problem that can be found without compiling."""
    task.config.check_shares(task.layout.num_devices)
    task.batch_figures()
    check_hook_names(task)
    learner, model = task.learner_shapes()
    check_eval_environment(task)
    env_state, env_bytes = env_shapes(task, model)
    check_memory(task, learner, env_state, env_bytes)
    check_hooks(task, learner, model, env_state)
