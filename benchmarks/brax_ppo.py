"""Brax's own PPO, patched to run on today's JAX, as `benchmarks.learning` asks for it.

python -m benchmarks.brax_ppo playground/CheetahRun '{"num_envs": 512, ...}' --out evaluations.jsonl

The JSON holds arguments of `brax.training.agents.ppo.train.train`, and besides them `num_devices` (host devices),
`env_options` (of the environment), and those of `make_ppo_networks` that `NETWORKS` lists. Each evaluation of the
deterministic policy becomes a line of the file: `env_steps`, `return`, and `training_s`, seconds of training so far.
`--first-update` trains for one iteration without evaluations, and prints a line when it is done.

The patch is `jax.device_put_replicated`, which JAX removed in 0.10 and Brax 0.14 still calls. Nothing here imports
ksim, whose settings of JAX are not to be Brax's.
"""

import argparse
import functools
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIRST_UPDATE = "The first update is done."
"""The line that is printed after the first iteration."""
NETWORKS = ("policy_hidden_layer_sizes", "value_hidden_layer_sizes", "policy_obs_key", "value_obs_key")
"""Arguments that are those of the networks."""


def replicated(tree: Any, devices: Sequence[Any]) -> Any:
    """Every leaf with a leading axis of devices, a copy on each, as `jax.device_put_replicated` returned it."""
    import jax  # noqa: PLC0415 - not before the number of host devices is set
    import numpy as np  # noqa: PLC0415

    mesh = jax.sharding.Mesh(np.asarray(devices), ("device",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    copies = jax.tree.map(lambda x: np.broadcast_to(np.asarray(x), (len(devices), *np.shape(x))), tree)
    return jax.device_put(copies, sharding)


def environment_of(name: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An environment by `playground/ENV` or `brax/ENV`, and the arguments of `train` that belong to it."""
    suite, _, env = name.partition("/")
    if suite == "brax":
        return importlib.import_module("brax.envs").get_environment(env, **options), {}
    playground = importlib.import_module("mujoco_playground")
    overrides = {"impl": "jax"} if "impl" in playground.registry.get_default_config(env) else {}
    loaded = playground.registry.load(env, config_overrides=overrides | options)
    return loaded, {"wrap_env_fn": playground.wrapper.wrap_for_brax_training}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", help="playground/ENV or brax/ENV")
    parser.add_argument("arguments", type=json.loads, help="arguments of train, as JSON")
    parser.add_argument("--out", type=Path, help="file of evaluations to write")
    parser.add_argument("--first-update", action="store_true", help="train for one iteration, without evaluations")
    args = parser.parse_args(argv)
    arguments = dict(args.arguments)
    num_devices = arguments.pop("num_devices", None)
    if num_devices is not None:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={num_devices}".strip()
    import jax  # noqa: PLC0415

    jax.device_put_replicated = replicated
    networks, train = (importlib.import_module(f"brax.training.agents.ppo.{name}") for name in ("networks", "train"))
    of_networks = {name: arguments.pop(name) for name in NETWORKS if name in arguments}
    env, wrapping = environment_of(args.task, arguments.pop("env_options", {}))
    run = functools.partial(
        train.train, env, network_factory=functools.partial(networks.make_ppo_networks, **of_networks), **wrapping
    )
    if args.first_update:
        run(**arguments | {"num_timesteps": 1, "num_evals": 1, "run_evals": False})
        print(FIRST_UPDATE, flush=True)
        return
    records: list[str] = []

    def note(env_steps: int, metrics: dict[str, Any]) -> None:
        if env_steps == 0:
            return
        record = {"env_steps": int(env_steps), "return": float(metrics["eval/episode_reward"])}
        records.append(json.dumps(record | {"training_s": float(metrics["training/walltime"])}) + "\n")
        print(records[-1], end="", flush=True)
        if args.out is not None:
            args.out.write_text("".join(records))

    run(**arguments, deterministic_eval=True, progress_fn=note)


if __name__ == "__main__":
    main()
