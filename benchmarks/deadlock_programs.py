"""Programs that `benchmarks.deadlock` runs, each in a process of its own: without ksim, so that they start quickly.

python benchmarks/deadlock_programs.py factorize_2 --devices 2 --envs 512 --seconds 3
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Step = Callable[[jax.Array], jax.Array]
"""Maps an array of shape (environments of one device, values) to the next."""
SCAN_LENGTH = 20


def make_factorize(num_calls: int) -> Step:
    """So many independent chains of batched Cholesky factorizations and solves, meeting at the end of the step.

    MJX's step has two: one of the mass matrix and the constraint solver, one of its implicit integrator.
    """
    num_dofs = 27

    def chain(x_en: jax.Array, index: int) -> jax.Array:
        for _ in range(2):
            matrix_enn = x_en[:, :, None] * x_en[:, None, :]
            # Each takes longer than the one before: its thread is busy, and then waits, while the others wait.
            for _ in range(8 * index):
                matrix_enn = jnp.sin(matrix_enn)
            matrix_enn += num_dofs * jnp.eye(num_dofs)
            factor = jax.scipy.linalg.cho_factor(matrix_enn)
            x_en = jnp.tanh(jax.scipy.linalg.cho_solve(factor, x_en[:, :, None])[:, :, 0])
        return x_en

    def step(x_en: jax.Array) -> jax.Array:
        x_en = x_en[:, :num_dofs]
        x_en = sum(chain(x_en, i) for i in range(num_calls)) + jnp.cos(x_en)
        return jnp.pad(x_en, ((0, 0), (0, 128 - num_dofs)))

    return step


def make_callback() -> Step:
    """A layer of a network, then native code behind a callback, as with native MuJoCo."""
    weights = jnp.eye(128)

    def native(x_en: Any) -> np.ndarray:
        return np.cos(np.asarray(x_en))

    def step(x_en: jax.Array) -> jax.Array:
        x_en = jnp.tanh(x_en @ weights)
        return jax.pure_callback(native, jax.ShapeDtypeStruct(x_en.shape, x_en.dtype), x_en)

    return step


def make_mjx() -> Step:
    """`mjx.step` alone: a body with seven arms, 27 degrees of freedom, joint limits and damping."""
    import mujoco  # noqa: PLC0415 - half a second that the others save
    from mujoco import mjx  # noqa: PLC0415

    links = "<body pos='.1 0 0'><joint axis='0 1 0' damping='1' range='-.1 .1'/><geom size='.04'/>" * 3 + "</body>" * 3
    arms = "".join(f"<body euler='0 0 {51 * i}'>{links}</body>" for i in range(7))
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><option iterations='4' ls_iterations='4'/><default><geom contype='0' conaffinity='0'/></default>"
        f"<worldbody><body><freejoint/><geom size='.1'/>{arms}</body></worldbody></mujoco>"
    )
    mjx_model, template = mjx.put_model(model), mjx.make_data(model)

    def step_one(x_n: jax.Array) -> jax.Array:
        qpos, qvel = x_n[: model.nq], x_n[model.nq : model.nq + model.nv]
        data = mjx.step(mjx_model, template.replace(qpos=qpos + jnp.asarray(model.qpos0), qvel=qvel))
        qpos, qvel = data.qpos - jnp.asarray(model.qpos0), 0.9 * data.qvel
        return jnp.pad(jnp.concatenate([qpos, qvel]), (0, 128 - model.nq - model.nv))

    return jax.vmap(step_one)


PROGRAMS: dict[str, Callable[[], Step]] = {
    **{f"factorize_{n}": (lambda n=n: make_factorize(n)) for n in (2, 3, 4)},
    "callback": make_callback,
    "mjx": make_mjx,
}


def main() -> None:
    """Steps for so many seconds and prints how often and how fast as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--envs", type=int, required=True, help="over all devices")
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    step = PROGRAMS[args.program]()

    def steps(x_en: jax.Array) -> tuple[jax.Array, jax.Array]:
        x_en = jax.lax.scan(lambda x, _: (step(x), None), x_en, None, length=SCAN_LENGTH)[0]
        return x_en, jax.lax.pmean(jnp.sum(x_en), "device")

    run = jax.pmap(steps, axis_name="device")
    x_den = 0.01 * np.random.default_rng(0).standard_normal((args.devices, args.envs // args.devices, 128))
    x_den, total = run(x_den.astype(np.float32))
    jax.block_until_ready(run(x_den))
    num_steps, seconds = 0, 0.0
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    while seconds < args.seconds:
        x_den, total = run(x_den)
        jax.block_until_ready(total)
        num_steps += SCAN_LENGTH
        seconds = time.perf_counter() - start_s
    if not np.isfinite(np.asarray(total)).all():
        raise RuntimeError("The program has left the finite numbers, and measures nothing.")
    env_steps, cpu_s = num_steps * args.envs, time.process_time() - start_cpu_s
    print(
        json.dumps(
            {"steps": num_steps, "env_steps_per_s": env_steps / seconds, "cpu_s_per_env_step": cpu_s / env_steps}
        )
    )


if __name__ == "__main__":
    main()
