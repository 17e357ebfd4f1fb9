"""Commands of tasks, and the functions that implement them. Their modules are imported when first used."""

from ksim.task.commands import provide

RUN_MODES = {
    "train": "ksim.train.run:train",
    "eval": "ksim.evaluate.reports:evaluate_checkpoint",
    "view": "ksim.viewer.view:view_checkpoint",
    "export": "ksim.policy.export.exporter:export_checkpoint",
    "replay": "ksim.checkpoint.dump:replay_dump",
}
"""By the values of the option `run_mode`."""

provide(
    RUN_MODES
    | {
        "launch": "ksim.cli:launch",
        "load_policy": "ksim.policy.load:load_policy",
        "kept_in_run": "ksim.checkpoint.options:kept_in_run",
        "load_teacher": "ksim.policy.load:load_teacher",
        "check": "ksim.preflight.hooks:check_task",
        "log_setup": "ksim.preflight.devices:log_setup",
        "verify_distributed_setup": "ksim.preflight.devices:verify_setup",
    }
)
