"""The robot's kinematic tree, in a model that may also contain balls, boxes or doors."""

from collections.abc import Iterator

import mujoco
import numpy as np

from ksim.errors import ConfigError, near_misses
from ksim.physics.mjcf import label

_FREE = int(mujoco.mjtJoint.mjJNT_FREE)
_ONE_DOF = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
_TRN, _WRAP = mujoco.mjtTrn, mujoco.mjtWrap
ROBOT_TEXT = "robot"
"""Name of the custom text in a model that names a body of the robot, if the actuators do not identify the robot."""


def robot_root(model: mujoco.MjModel) -> int | None:
    """The first body of the robot; None if nothing in the model moves.

    The robot is the tree with the most driven parts. Among trees with equally many, it is the tree with the most hinge
    and slide joints. `<custom><text name="robot" data="BODY"/></custom>` in the model overrides this choice.

    Raises:
        ConfigError: Two trees are tied in both counts and at least one of them has a free joint, or the text names no
            body that moves.
    """
    roots = sorted({int(model.body_rootid[body]) for body in model.jnt_bodyid})
    named = _named_root(model, roots)
    if named is not None or not roots:
        return named
    driven = {root: set() for root in roots}
    for actuator in range(model.nactuator):
        for part, body in _driven_parts(model, actuator):
            driven.get(int(model.body_rootid[body]), set()).add(part)
    of_joints = model.body_rootid[model.jnt_bodyid]
    is_one_dof = np.isin(model.jnt_type, _ONE_DOF)
    counts = {root: (len(driven[root]), int(is_one_dof[of_joints == root].sum())) for root in roots}
    most = max(counts.values())
    tied = [root for root in roots if counts[root] == most]
    if len(tied) > 1 and any(free_joint_of(model, root) is not None for root in tied):
        raise ConfigError(
            f"The model has several trees that may be the robot: {' and '.join(label(model, 'body', x) for x in tied)} "
            f"have {most[0]} driven parts and {most[1]} joints each. Say which it is by "
            f'<custom><text name="{ROBOT_TEXT}" data="BODY"/></custom> in the MJCF file, or take the others out.'
        )
    return tied[0]


def free_joint_of(model: mujoco.MjModel, root: int) -> int | None:
    """The free joint of the tree that begins at body `root`; None if it has none."""
    start = int(model.body_jntadr[root])
    return start if start >= 0 and model.jnt_type[start] == _FREE else None


def _named_root(model: mujoco.MjModel, roots: list[int]) -> int | None:
    text = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TEXT, ROBOT_TEXT)
    if text < 0:
        return None
    start = int(model.text_adr[text])
    name = bytes(model.text_data[start : start + int(model.text_size[text])]).rstrip(b"\0").decode()
    body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
    root = int(model.body_rootid[body]) if body >= 0 else -1
    if root not in roots:
        moving = [model.body(b).name for b in range(model.nbody) if int(model.body_rootid[b]) in roots]
        raise ConfigError(
            f"The custom text {ROBOT_TEXT!r} of the model must name a body of the robot, but there is no moving body "
            f"{name!r}. {near_misses(name, moving)}"
        )
    return root


def _driven_parts(model: mujoco.MjModel, actuator: int) -> Iterator[tuple[tuple[int, int], int]]:
    """The parts that an actuator acts on, as (kind, index), each with its body."""
    kind, index = int(model.actuator_trntype[actuator]), int(model.actuator_trnid[actuator, 0])
    if kind == int(_TRN.mjTRN_TENDON):
        start = int(model.tendon_adr[index])
        for wrap in range(start, start + int(model.tendon_num[index])):
            part, at = int(model.wrap_type[wrap]), int(model.wrap_objid[wrap])
            if part == int(_WRAP.mjWRAP_JOINT):
                yield (int(_TRN.mjTRN_JOINT), at), int(model.jnt_bodyid[at])
            elif part == int(_WRAP.mjWRAP_SITE):
                yield (int(_TRN.mjTRN_SITE), at), int(model.site_bodyid[at])
    elif kind in (int(_TRN.mjTRN_JOINT), int(_TRN.mjTRN_JOINTINPARENT)):
        yield (int(_TRN.mjTRN_JOINT), index), int(model.jnt_bodyid[index])
    elif kind == int(_TRN.mjTRN_SO3):  # drives a ball joint, or a site if a second site is given
        is_joint = model.actuator_trnid[actuator, 1] < 0
        body = model.jnt_bodyid[index] if is_joint else model.site_bodyid[index]
        yield (int(_TRN.mjTRN_JOINT if is_joint else _TRN.mjTRN_SITE), index), int(body)
    elif kind == int(_TRN.mjTRN_BODY):
        yield (kind, index), index
    elif index >= 0:  # a site, or the crank of a slider-crank
        yield (int(_TRN.mjTRN_SITE), index), int(model.site_bodyid[index])
