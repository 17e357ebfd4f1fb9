"""Networks: distributions, actor-critics, observation normalisation."""

from ksim.nn.actor_critic import AbstractActorCritic as AbstractActorCritic, ActorCriticOutput as ActorCriticOutput
from ksim.nn.distributions import (
    AbstractDistribution as AbstractDistribution,
    Gaussian as Gaussian,
    SquashedGaussian as SquashedGaussian,
)
from ksim.nn.networks import GruActorCritic as GruActorCritic, MlpActorCritic as MlpActorCritic
from ksim.nn.normalizer import (
    NormalizedActorCritic as NormalizedActorCritic,
    ObservationNormalizer as ObservationNormalizer,
)
