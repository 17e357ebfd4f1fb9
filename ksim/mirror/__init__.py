"""The mirror image of a robot (left and right exchanged), found from the model."""

from ksim.mirror.find import Mirror as Mirror, find_mirror as find_mirror
from ksim.mirror.model import (
    ModelMirror as ModelMirror,
    RobotMirror as RobotMirror,
    SignedPermutation as SignedPermutation,
    mirror_model as mirror_model,
    mirror_robot as mirror_robot,
)
