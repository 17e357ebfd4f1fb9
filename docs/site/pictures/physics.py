"""Pictures of actuators, each moving an arm, and of the tiles of a terrain."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from matplotlib.figure import Figure

from docs.site.pictures.panels import WIDTH, Draw, curves, figure, finish
from ksim import physics
from ksim.physics.select import make_engine

_ARM = """
<mujoco>
  <worldbody>
    <body name="arm"><joint name="joint" axis="0 1 0" range="-180 180" damping=".05" armature=".01"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".02" mass=".5"/></body>
  </worldbody>
  <option gravity="0 0 0"/>
  <actuator>{actuator}</actuator>
</mujoco>"""
_MOTOR = '<motor joint="joint" ctrlrange="-4 4"/>'
_SERVO = '<position joint="joint" kp="5" kv=".3" ctrlrange="-2 2"/>'


def _response(actuators: physics.AbstractActuators, action: Any, what: str, *, mjcf: str = _MOTOR) -> Draw:
    """A picture of an arm that an action moves from 0.2 s on: its control, its position and its torque."""

    def draw() -> Figure:
        spec = mujoco.MjSpec.from_string(_ARM.format(actuator=mjcf))
        model = physics.compile_model(spec, dt=0.002, ctrl_dt=0.01, edits=[actuators.edit_spec])
        engine = make_engine("mujoco", model, ("actuator_force",), motor_curve=actuators.motor_curve(model))
        moved = np.asarray(actuators(jnp.asarray(action, jnp.float32), model), np.float32)
        rest = np.asarray(actuators(jnp.zeros(len(action)), model), np.float32)
        start = engine.forward(model.start(), jnp.asarray(rest), {})

        def step(state: Any, control: Any) -> Any:
            state = engine.substeps(state, control, {})
            return state, (state.qpos[0], state.derived["actuator_force"][0])

        control_t = np.where(np.arange(100)[:, None] < 20, rest, moved)
        _, (position_t, torque_t) = jax.jit(lambda start: jax.lax.scan(step, start, jnp.asarray(control_t)))(start)
        time = np.arange(100) * 0.01
        fig, (above, below) = figure(1.0, 1.0)
        both = np.stack([control_t[:, 0], np.asarray(position_t)], axis=1)
        curves(above, time, both, (f"control: {what}", "position, rad"))
        finish(above, "", "")
        above.set_xticklabels([])
        curves(below, time, np.asarray(torque_t))
        finish(below, f"time, s ({_in_words(actuators, action)})", "torque, N m")
        return fig

    return draw


def _in_words(actuators: physics.AbstractActuators, action: Any) -> str:
    fields = ", ".join(f"{f.name}={getattr(actuators, f.name)}" for f in dataclasses.fields(actuators))
    return f"action {', '.join(f'{a:g}' for a in action)}; {fields}"


def _tile(tile: physics.AbstractTile, difficulties: tuple[float, ...] = (0.0, 0.5, 1.0)) -> Draw:
    """A picture of a tile of 6 m at several difficulties."""

    def draw() -> Figure:
        fig = Figure(figsize=(WIDTH, 1.9))
        x, y = np.meshgrid(np.linspace(0, 6, 61), np.linspace(0, 6, 61))
        for i, difficulty in enumerate(difficulties):
            heights = tile.heights(difficulty, 61, 0.1, np.random.default_rng(0))
            ax: Any = fig.add_axes(((i + 0.02) / 3, 0.0, 0.32, 0.95), projection="3d")
            ax.plot_surface(
                x, y, heights, rcount=61, ccount=61, color="#aab4bf", lw=0, antialiased=False, rasterized=True
            )
            ax.set_zlim(-1.0, 1.0)
            ax.set_box_aspect((6, 6, 2), zoom=1.5)
            ax.view_init(30, -60)
            ax.set_axis_off()
            fig.text((i + 0.5) / 3, 0.97, f"difficulty {difficulty:g}", ha="center", va="top", fontsize=8.5)
        return fig

    return draw


PICTURES: dict[type, Draw] = {
    physics.PositionActuators: _response(physics.PositionActuators(5.0, 0.3, 1.0), [1.0], "target, rad"),
    physics.PositionVelocityActuators: _response(
        physics.PositionVelocityActuators(5.0, 0.3, 1.0, 1.0), [1.0, 2.0], "target, rad, with the velocity's share"
    ),
    physics.DcMotorActuators: _response(
        physics.DcMotorActuators(50.0, 0.6, no_load_speed=12.0, action_scale=1.0), [2.0], "target, rad"
    ),
    physics.TorqueActuators: _response(physics.TorqueActuators(0.1), [0.5], "torque, N m"),
    physics.ModelActuators: _response(
        physics.ModelActuators(1.0), [1.0], "target, rad, of the model's own servo", mjcf=_SERVO
    ),
    physics.FlatTile: _tile(physics.FlatTile()),
    physics.RoughTile: _tile(physics.RoughTile()),
    physics.SlopeTile: _tile(physics.SlopeTile()),
    physics.StairsTile: _tile(physics.StairsTile()),
}
