"""The mirror image of a robot (left and right exchanged), found from the model."""

from ksim.mirror.find import Mirror as Mirror, find_mirror as find_mirror
from ksim.mirror.model import ModelMirror as ModelMirror, mirror_model as mirror_model
from ksim.mirror.robot import RobotMirror as RobotMirror, mirror_robot as mirror_robot
from ksim.mirror.signed import SignedPermutation as SignedPermutation
