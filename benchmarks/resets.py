"""The cost of resets: ksim's rollout over a bare scan of the environment's steps.

python -m benchmarks.resets --cases settling mujoco mjx --windows 5

The cases:

- settling: a planar runner under MJX with one physics step per control step, whose resets let it fall and come to rest
  for `--settle` physics steps first. Episodes last 1,000 steps and end at different times. Of 1,000 + settle steps,
  1,000 are what the bare scan has, so no rollout can keep more than their share, which is printed as the bound.
- mujoco, mjx: the walking humanoid under an untrained policy, which falls after a second or so.

Bare: a jitted scan over `vmap(env.step)` under constant random actions, without a policy and without resets, from the
states in which the rollout that follows begins. The two take turns; each window of so many turns gives one ratio, by
the clock and in processor time. Printed are the median, lowest and highest ratio, episodes that ended per 100 control
steps of an env, seconds to compile the rollout, and its temporary memory per env.
"""

import argparse
import dataclasses
import statistics
from typing import Any

import ksim
from benchmarks import PLAIN
from benchmarks.timing import timed
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask

import jax
import jax.numpy as jnp
import mujoco
from ksim.learn.learner import RolloutBatch
from ksim.mdp import observations as obs, rewards, terminations
from ksim.tools.measure import spread
from ksim.types import EnvBatch, TrainState

EPISODE_STEPS = 1000
DT = 0.01
RUNNER = """
<mujoco>
  <option iterations="4" ls_iterations="8"/>
  <default>
    <geom contype="0" conaffinity="1" condim="3" friction=".6" density="700"/>
    <joint type="hinge" axis="0 1 0" limited="true" armature=".1" damping="4" stiffness="100"/>
  </default>
  <worldbody>
    <geom name="floor" type="plane" size="50 5 .1" contype="1" conaffinity="0"/>
    <body name="trunk" pos="0 0 .75">
      <joint name="x" type="slide" axis="1 0 0" limited="false" armature="0" damping="0" stiffness="0"/>
      <joint name="z" type="slide" axis="0 0 1" limited="false" armature="0" damping="0" stiffness="0"/>
      <joint name="pitch" limited="false" armature="0" damping="0" stiffness="0"/>
      <geom type="capsule" fromto="-.5 0 0 .5 0 0" size=".046"/>
      <body pos="-.5 0 0">
        <joint name="back_thigh" range="-30 60"/>
        <geom type="capsule" fromto="0 0 0 .1 0 -.3" size=".046"/>
        <body pos=".1 0 -.3">
          <joint name="back_shin" range="-45 45"/>
          <geom type="capsule" fromto="0 0 0 -.1 0 -.3" size=".046"/>
        </body>
      </body>
      <body pos=".5 0 0">
        <joint name="front_thigh" range="-60 40"/>
        <geom type="capsule" fromto="0 0 0 -.1 0 -.3" size=".046"/>
        <body pos="-.1 0 -.3">
          <joint name="front_shin" range="-45 45"/>
          <geom type="capsule" fromto="0 0 0 .1 0 -.3" size=".046"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="back_thigh" gear="100" ctrlrange="-1 1"/>
    <motor joint="back_shin" gear="75" ctrlrange="-1 1"/>
    <motor joint="front_thigh" gear="100" ctrlrange="-1 1"/>
    <motor joint="front_shin" gear="75" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


class Settled(ksim.Environment):
    """An environment whose episodes begin after some steps without action, which count as steps of the episode."""

    env: ksim.Environment
    num_steps: int

    @property
    def action_size(self) -> int:
        return self.env.action_size

    def reset(self, key: Any) -> ksim.EnvState:
        step = lambda state, _: (self.env.step(state, jnp.zeros(self.action_size)), None)
        return jax.lax.scan(step, self.env.reset(key), length=self.num_steps)[0]

    def step(self, state: ksim.EnvState, action: Any) -> ksim.EnvState:
        return self.env.step(state, action)


class SettlingTask(ksim.PPOTask[ksim.PPOConfig]):
    """The planar runner; its episodes have begun at different times before the first rollout."""

    settle = 100

    def get_robot(self) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(RUNNER)

    def get_observations(self, physics_model: ksim.PhysicsModel) -> Any:
        return [obs.JointPosition(), obs.JointVelocity()]

    def get_rewards(self, physics_model: ksim.PhysicsModel) -> Any:
        return [rewards.Alive()]

    def get_terminations(self, physics_model: ksim.PhysicsModel) -> Any:
        return [terminations.TimeLimit(seconds=DT * (self.settle + EPISODE_STEPS))]

    def get_environment(self, engine: str, num_devices: int) -> ksim.Environment:
        return Settled(super().get_environment(engine, num_devices), self.settle)

    def _get_initial_env_state(self, rng: Any) -> ksim.EnvState:
        state = super()._get_initial_env_state(rng)
        age_e = jax.random.randint(rng, (self.config.num_envs,), 0, EPISODE_STEPS)
        inner = dataclasses.replace(state.inner, episode_step=state.inner.episode_step + age_e)
        return dataclasses.replace(state, inner=inner)


def make_task(case: str, num_envs: int, rollout_length: int, settle: int) -> Any:
    """The task of a case."""
    options: dict[str, Any] = {"num_envs": num_envs, "rollout_length": rollout_length}
    if case != "settling":
        return HumanoidWalkingTask(HumanoidWalkingConfig(engine=case, **PLAIN, **options))
    task_class = type("SettlingTask", (SettlingTask,), {"settle": settle})
    options |= {"actor_sizes": [128, 128], "critic_sizes": [128, 128]}
    return task_class(ksim.PPOConfig(engine="mjx", dt=DT, ctrl_dt=DT, **options))


def measure(task: Any, num_windows: int, turns: int) -> dict[str, Any]:
    """The ratios of each window, and what else is printed."""
    task.check()
    state = task.layout.place(task.initial_state())
    algorithm, env = task.make_train_step(None).algorithm, task.environment
    num_envs, num_steps = task.config.num_envs, task.config.rollout_length

    def collect(envs: EnvBatch, learner: Any, number: Any) -> tuple[EnvBatch, Any, Any]:
        collected: RolloutBatch
        collected, envs = algorithm.collect(TrainState(learner, envs), jax.random.fold_in(jax.random.key(0), number))
        # Reduced, or the compiler would drop what is not asked for.
        return envs, jnp.sum(collected.trajectory.done), jax.tree.map(jnp.sum, collected.trajectory)

    def step_only(state: Any, action_e: Any) -> Any:
        return jax.lax.scan(lambda s, _: (jax.vmap(env.step)(s, action_e), None), state, length=num_steps)[0]

    envs, action_e = state.envs, 0.2 * jax.random.normal(jax.random.key(1), (num_envs, env.action_size))
    lowered = jax.jit(collect, donate_argnums=0).lower(envs, state.learner, jnp.int32(0))
    rollout: Any
    rollout, compile_times = timed(lowered.compile)
    bare = jax.jit(step_only).lower(envs.env_state, action_e).compile()
    wall, processor, bare_s, num_ends = [], [], [], 0
    for window in range(num_windows + 1):
        seconds = {"bare": [0.0, 0.0], "rollout": [0.0, 0.0]}
        for turn in range(turns):
            _, times = timed(lambda: bare(envs.env_state, action_e))  # noqa: B023 - called at once
            seconds["bare"] = [a + b for a, b in zip(seconds["bare"], times, strict=True)]
            number = jnp.int32(window * turns + turn)
            (envs, ends, _), times = timed(lambda: rollout(envs, state.learner, number))  # noqa: B023
            seconds["rollout"] = [a + b for a, b in zip(seconds["rollout"], times, strict=True)]
            num_ends += int(ends) if window else 0
        if window:  # the first warms up
            ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
            wall.append(ratios[0])
            processor.append(ratios[1])
            bare_s.append(seconds["bare"][0])
    env_steps = num_windows * turns * num_steps * num_envs
    return {
        "wall": wall,
        "processor": processor,
        "bare": turns * num_steps * num_envs / statistics.median(bare_s),
        "ends": 100 * num_ends / env_steps,
        "compile_s": compile_times.wall,
        "kib": rollout.memory_analysis().temp_size_in_bytes / num_envs / 1024,
    }


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["settling", "mujoco", "mjx"])
    parser.add_argument("--num-envs", type=int, default=512)
    parser.add_argument("--rollout-length", type=int, default=24)
    parser.add_argument("--settle", type=int, nargs="+", default=[50, 200], help="physics steps of a settling reset")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--turns", type=int, default=42, help="rollouts of a window; 42 of 24 steps are one episode")
    args = parser.parse_args()
    print("| case | bound | bare steps/s | rollout / bare | in processor time | ends, % | compile, s | KiB per env |")
    print("|---|---|---|---|---|---|---|---|")
    for case in args.cases:
        for settle in args.settle if case == "settling" else (0,):
            task = make_task(case, args.num_envs, args.rollout_length, settle)
            found = measure(task, args.windows, args.turns)
            spreads = [spread(found["wall"]), spread(found["processor"])]
            bound = f"{EPISODE_STEPS / (EPISODE_STEPS + settle):.2f}" if settle else ""
            name = f"{case} {settle}" if settle else case
            print(
                f"| {name} | {bound} | {found['bare']:,.0f} | {' | '.join(spreads)} | {found['ends']:.2f} | "
                f"{found['compile_s']:.1f} | {found['kib']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
