"""The robot's file beside an exported policy: its meshes, and what it is compiled to."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.policy.export.robot_file import ROBOT_FILE, robot_files

TETRAHEDRON = "v 0 0 0\nv {0} 0 0\nv 0 {0} 0\nv 0 0 {0}\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"
ROBOT = """
<mujoco>
  <compiler meshdir="parts"/>
  <asset><mesh name="left" file="left/shell.obj"/> <mesh name="right" file="right/shell.obj"/></asset>
  <worldbody>
    <body name="trunk" pos="0 0 1"><freejoint/>
      <geom type="mesh" mesh="left"/> <geom type="mesh" mesh="right" pos="1 0 0"/>
    </body>
  </worldbody>
</mujoco>"""


@pytest.fixture
def file(tmp_path):
    for size, side in ((0.1, "left"), (0.2, "right")):
        path = tmp_path / "parts" / side / "shell.obj"
        path.parent.mkdir(parents=True)
        path.write_text(TETRAHEDRON.format(size))
    (tmp_path / "robot.xml").write_text(ROBOT)
    return tmp_path / "robot.xml"


def test_robot_in_another_directory_is_the_same_with_what_was_added_in_memory(file, tmp_path):
    spec = mujoco.MjSpec.from_file(str(file))
    spec.worldbody.add_geom(name="added", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1, 1, 0.1])
    files = robot_files(spec)
    assert set(files) == {"shell.obj", "1_shell.obj", ROBOT_FILE}
    there = tmp_path / "elsewhere"
    there.mkdir()
    for name, content in files.items():
        (there / name).write_bytes(content)
    found, expected = mujoco.MjModel.from_xml_path(str(there / ROBOT_FILE)), spec.compile()
    np.testing.assert_allclose(found.body_mass, expected.body_mass)
    np.testing.assert_allclose(found.mesh_vert, expected.mesh_vert)
    assert found.geom("added").id == expected.geom("added").id


def test_meshes_that_a_program_holds_in_memory_are_written():
    content = {f"{side}/shell.obj": TETRAHEDRON.format(1) for side in ("left", "right")}
    spec = mujoco.MjSpec.from_string(ROBOT.replace('meshdir="parts"', ""))
    spec.assets = content
    assert robot_files(spec)["shell.obj"] == TETRAHEDRON.format(1).encode()


def test_meshes_of_a_file_that_strips_their_paths_are_written(file):
    (file.parent / "parts/shell.obj").write_text(TETRAHEDRON.format(1))
    text = ROBOT.replace("<compiler", '<compiler strippath="true"').replace("left/", "/home/somebody/")
    file.write_text(text)
    files = robot_files(mujoco.MjSpec.from_file(str(file)))
    assert files["shell.obj"] == TETRAHEDRON.format(1).encode()


def test_mesh_that_is_not_there_is_an_error_with_its_name(file, tmp_path):
    spec = mujoco.MjSpec.from_file(str(file))
    Path(tmp_path / "parts/right/shell.obj").unlink()
    with pytest.raises(ConfigError, match=r"its file right/shell\.obj is in none of"):
        robot_files(spec)
