"""Arrays that a task keeps in its checkpoints besides the state, read back by a resumed run."""

from typing import Any

from ksim.checkpoint.format import Checkpoint, load_checkpoint
from ksim.checkpoint.options import resumed_path
from ksim.task.rl import RLTask


def kept_in_run(task: RLTask[Any], prefix: str) -> Checkpoint | None:
    """The kept arrays of the checkpoint that a task resumes or replays, by their names without the prefix.

    None if the task starts from scratch, or the checkpoint has no such arrays.

    Args:
        prefix: The prefix of the names of the arrays.

    Raises:
        ConfigError: There is no such checkpoint, or it is damaged.
    """
    config = task.config
    if config.resume is not None:
        name, path = "resume", resumed_path(config, task.task_name)
    else:
        name, path = "checkpoint", config.checkpoint if config.run_mode == "replay" else None
    if path is None:
        return None
    found = load_checkpoint(path, name)
    kept = {name.removeprefix(prefix): x for name, x in found.arrays.items() if name.startswith(prefix)}
    return Checkpoint(found.path, kept, found.document) if kept else None
