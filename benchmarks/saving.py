"""The cost of a checkpoint: seconds for which training waits, seconds until it is written, and its size.

python -m benchmarks.saving --iterations 24

Trains the walking humanoid with networks of about a million parameters, and saves after every second iteration. The
total cost of saving is the ratio of the iterations during which a checkpoint is written to those between.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask

import jax
import numpy as np
from ksim.checkpoint.format import list_checkpoints
from ksim.checkpoint.saver import Saver
from ksim.tools.measure import spread


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--num-devices", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=24)
    args = parser.parse_args()
    written_s: list[float] = []
    write = Saver._write

    def timed_write(self: Saver, *arguments: Any) -> None:
        start_s = time.perf_counter()
        write(self, *arguments)
        written_s.append(time.perf_counter() - start_s)

    Saver._write = timed_write  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as run_dir:
        config = HumanoidWalkingDistributedConfig(
            num_envs=args.num_envs,
            num_devices=args.num_devices,
            max_iterations=args.iterations,
            actor_sizes=[640, 512, 256],
            critic_sizes=[640, 512, 256],
            save_every_n_iterations=2,
            save_every_n_seconds=None,
            eval_at_end=False,
            eval_every_n_seconds=None,
            plots=False,
            run_dir=run_dir,
        )
        task = HumanoidWalkingDistributedTask(config)
        task.run()
        lines = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
        newest = list_checkpoints(Path(run_dir) / "checkpoints")[-1]
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    num_params = sum(np.size(x) for x in jax.tree.leaves(task.initial_learner().state.params))
    # The first iterations warm up. A line reports the saving before its iteration.
    blocked_s = [line["time/saving_s"] for line in lines[4:] if line["time/saving_s"]]
    beside = [line["time/iteration_s"] for line in lines[4:] if line["time/saving_s"]]
    between = [line["time/iteration_s"] for line in lines[4:] if not line["time/saving_s"]]
    ratios = [a / b for a, b in zip(beside, between, strict=False)]
    print(f"{num_params:,} parameters, {args.num_envs} environments, {len(blocked_s)} checkpoints")
    blocked_ms = [1e3 * seconds for seconds in blocked_s]
    cells = [spread(blocked_ms, ".3g"), spread(written_s[2:], ".3g"), f"{size / 2**20:.1f}", spread(ratios, ".3g")]
    heads = ("training waits, ms", "until written, s", "size, MiB", "iteration beside it over one without")
    print(f"| {' | '.join(heads)} |\n|---|---|---|---|\n| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
