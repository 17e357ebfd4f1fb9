"""The program of a legged robot's task: walking at a commanded velocity."""

import json

from ksim.robot.plan import CTRL_DT, Plan
from ksim.robot.program_lines import actuators_call, class_head, drive_constants, method_lines, optional_lines, table


def legged_program(plan: Plan, class_name: str, purpose: str, path: str) -> str:
    """The program from its imports to the end of its task. `path` is code for the path of the robot's file."""
    gait = {2: "a walk: feet in turns", 4: "a trot: diagonal feet together"}.get(len(plan.feet), "neighbours in turns")
    low = round(0.5 * plan.standing_height, 2)
    sideways = round(0.4 * plan.forward, 1)
    backward = 0.0 if plan.is_biped else -round(0.5 * plan.forward, 1)
    turn = 0.5 if plan.is_biped else 0.8
    symmetry = ' symmetry="augment",' if plan.is_mirrored else ""
    num_envs, iterations, gamma = (512, 2000, 0.98) if plan.is_biped else (256, 700, 0.99)
    return f'''from ksim import robot
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


{class_head(plan, class_name, purpose)}
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
        f"rewards.JointDeviation({_deviation(plan)}),",
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


def _deviation(plan: Plan) -> str:
    return "joints=still, scale=-0.15" if plan.bends else "scale=-0.05"


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
