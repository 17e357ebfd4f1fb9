"""Closed loops: what sets joints leaves the loops of a linkage closed."""

import jax
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import randomizers, resets
from ksim.physics import ModelActuators, compile_model
from ksim.physics.trees import CLOSED, Loops
from ksim.preflight.start import _loops_in_words
from ksim.robot.scene import set_pose
from tests.support.starts import starting_environment

FOUR_BAR = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="crank" pos="0 0 .5">
      <joint name="crank" axis="0 1 0" range="-90 90"/>
      <geom type="capsule" fromto="0 0 0 0 0 .2" size=".02"/>
      <body name="coupler" pos="0 0 .2">
        <joint name="coupler" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/>
      </body>
    </body>
    <body name="rocker" pos=".3 0 .5">
      <joint name="rocker" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0 0 .2" size=".02"/>
    </body>
  </worldbody>
  <equality><connect name="pin" body1="coupler" body2="rocker" anchor=".3 0 0"/></equality>
  <actuator><position name="crank" joint="crank" kp="10"/></actuator>
</mujoco>
"""
"""A parallelogram: the rocker turns as the crank does, the coupler by as much the other way."""


def four_bar() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(FOUR_BAR)


def test_loop_that_is_torn_open_is_closed_by_the_joints_that_nothing_drives():
    loops = Loops(four_bar().compile())
    # The pin of the crank alone is (sin, cos)(0.3) * 0.2 + (cos, -sin)(0.3) * 0.3 from where it should be: 9.8 cm.
    assert loops.gap(np.array([0.3, 0.0, 0.0])) == pytest.approx(0.0976, abs=1e-4)
    qpos, qvel, gap = loops.closed(np.array([0.3, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]))
    assert gap <= CLOSED
    np.testing.assert_allclose(qpos, [0.3, -0.3, 0.3], atol=1e-3)
    np.testing.assert_allclose(qvel, [1.0, -1.0, 1.0], atol=1e-3)


def test_pose_with_closed_loops_stays_exactly_as_it_is():
    loops = Loops(four_bar().compile())
    np.testing.assert_array_equal(loops.closed(np.array([0.3, -0.3, 0.3]))[0], [0.3, -0.3, 0.3])


@pytest.mark.parametrize(
    ("start", "drawn"),
    [
        ((resets.RandomJointPositions(magnitude=0.2), resets.RandomJointVelocities()), ()),
        ((resets.ToPose({"crank": 0.4}),), ()),
        ((), (randomizers.RandomJointZero(max_offset=0.1),)),
        ((resets.ToPose({"crank": 0.4}),), (randomizers.RandomGravity(),)),
    ],
    ids=["RandomJointPositions", "ToPose", "RandomJointZero", "RandomGravity"],
)
def test_episodes_when_terms_set_joints_start_with_closed_loops(start, drawn):
    model = compile_model(four_bar(), dt=0.004, ctrl_dt=0.02, edits=[ModelActuators().edit_spec])
    env = starting_environment("mujoco", model, start, drawn)
    state_e = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 16))
    inner = state_e.inner
    varies = np.ptp(inner.physics.qpos if start else inner.overrides["qpos0"], axis=0)
    assert varies.max() > 0.05 or isinstance(start[0], resets.ToPose)
    for i in range(16):
        mj_model = four_bar().compile()
        if "qpos0" in inner.overrides:
            mj_model.qpos0[:] = inner.overrides["qpos0"][i]
        assert Loops(mj_model).gap(np.asarray(inner.physics.qpos[i])) < 1e-5  # in 32 bits; 3 to 7 cm before


def test_edge_of_a_flex_that_is_held_at_its_length_counts():
    flex = (
        '<flexcomp name="rope" type="grid" dim="1" count="3 1 1" spacing=".1 .1 .1"><edge equality="true"/></flexcomp>'
    )
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{flex}</worldbody></mujoco>")
    loops, qpos = Loops(model), model.qpos0.copy()
    qpos[0] += 0.05  # the first of its points, along the rope
    assert loops.gap(qpos) == pytest.approx(0.05)
    assert loops.closed(qpos)[2] <= CLOSED


def test_pose_that_is_not_finite_stays_as_it_is():
    qpos, qvel, gap = Loops(four_bar().compile()).closed(np.array([np.nan, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]))
    np.testing.assert_array_equal(qpos, [np.nan, 0.0, 0.0])
    np.testing.assert_array_equal(qvel, [1.0, 0.0, 0.0])
    assert np.isnan(gap)


def test_pose_that_is_set_closes_the_loops_and_one_that_cannot_be_is_an_error():
    spec = four_bar()
    set_pose(spec, {"crank": 0.4})
    np.testing.assert_allclose(spec.compile().key_qpos, [[0.4, -0.4, 0.4]], atol=1e-3)
    with pytest.raises(ConfigError, match="cannot close the loops"):
        set_pose(four_bar(), {"crank": np.inf})
    spec = four_bar()
    spec.delete(spec.equalities[0])
    spec.body("coupler").add_site(name="here", pos=[0.3, 0, 0])
    spec.body("rocker").add_site(name="far", pos=[5.0, 0, 0.2])  # out of reach
    spec.add_equality(type=mujoco.mjtEq.mjEQ_CONNECT, objtype=mujoco.mjtObj.mjOBJ_SITE, name1="here", name2="far")
    assert _loops_in_words(compile_model(spec, dt=0.01, ctrl_dt=0.01)).startswith("off by 5 m or rad")
    assert _loops_in_words(compile_model(four_bar(), dt=0.01, ctrl_dt=0.01)).endswith("met where episodes start")
    with pytest.raises(ConfigError, match=r"cannot close the loops.*off by \d\.\d+ m"):
        set_pose(spec, {"crank": 0.4})
