"""Programs of tasks for robots without a free base: an arm that reaches, and a pole that balances."""

import json
from collections.abc import Sequence

from ksim.robot.plan import CTRL_DT, Plan
from ksim.robot.program_lines import actuators_call, class_head, drive_constants, optional_lines, table


def arm_program(plan: Plan, class_name: str, purpose: str, path: str) -> str:
    """The program of an arm, with the arguments of `legged_program`."""
    box = plan.reach
    assert box is not None
    return f"""from ksim import robot
from ksim.mdp import commands, rewards, terminations

# The robot's file stays as it is: get_robot changes a copy in memory.
MJCF = {path}
{_tip(plan)}
{_fixed_constants(plan)}
CONFIG = ksim.PPOConfig(
    num_envs=512, max_iterations=200, dt={plan.dt:g}, ctrl_dt={CTRL_DT},
    actor_sizes=[128, 128], critic_sizes=[128, 128],
    learning_rate=1e-3, desired_kl=0.01, entropy_coef=0.002, init_std=0.7,
)  # fmt: skip


{class_head(plan, class_name, purpose)}
        robot.use_implicitfast(spec)  # stable with the servos' damping, and fast
        robot.add_tip(spec, *TIP)
{optional_lines(plan)}        return spec

    def get_actuators(self):
        return {actuators_call(plan)}

    def get_commands(self, physics_model):
        # Where the tip is in most of 1,000 random poses, in m in the world.
        return {{"target": commands.CartesianCommand(x={box[0]}, y={box[1]}, z={box[2]}, site="tip")}}

    def get_rewards(self, physics_model):
        coarse = rewards.TrackPosition(command="target", site="tip", std={plan.coarse}, scale=1.0)
        fine = rewards.TrackPosition(command="target", site="tip", std={round(plan.coarse / 4, 3)}, scale=1.0)
        return {{
            "near": coarse,
            "there": fine,
            "action_rate": rewards.ActionRate(scale=-0.01),
            "velocity": rewards.JointVelocityEffort(scale=-0.005),
            "limits": rewards.JointLimits(scale=-0.5),
        }}

    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=10.0)]
"""


def balance_program(plan: Plan, class_name: str, purpose: str, path: str) -> str:
    """The program of a robot that balances, with the arguments of `legged_program`."""
    low, high = plan.tip_heights
    return f'''from ksim import robot
from ksim.mdp import rewards, terminations

# The robot's file stays as it is: get_robot changes a copy in memory.
MJCF = {path}
{_tip(plan)}
LOW, HIGH = {low}, {high}  # heights of the tip in m: hanging, and upright

CONFIG = ksim.PPOConfig(
    num_envs=256, max_iterations=150, dt={plan.dt:g}, ctrl_dt={CTRL_DT},
    actor_sizes=[64, 64], critic_sizes=[64, 64],
    learning_rate=1e-3, desired_kl=0.01, entropy_coef=0.002, init_std=0.7,
)  # fmt: skip


def tip_height(context):
    """The height of the tip: 0 hanging, 1 upright."""
    tip = context.model.names.index("site", "tip")
    return (context.derived("site_xpos")[tip, 2] - LOW) / (HIGH - LOW)


{class_head(plan, class_name, purpose)}
        robot.add_tip(spec, *TIP)
        return spec

    def get_actuators(self):
        return ksim.ModelActuators()  # the file's own: -1 and 1 are the ends of their ranges

    def get_rewards(self, physics_model):
        return {{
            "upright": rewards.Custom(tip_height, needs=("site_xpos",), scale=2.0),
            "centred": rewards.JointDeviation(joints={_names(plan.findings.driven)}, scale=-0.1),
            "velocity": rewards.JointVelocityEffort(scale=-0.005),
            "action_rate": rewards.ActionRate(scale=-0.01),
        }}

    def get_terminations(self, physics_model):
{_balance_ends(plan)}
'''


def _names(names: Sequence[str]) -> str:
    return f"({', '.join(json.dumps(name) for name in names)}{',' * (len(names) == 1)})"


def _balance_ends(plan: Plan) -> str:
    if not plan.starts_up:
        return "        return [terminations.TimeLimit(seconds=10.0)]  # it starts hanging, and may swing up"
    return (
        '        fallen = terminations.Custom(lambda context: tip_height(context) < 0.7, needs=("site_xpos",))\n'
        "        return [terminations.TimeLimit(seconds=10.0), fallen]"
    )


def _tip(plan: Plan) -> str:
    assert plan.findings.tip is not None
    body, pos = plan.findings.tip
    rounded = tuple(round(float(x), 3) + 0.0 for x in pos)
    why = "# The point farthest along the last body, in m in its frame; gets the site 'tip'."
    return f"{why}\nTIP = ({json.dumps(body)}, {rounded})"


def _fixed_constants(plan: Plan) -> str:
    pose = (
        "# Within the joints' ranges, which the file's reference pose is not.\n" + table("POSE", plan.pose)
        if plan.pose
        else ""
    )
    return "\n".join(part for part in (pose, drive_constants(plan)) if part) + "\n"
