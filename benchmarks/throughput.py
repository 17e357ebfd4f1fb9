"""Training and rollout beside the bare physics: what a framework on top of an engine costs.

python -m benchmarks.throughput --engines mujoco mjx --num-envs 64 256 1024 --repeats 5

Three things are timed in turn, again and again, in one process and from the same states of the walking humanoid:

- bare: the engine alone, stepping the batch under random controls. For `mujoco`, `Batch.step` in a Python loop; for
  `mjx`, a jitted scan over a vmapped `mjx.step`. No observations, rewards, resets or policy.
- rollout: ksim's rollout, with the policy, all terms of the MDP and auto-reset.
- training: ksim's training step, that is the rollout and all passes of PPO over it.

Figures are control steps per second over all envs; ratios are taken within a repetition, of the time on the clock and
of the processor time of all threads. `--profile` shows where a rollout's time goes, see `benchmarks.rollout_profile`.
"""

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from benchmarks import PLAIN
from benchmarks.rollout_profile import print_profile
from benchmarks.timing import Seconds, ratios, time_in_turn
from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask

import jax
import jax.numpy as jnp
import numpy as np
from ksim.parallel.devices import make_host_devices
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.tools.measure import spread
from mujoco import mjx
from mujoco.batch import Batch

BRAX_LIKE = {
    "actor_sizes": [32] * 4,
    "critic_sizes": [256] * 5,
    "rollout_length": 20,
    "num_batches": 4,
    "num_passes": 4,
}


def make_bare(engine: str, model: Any, physics: Any, num_steps: int) -> Callable[[], None]:
    """The engine alone, from the given states, for so many control steps under random controls."""
    mj_model, decimation = model.mj_model, model.decimation
    num_envs = physics.qpos.shape[0]
    rng = np.random.default_rng(0)
    default = model.default_qpos[model.names.joint_qpos()]
    controls = default + 0.2 * rng.standard_normal((num_steps, num_envs, mj_model.nu))
    qpos, qvel = np.asarray(physics.qpos), np.asarray(physics.qvel)
    if engine == "mujoco":
        batch = Batch(mj_model, num_envs, len(os.sched_getaffinity(0)))

        def native() -> None:
            batch.reset()
            batch.qpos, batch.qvel = qpos, qvel
            for ctrl in controls:
                batch.ctrl = ctrl
                batch.step(nstep=decimation)

        return native
    mjx_model = mjx.put_model(mj_model, impl="jax")
    make_data = lambda q, v: mjx.make_data(mj_model, impl="jax").replace(qpos=q, qvel=v)
    data = jax.vmap(make_data)(jnp.asarray(qpos), jnp.asarray(qvel))

    def control_step(data: Any, ctrl: Any) -> tuple[Any, None]:
        data = data.replace(ctrl=ctrl)
        return jax.lax.scan(lambda d, _: (mjx.step(mjx_model, d), None), data, None, length=decimation)[0], None

    run = jax.jit(lambda data, ctrl: jax.lax.scan(jax.vmap(control_step), data, ctrl)[0])
    ctrl = jnp.asarray(controls, jnp.float32)
    return lambda: jax.block_until_ready(run(data, ctrl))


def measure(
    engine: str, num_envs: int, num_devices: int, *, repeats: int, options: dict[str, Any], profile: bool
) -> dict[str, Any]:
    """Interleaved timings of one engine and batch."""
    config = HumanoidWalkingDistributedConfig(engine=engine, num_envs=num_envs, num_devices=num_devices)
    task = HumanoidWalkingDistributedTask(dataclasses.replace(config, **{**PLAIN, **options}))
    task.check()
    num_steps = task.config.rollout_length
    state = task.layout.place(task.initial_state())
    step = task.make_train_step(task.layout.axis_name)
    train = task.layout.compile(step, state)

    def collect(state: Any) -> Any:
        # The trajectory is reduced to one number, or the compiler would drop what is not asked for.
        return jax.tree.map(jnp.sum, step.algorithm.collect(state, jax.random.key(0))[0].trajectory)

    for _ in range(3 if engine == "mjx" else 10):  # to where the policy has made the states varied
        state, _ = train(state)
    assert isinstance(task.environment, MdpEnvironment)
    physics = task.layout.join_envs(state.envs).env_state.inner.physics
    rollout = task.layout.map(collect).lower(state).compile()
    held = [state]

    def training() -> None:
        held[0], metrics = train(held[0])
        jax.block_until_ready(metrics)

    subjects = {
        "bare": make_bare(engine, task.environment.engine.model, physics, num_steps),
        "rollout": lambda: jax.block_until_ready(rollout(held[0])),
        "training": training,
    }
    found = time_in_turn(subjects, repeats)
    if profile:
        print_profile(rollout, held[0], num_steps)
    return {
        "engine": engine,
        "num_envs": num_envs,
        "num_devices": num_devices,
        "load_average": os.getloadavg()[0],
        "control_steps_per_s": {
            name: num_envs * num_steps / statistics.median(x.wall for x in times) for name, times in found.items()
        },
        "of_bare": {
            name: {clock: ratios(found["bare"], found[name], clock) for clock in Seconds._fields}
            for name in ("rollout", "training")
        },
    }


MEMORY_SIZES = 8192, 12288
"""Environments of two trainings: so many that they take more memory than compiling."""


def peak_memory_per_env(engine: str) -> float:
    """KiB of resident memory that one more env costs: the difference of two trainings, each in its own process."""
    peaks = []
    for n in MEMORY_SIZES:
        code = (
            "import ksim\nfrom ksim.train.timing import peak_memory_bytes\n"
            "from examples.walking_distributed import *\n"
            f"c = HumanoidWalkingDistributedConfig(engine={engine!r}, num_envs={n}, num_devices=1, **{PLAIN})\n"
            "t = HumanoidWalkingDistributedTask(c); t.check(); s = t.layout.place(t.initial_state())\n"
            "step = t.layout.compile(t.make_train_step(None), s)\n"
            "s, m = step(s)\n"
            "float(m['rollout/reward']); print(peak_memory_bytes() // 1024)\n"
        )
        out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
        peaks.append(int(out.stdout.split()[-1]))
    return (peaks[1] - peaks[0]) / (MEMORY_SIZES[1] - MEMORY_SIZES[0])


def main() -> None:
    """Prints the table, as Markdown, and writes the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["mujoco", "mjx"])
    parser.add_argument("--num-envs", nargs="*", type=int, default=[64, 256, 1024])
    parser.add_argument("--num-devices", nargs="*", type=int, default=[1], help="host devices; one program for each")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--brax-like", action="store_true", help="networks and batches as in Brax's humanoid")
    parser.add_argument("--profile", action="store_true", help="also show where a rollout's time goes")
    parser.add_argument("--memory", action="store_true", help="also measure the peak memory per env")
    parser.add_argument("--json", help="file to write the figures to")
    args = parser.parse_args()
    make_host_devices(max(args.num_devices))
    results = []
    print("| engine | envs | devices | bare | rollout | training | rollout / bare | training / bare | load |")
    print("|---|---|---|---|---|---|---|---|---|")
    options = BRAX_LIKE if args.brax_like else {}
    for engine, num_envs, num_devices in itertools.product(args.engines, args.num_envs, args.num_devices):
        result = measure(engine, num_envs, num_devices, repeats=args.repeats, options=options, profile=args.profile)
        results.append(result)
        rates = " | ".join(f"{x:,.0f}" for x in result["control_steps_per_s"].values())
        of_bare = " | ".join(
            f"{spread(values['wall'])}, processor time {statistics.median(values['processor']):.2f}"
            for values in result["of_bare"].values()
        )
        load = result["load_average"]
        print(f"| {engine} | {num_envs} | {num_devices} | {rates} | {of_bare} | {load:.1f} |", flush=True)
    for engine in args.engines if args.memory else ():
        kib = peak_memory_per_env(engine)
        results.append({"engine": engine, "peak_memory_per_env_kib": kib})
        print(f"\nPeak memory per env, {engine}: {kib:,.0f} KiB", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
