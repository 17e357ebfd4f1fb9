"""Randomization of the model, per env and episode, on every engine; one file per theme."""

from ksim.mdp.randomizers.actuators import (
    RandomActuatorGains as RandomActuatorGains,
    RandomMotorStrength as RandomMotorStrength,
)
from ksim.mdp.randomizers.base import AbstractRandomizer as AbstractRandomizer
from ksim.mdp.randomizers.body import (
    RandomBodyMass as RandomBodyMass,
    RandomCenterOfMass as RandomCenterOfMass,
    RandomInertia as RandomInertia,
    RandomMassFactor as RandomMassFactor,
)
from ksim.mdp.randomizers.joints import (
    RandomArmature as RandomArmature,
    RandomDamping as RandomDamping,
    RandomJointFriction as RandomJointFriction,
    RandomJointStiffness as RandomJointStiffness,
    RandomJointZero as RandomJointZero,
)
from ksim.mdp.randomizers.sensors import RandomImuAlignment as RandomImuAlignment
from ksim.mdp.randomizers.world import (
    RandomFriction as RandomFriction,
    RandomGravity as RandomGravity,
)
