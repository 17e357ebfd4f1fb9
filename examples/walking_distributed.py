"""The walking humanoid on every device of the machine.

python -m examples.walking_distributed num_envs=1024

On a CPU, num_devices=2 creates two devices.
"""

from dataclasses import dataclass

import jax

import ksim

from .walking import HumanoidWalkingConfig, HumanoidWalkingTask


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class HumanoidWalkingDistributedConfig(HumanoidWalkingConfig, ksim.DistributedPPOConfig):
    """Options of the walking humanoid on several devices."""


class HumanoidWalkingDistributedTask(
    HumanoidWalkingTask[HumanoidWalkingDistributedConfig], ksim.DistributedPPOTask[HumanoidWalkingDistributedConfig]
):
    """The walking humanoid, trained on every device."""


if __name__ == "__main__":
    HumanoidWalkingDistributedTask.launch(HumanoidWalkingDistributedConfig())
