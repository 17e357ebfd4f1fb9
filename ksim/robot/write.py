"""The program of a task, as text."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from xax.utils.text import camelcase_to_snakecase

from ksim.robot.plan import CTRL_DT, Plan

WIDTH = 120


def class_head(plan: Plan, class_name: str, purpose: str) -> str:
    """The head of the task's class, up to the lines of `get_robot` that all robots share."""
    return f'''class {class_name}(ksim.PPOTask[ksim.PPOConfig]):
    """{class_name} {purpose}."""

    def get_robot(self):
        spec = robot.load(MJCF)
{_base_lines(plan)}        {_ground_line(plan)}
        robot.touch_ground_only(spec)  # parts of the robot pass through each other: faster'''


def drive_constants(plan: Plan) -> str:
    """The constants of the actuators, with comments on the rules behind them."""
    lines = []
    if plan.torque:
        what = "the robot's weight times the reach of the leg" if plan.feet else "twice the weight times the reach"
        lines += [f"# The file has no actuators. Motors of so many N m: {what}.", table("TORQUE", plan.torque)]
    if plan.stiffness:
        lines += [
            "# Servos, in N m/rad and N m s/rad, from weight, reach and inertias: see ksim.robot.plan for the rules.",
            table("STIFFNESS", plan.stiffness),
            table("DAMPING", plan.damping),
        ]
    if plan.action_scale:
        why = "35 % of the torque limit / stiffness, within 0.25 and 0.4" if plan.feet else "a quarter of the range"
        lines += [f"# rad of the servos' target per unit of action: {why}.", table("ACTION_SCALE", plan.action_scale)]
    return "\n".join(lines)


def actuators_call(plan: Plan) -> str:
    """The expression that `get_actuators` returns."""
    if plan.stiffness:
        return "ksim.PositionActuators(kp=STIFFNESS, kd=DAMPING, action_scale=ACTION_SCALE)"
    if plan.action_scale:
        return "ksim.ModelActuators(action_scale=ACTION_SCALE)  # the file's own servos"
    return "ksim.ModelActuators()  # the file's own: -1 and 1 are the ends of their ranges"


def _ground_line(plan: Plan) -> str:
    what = ", ".join(plan.added)
    if not what:
        return "robot.add_ground(spec)  # does nothing: the file has a floor, a light and a sky"
    height = f", height={plan.floor}" if plan.floor else ""
    return f"robot.add_ground(spec{height})  # {what}: the file has none"


def _base_lines(plan: Plan) -> str:
    lines = []
    if plan.left_out:
        lines.append(f"robot.leave_out(spec, {json.dumps(list(plan.left_out))})  # apart from the robot, with motors")
    if plan.lift:
        lines.append(f"robot.raise_base(spec, {plan.lift})  # to its centre of mass; the file has its origin lower")
    if plan.lacks_gravity:
        lines.append("robot.add_gravity(spec)  # the file has none")
    return method_lines(lines)


def optional_lines(plan: Plan) -> str:
    """The lines of `get_robot` that only some robots need."""
    lines = []
    if plan.imu and plan.findings.imu is None:
        base = json.dumps(plan.findings.base)
        lines.append(f'robot.add_imu(spec, {base}, "{plan.imu}")  # in the origin of the base: the file has none')
    if plan.torque:
        lines.append("robot.add_motors(spec, TORQUE)")
    if plan.pose and not plan.feet:
        lines.append("robot.set_pose(spec, POSE)")
    return method_lines(lines)


def method_lines(lines: Sequence[str]) -> str:
    """Lines of a method of a class."""
    return "".join(f"        {line}\n" for line in lines)


def table(name: str, values: Mapping[str, float]) -> str:
    """A dictionary as code, on one line if it fits."""
    items = [f"{json.dumps(key)}: {value!r}" for key, value in values.items()]
    line = f"{name} = {{{', '.join(items)}}}"
    if len(line) <= WIDTH:
        return line
    rows, row = [], ""
    for item in items:  # as many on a line as fit
        if row and len(row) + len(item) + 7 > WIDTH:
            rows.append(row)
            row = ""
        row = f"{row}, {item}" if row else item
    rows.append(row)
    return "\n".join([f"{name} = {{", *(f"    {row}," for row in rows), "}  # fmt: skip"])


def legged_program(plan: Plan, class_name: str, purpose: str, path: str) -> str:
    """The program from its imports to the end of its task. `path` is code for the path of the robot's file."""
    return f"{_legged_constants(plan, path)}\n\n{_legged_task(plan, class_name, purpose)}"


def _legged_constants(plan: Plan, path: str) -> str:
    gait = {2: "a walk: feet in turns", 4: "a trot: diagonal feet together"}.get(len(plan.feet), "neighbours in turns")
    symmetry = ' symmetry="augment",' if plan.is_mirrored else ""
    num_envs, iterations, gamma = (512, 2000, 0.98) if plan.is_biped else (256, 700, 0.99)
    return f"""from ksim import robot
from ksim.mdp import commands, events, observations as obs, randomizers, resets, rewards, terminations
from ksim.mdp.noise import UniformNoise

# The robot's file stays as it is: get_robot changes a copy in memory.
MJCF = {path}
# A box around the lowest part of each leg, in its body's frame, in m; where contacts are felt.
FEET = (
{_feet(plan)}
)
SITES, TOUCH = tuple(foot.name for foot in FEET), tuple(foot.touch for foot in FEET)
# Joints in rad and height of the base in m, where episodes start and actions are relative to. From
# {plan.pose_source}: {plan.stands}.
{table("POSE", plan.pose)}
HEIGHT, STANDING_HEIGHT = {plan.height}, {plan.standing_height}  # STANDING: once the servos have given way
{drive_constants(plan)}
# The gait, {gait}. Larger animals step more slowly: 2.9 * sqrt(height / gravity), rounded.
PERIOD_S, PHASES, SWING_M = {plan.period_s:.3g}, {plan.offsets}, {plan.swing}
{_bends(plan)}
# Few environments and a small init_std learn in the fewest steps, as a CPU needs.{_symmetry_line(plan)}
CONFIG = ksim.PPOConfig(
    num_envs={num_envs}, max_iterations={iterations}, dt={plan.dt:g}, ctrl_dt={CTRL_DT},
    actor_sizes=[128, 128], critic_sizes=[128, 128], gamma={gamma},
    learning_rate=1e-3, desired_kl=0.02, num_passes=5, entropy_coef=0.002, init_std=0.5,{symmetry}
)  # fmt: skip
"""


def _legged_task(plan: Plan, class_name: str, purpose: str) -> str:
    low = round(0.5 * plan.standing_height, 2)
    sideways = round(0.4 * plan.forward, 1)
    backward = 0.0 if plan.is_biped else -round(0.5 * plan.forward, 1)
    turn = 0.5 if plan.is_biped else 0.8
    return f'''{class_head(plan, class_name, purpose)}
        robot.use_implicitfast(spec)  # stable with the servos' damping, and fast
{_contact_line(plan)}        robot.add_feet(spec, FEET)
{optional_lines(plan)}        robot.set_pose(spec, POSE, HEIGHT)
        return spec

    def get_actuators(self):
        return {actuators_call(plan)}

    def get_commands(self, physics_model):
        # m/s and rad/s; forward is taken to be the x axis of the base. The highest speed grows with the root of the
        # height, as that of animals does.
        forward, leftward, yaw_rate = ({backward}, {plan.forward}), ({-sideways}, {sideways}), ({-turn}, {turn})
        return {{"velocity": commands.VelocityCommand(forward=forward, leftward=leftward, yaw_rate=yaw_rate)}}

    def get_observations(self, physics_model):
        actor = {{
            "gravity": obs.ProjectedGravity(noise=UniformNoise(0.03)),
            "gyro": obs.ImuGyro(site="{plan.imu}", noise=UniformNoise(0.2)),
            "joint_position": obs.JointPosition(noise=UniformNoise(0.01)),
            "joint_velocity": obs.JointVelocity(noise=UniformNoise(0.5)),
            "command": obs.CommandValue(command="velocity"),
            "phase": obs.PhaseClock(period_s=PERIOD_S),
            "last_action": obs.LastAction(),
        }}
        # The critic runs only in simulation, so it may see what no sensor of the robot measures.
        seen = {{"lin_vel": obs.BaseLinearVelocity(), "height": obs.BaseHeight()}}
        return {{"actor": actor, "critic": actor | seen | {{"contact": obs.FootContact(sensors=TOUCH)}}}}

    def get_rewards(self, physics_model):
        gait = {{"command": "velocity", "period_s": PERIOD_S, "offsets": PHASES}}
{_swing_names(plan)}        return [
{_rewards(plan)}
        ]

    def get_terminations(self, physics_model):
        # A base at half its standing height lies or kneels.
        return [terminations.TimeLimit(seconds=10.0), terminations.BaseTooLow(height={low}), terminations.BaseTilted()]

    def get_resets(self, physics_model):
        return [resets.RandomHeading(), resets.RandomJointPositions(), resets.RandomBaseVelocity()]

    def get_events(self, physics_model):
{_events(plan)}

    def get_randomizers(self, physics_model):
        return [randomizers.RandomFriction(friction=(0.6, 1.2))]
'''


def _rewards(plan: Plan) -> str:
    lift = -float(round(0.15 / plan.swing**2))
    height = -float(round((4.0 if plan.is_biped else 0.4) / plan.standing_height**2))
    rows = [
        'rewards.TrackLinearVelocity(command="velocity", std=0.3, scale=2.0),',
        f'rewards.TrackYawRate(command="velocity", std=0.4, scale={1.5 if plan.is_biped else 1.0}),',
        "# Steps in the rhythm of the gait; without these two it may slide or shuffle.",
        "rewards.FeetPhase(sensors=TOUCH, **gait, scale=1.0),",
        f"rewards.FootSwingHeight(sites=SITES, height=SWING_M, rest_height={plan.rest_height}, **gait, scale={lift}),",
        *_swing_pose(plan),
        "rewards.FeetSlip(sensors=TOUCH, sites=SITES, scale=-0.1),",
        f"rewards.BaseTilt(scale={-2.0 if plan.is_biped else -1.0}),",
        "rewards.RollPitchRate(scale=-0.05),",
        "rewards.VerticalVelocity(scale=-0.5),",
        f"rewards.BaseHeightError(target=STANDING_HEIGHT, scale={height}),",
        f"rewards.JointDeviation({'joints=still, scale=-0.15' if plan.bends else 'scale=-0.05'}),",
        "rewards.JointLimits(scale=-1.0),",
        "rewards.ActionRate(scale=-0.01),",
        "# The torque that holds the weight at arm's length of the height costs about 0.2.",
        f"rewards.TorqueEffort(scale={-plan.effort:.0e}),",
        "rewards.Alive(scale=1.0),",
        f"rewards.TerminationPenalty(scale={-100.0 if plan.is_biped else -50.0}),",
    ]
    return "\n".join(f"            {row}" for row in rows)


def _events(plan: Plan) -> str:
    if not plan.is_biped:
        return f"        return [events.PushVelocity(speed=(0.0, {round(0.5 * plan.forward, 1)}))]"
    return (
        "        # Jumps of the velocity, in m/s. Harder ones than it should stand make two legs robust.\n"
        f"        return [] if self.evaluating else [events.PushVelocity(speed=(0.0, {round(0.9 * plan.forward, 1)}))]"
    )


def _bends(plan: Plan) -> str:
    if not plan.bends:
        return ""
    rows = "".join(f"    {json.dumps(bend)},\n" for bend in plan.bends)
    why = "# rad by which the joints of each leg bend to lift its foot by 1.6 * SWING_M: servos lag behind."
    return f"{why}\nBENDS = (\n{rows})\n"


def _swing_names(plan: Plan) -> str:
    if not plan.bends:
        return ""
    return method_lines(
        [
            "legs, bend = tuple(tuple(leg) for leg in BENDS), tuple(tuple(leg.values()) for leg in BENDS)",
            "still = tuple(joint for joint in physics_model.names.joints if not any(joint in leg for leg in legs))",
        ]
    )


def _swing_pose(plan: Plan) -> list[str]:
    if not plan.bends:
        return []
    return [
        "# Lifts the feet from the first steps on, without which two legs shuffle.",
        "rewards.SwingPose(legs=legs, bend=bend, **gait, scale=-5.0),",
    ]


def _contact_line(plan: Plan) -> str:
    line = "robot.use_plain_contacts(spec)  # pyramidal cones, sliding friction: up to four times as fast"
    return method_lines([line] if plan.has_rich_contacts else [])


def _symmetry_line(plan: Plan) -> str:
    return (
        "\n# Its left is like its right, so each step's mirror image is learned from as well."
        if plan.is_mirrored
        else ""
    )


def _feet(plan: Plan) -> str:
    return "\n".join(
        f"    robot.Foot({json.dumps(foot.name)}, {json.dumps(foot.body)}, pos={foot.pos}, size={foot.size}),"
        for foot in plan.feet
    )


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


def program_text(plan: Plan, *, class_name: str, mjcf: Path, output: Path) -> str:
    """The text of the program, in which the path of the robot's file is relative to the program's path `output`."""
    make = {"legged": legged_program, "arm": arm_program, "balance": balance_program}[plan.findings.kind]
    purpose = {
        "legged": "learns to walk at a commanded velocity",
        "arm": "learns to reach for commanded points",
        "balance": "learns to balance",
    }[plan.findings.kind]
    head = f'''"""{class_name} {purpose}.

`python -m ksim.tools.new {mjcf.name}` wrote this. It is yours to change: comments tell what was guessed, and why.

python {shlex.quote(output.name)}
python {shlex.quote(output.name)} run_mode=view checkpoint={first_run_dir(class_name)}
"""

from pathlib import Path

import ksim
'''
    tail = f"""

if __name__ == "__main__":
    {class_name}.launch(CONFIG)
"""
    return head + make(plan, class_name, purpose, _path_code(mjcf, output)) + tail


def first_run_dir(class_name: str) -> str:
    """The directory of a task's first run, relative to the working directory of its program."""
    return f"runs/{camelcase_to_snakecase(class_name)}/run_000"


def _path_code(mjcf: Path, output: Path) -> str:
    """Code for the path of the robot's file: relative if it is beside or below the program, else absolute."""
    mjcf, folder = mjcf.absolute(), output.absolute().parent
    if mjcf.is_relative_to(folder):
        return f"Path(__file__).parent / {json.dumps(mjcf.relative_to(folder).as_posix())}"
    return f"Path({json.dumps(str(mjcf))})"
