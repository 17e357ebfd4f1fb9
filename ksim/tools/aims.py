"""Terms by aim: the groups in which pages list the terms of a kind that has many."""

from collections.abc import Iterable, Mapping

UNGROUPED = 8
"""Most terms of a kind that needs no groups."""

AIMS: Mapping[str, Mapping[str, str]] = {
    "Observations": {
        "Commands and clocks": "CommandValue HeadingError PhaseClock GaitClock TimeLeft",
        "Joints, motors and actions": "JointPosition JointVelocity JointAcceleration JointTorque ActuatorForce "
        "ActuatorControl LastAction PreviousAction ActionHistory",
        "IMU and other sensors": "ImuGyro ImuAccelerometer SensorReading",
        "Base, as the robot measures it": "ProjectedGravity BaseAngularVelocity BaseLinearVelocity "
        "BaseLinearAcceleration BaseAngularAcceleration BaseHeight",
        "Base, in the world": "BasePosition BaseOrientation BaseLinearVelocityWorld BaseAngularVelocityWorld "
        "BaseLinearAccelerationWorld BaseAngularAccelerationWorld",
        "Feet and ground": "FootContact FootForce FootAirTime HeightScan",
        "Reference motion": "MotionPhase MotionJoints MotionJointVelocities MotionBasePosition MotionBaseOrientation",
        "Bodies and centre of mass": "BodyPosition BodyPositionWorld BodyOrientation BodyOrientationInBase "
        "BodyLinearVelocity BodyLinearVelocityWorld BodyAngularVelocity BodyAngularVelocityWorld "
        "CenterOfMassPosition CenterOfMassVelocity CenterOfMassInertia",
        "Sites": "SitePosition SitePositionWorld SiteOrientation SiteLinearVelocity SiteLinearVelocityWorld "
        "SiteAngularVelocity SiteAngularVelocityWorld",
        "Late, filtered or misaligned observations": "History Delayed Lagged Misaligned",
    },
    "Noise": {
        "New at every step": "GaussianNoise UniformNoise DroppedSamples",
        "Kept for an episode": "GaussianBias UniformBias DriftingBias ScaleError",
        "Limits of a sensor": "Quantized Clipped",
        "Several noises": "Chain",
    },
    "Rewards": {
        "Track a command": "TrackLinearVelocity TrackYawRate TrackHeading TrackHeight TrackRollPitch TrackPosition "
        "TrackJointPose StandStill",
        "Track a motion": "TrackMotionJoints TrackMotionJointVelocities TrackAnchorPosition TrackAnchorOrientation "
        "TrackBodyPositions TrackBodyOrientations TrackBodyVelocities TrackBodyAngularVelocities",
        "Stay up": "Alive TerminationPenalty Upright BaseTilt BaseRoll BasePitch BaseHeightError RollPitchRate "
        "VerticalVelocity UndesiredContact",
        "Be smooth": "ActionRate ActionAcceleration ActionJerk JointAcceleration BaseLinearAcceleration "
        "BaseAngularAcceleration",
        "Lift and place the feet": "FeetAirTime AirTimeVariance SingleSupport FootClearance FootApexHeight FeetSlip "
        "FeetFlat FeetDistance ImpactForce Stumble",
        "Keep a gait": "FeetPhase FeetPhaseForce FeetPhaseVelocity FootSwingHeight SwingPose TrackGait Symmetry",
        "Spare motors and joints": "TorqueEffort TorqueLimits MechanicalPower CostOfTransport JointVelocityEffort "
        "JointVelocityLimits JointLimits JointDeviation",
        "Custom and composed rewards": "Custom Clipped ScaledByLevel",
    },
    "Commands": {
        "Move and hold the base": "VelocityCommand HeadingCommand HeightCommand RollPitchCommand GaitCommand",
        "Reach a point or a pose": "CartesianCommand JointPoseCommand",
        "Follow a motion": "MotionCommand",
        "Composed commands": "ScaledByLevel",
    },
    "Terminations": {
        "Time": "TimeLimit MotionEnded",
        "Falls": "BaseTilted BaseTooLow BaseTooHigh BaseTooFast BodyContact",
        "Joints and sensors": "JointOutOfRange JointTooFast SensorAbove",
        "Distance": "FarFromStart OffTerrain TooFar BaseOffMotion BodyOffMotion",
        "Custom terminations": "Custom",
    },
    "Resets": {
        "Poses": "ToPose ToKeyframe ToMotion RandomJointPositions RandomJointVelocities",
        "Base": "OnTerrain RandomBasePosition RandomHeading RandomBaseTilt RandomBaseVelocity RandomBaseMotion",
    },
    "Randomizers": {
        "Masses": "RandomBodyMass RandomMassFactor RandomInertia RandomCenterOfMass",
        "Motors and joints": "RandomMotorStrength RandomActuatorGains RandomArmature RandomDamping "
        "RandomJointFriction RandomJointStiffness RandomJointZero",
        "World and sensors": "RandomFriction RandomGravity RandomImuAlignment",
    },
}
"""Names of terms by the title of their kind and what they are for, in the order in which pages list them."""


def by_aim(kind: str, classes: Iterable[type]) -> dict[str, list[type]]:
    """Classes of a kind of terms by their aim; all under an empty title if the kind has no groups.

    Raises:
        ValueError: A class has no group, or a name in a group is of no class.
    """
    named = {cls.__name__: cls for cls in classes}
    if kind not in AIMS:
        return {"": list(named.values())}
    grouped = [name for names in AIMS[kind].values() for name in names.split()]
    differing = sorted(set(grouped) ^ set(named))
    if differing or len(grouped) > len(named):
        twice = sorted({name for name in grouped if grouped.count(name) > 1})
        raise ValueError(
            f"The groups of {kind} in AIMS of ksim/tools/aims.py must name each of its terms once. Missing, or of no "
            f"term: {', '.join(differing) or 'none'}; named twice: {', '.join(twice) or 'none'}."
        )
    return {aim: [named[name] for name in names.split()] for aim, names in AIMS[kind].items()}
