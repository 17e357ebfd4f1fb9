"""Environments whose episodes have a start and nothing to earn."""

from ksim.mdp import observations
from ksim.physics import ModelActuators
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment


def starting_environment(engine, model, resets, randomizers=()):
    """The environment of a model under an engine, by name, with no other terms than these and joint positions."""
    mdp = Mdp(
        observations={"actor": {"position": observations.JointPosition()}},
        rewards={},
        commands={},
        terminations={},
        resets={str(i): term for i, term in enumerate(resets)},
        events={},
        randomizers={str(i): term for i, term in enumerate(randomizers)},
        actuators=ModelActuators(),
    )
    return MdpEnvironment(mdp, mdp.make_engine(engine, model))
