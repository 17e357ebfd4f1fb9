"""Robot files as people have them: URDF, meshes elsewhere and in formats that MuJoCo does not read."""

import zipfile
from pathlib import Path

import mujoco
import numpy as np
import pytest

import ksim
from ksim.physics import load_spec
from ksim.physics.files import unpacked
from ksim.policy.export.robot_file import robot_files
from tests.support import urdf

TETRAHEDRON = "0 0 0  .1 0 0  0 .1 0  0 0 .1"
OBJ = "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
STL = "solid t\n" + "".join(
    f"facet normal 0 0 1\nouter loop\nvertex {a}\nvertex {b}\nvertex {c}\nendloop\nendfacet\n"
    for a, b, c in (("0 0 0", ".1 0 0", "0 .1 0"), ("0 0 0", ".1 0 0", "0 0 .1"), ("0 0 0", "0 .1 0", "0 0 .1"))
)
COLLADA = f"""<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema"><asset><unit meter="0.5"/></asset>
  <library_geometries><geometry id="g"><mesh>
    <source id="p"><float_array count="12">{TETRAHEDRON}</float_array></source>
    <vertices id="v"><input semantic="POSITION" source="#p"/></vertices></mesh></geometry></library_geometries>
  <library_visual_scenes><visual_scene><node>
    <matrix>2 0 0 1  0 2 0 0  0 0 2 0  0 0 0 1</matrix><instance_geometry url="#g"/></node></visual_scene>
  </library_visual_scenes></COLLADA>"""

WITH_MESH = """<mujoco><asset><mesh file="assets/part.obj"/></asset>
  <worldbody><geom type="mesh" mesh="part"/></worldbody></mujoco>"""


def mesh(name):
    return f'<geometry><mesh filename="{name}"/></geometry>'


def compiled(text, path="robots/urdf/robot.urdf"):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return load_spec(path).compile()


def test_urdf_has_its_joints_with_limits_of_effort_and_no_actuators():
    model = compiled(urdf.DOG)
    assert (model.njnt, model.nu) == (12, 0)
    np.testing.assert_allclose(model.jnt_actfrcrange, [[-8, 8]] * 12)
    np.testing.assert_allclose(model.jnt_range, [[-1.5, 1.5]] * 12)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("package://my_robot/meshes/part.obj", "robots/meshes/part.obj"),
        ("package:///my_robot/meshes/part.obj", "robots/my_robot/meshes/part.obj"),
        ("../meshes/part.obj", "robots/meshes/part.obj"),
        ("part.obj", "robots/other/part.obj"),
        ("meshes\\\\part.obj", "robots/urdf/meshes/part.obj"),
    ],
)
def test_mesh_of_a_urdf_is_found(name, place):
    Path(place).parent.mkdir(parents=True)
    Path(place).write_text(OBJ)
    model = compiled(urdf.robot(urdf.link("world", mesh(name.replace("\\\\", "\\")), mass=0)))
    assert (model.ngeom, model.nmesh) == (1, 1)


@pytest.mark.parametrize(("name", "text"), [("part.dae", COLLADA), ("part.stl", STL), ("part.obj", OBJ)])
def test_mesh_of_any_format_collides_with_its_hull(name, text):
    Path("robots").mkdir()
    Path("robots", name).write_text(text)
    model = compiled(urdf.robot(urdf.link("world", mesh(name), mass=0)), "robots/robot.urdf")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    corners = data.geom_xpos[0] + model.mesh_vert @ data.geom_xmat[0].reshape(3, 3).T
    # The node of the COLLADA file doubles it and moves it by 1, in units of 0.5 m.
    np.testing.assert_allclose(corners.min(axis=0), [0.5 if name == "part.dae" else 0, 0, 0], atol=1e-5)
    np.testing.assert_allclose(np.ptp(corners, axis=0), 0.1, atol=1e-5)


def test_mesh_that_is_only_seen_is_left_out_where_it_cannot_be_read():
    seen = '<visual>{}<material name="a"/><material name="b"/></visual>'
    link = f'<link name="world">{seen.format(mesh("part.dae"))}{seen.format(urdf.BOX)}</link>'
    model = compiled(urdf.robot(link))
    assert (model.ngeom, model.nmesh, model.geom_contype.sum()) == (1, 0, 0)


def test_link_without_a_possible_inertia_gets_one_and_a_frame_that_is_fixed_has_no_mass():
    parts = (
        urdf.link("world", urdf.BOX, mass=0),
        urdf.link("massless", None, mass=0),
        urdf.link("flat", urdf.ROD, mass=0.5, inertia=0.0),
        urdf.link("frame", urdf.SPHERE, mass=1e-15, inertia=1e-27),
        urdf.joint("first", "world", "massless", "0 0 0"),
        urdf.joint("second", "massless", "flat", "0 0 0"),
        urdf.fixed("flat", "frame", "0 0 0"),
    )
    model = compiled(urdf.robot(*parts))
    np.testing.assert_allclose(model.body_mass, [0, 0.001, 0.5], rtol=1e-6)
    ball = 0.4 * 0.5 * (3 * 0.5 / (4 * np.pi * 1000)) ** (2 / 3)
    np.testing.assert_allclose(model.body_inertia[2], ball, rtol=1e-4)


def test_mesh_of_an_mjcf_file_is_found_in_a_folder_beside_it():
    Path("robots/meshes").mkdir(parents=True)
    Path("robots/meshes/part.obj").write_text(OBJ)
    assert compiled(WITH_MESH, "robots/xml/robot.xml").nmesh == 1


def test_mesh_that_is_not_at_its_place_is_the_one_whose_path_ends_alike():
    for side, size in (("left", ".1"), ("right", ".3")):
        Path(f"robots/assets/{side}").mkdir(parents=True)
        Path(f"robots/assets/{side}/foot.obj").write_text(OBJ.replace(".1", size))
    for side, longest in (("left", 0.1), ("right", 0.3)):
        model = compiled(
            WITH_MESH.replace("assets/part", f"meshes/{side}/foot").replace("part", "foot"), "robots/xml/robot.xml"
        )
        assert np.linalg.norm(model.mesh_vert, axis=1).max() == pytest.approx(longest * 11**0.5 / 4, rel=1e-5)
    with pytest.raises(
        ksim.ConfigError, match=r"'meshes/foot\.obj' may be any of .*/left/foot\.obj, .*/right/foot\.obj"
    ):
        compiled(WITH_MESH.replace("assets/part", "meshes/foot").replace("part", "foot"), "robots/xml/robot.xml")


ATTACHED = """<mujoco><compiler meshdir="meshes"/><asset><mesh name="base" file="base.obj"/></asset>
  <worldbody><body name="root"><joint/><geom type="mesh" mesh="base"/></body></worldbody></mujoco>"""
SCENE_OF_TWO = """<mujoco>{0}<!-- <include file="scene.xml"/> -->
  <asset><model name="a" file="a/a.xml"/><model name="b" file="b/b.xml"/></asset>
  <worldbody><attach model="a" body="root" prefix="a_"/>
  <attach model="b" body="root" prefix="b_"/></worldbody></mujoco>"""


@pytest.fixture
def two_models():
    """The masses of two models with meshes of one name, to be attached to a scene."""
    for name, size in (("a", ".1"), ("b", ".5")):
        Path(f"robots/{name}/meshes").mkdir(parents=True)
        Path(f"robots/{name}/{name}.xml").write_text(ATTACHED)
        Path(f"robots/{name}/meshes/base.obj").write_text(OBJ.replace(".1", size))
    Path("robots/scene.xml").write_text(SCENE_OF_TWO.format(""))
    return mujoco.MjSpec.from_file("robots/scene.xml").compile().body_mass


@pytest.mark.parametrize("old", ["", '<option apirate="50"/>'])
def test_attached_models_have_their_own_meshes(two_models, old):
    spec = load_spec(Path("robots/scene.xml"))
    model = compiled(SCENE_OF_TWO.format(old), "robots/scene.xml")
    np.testing.assert_allclose(model.body_mass, two_models)
    files = robot_files(spec)
    exported = mujoco.MjSpec.from_string(files.pop("robot.xml").decode(), assets=files).compile()
    np.testing.assert_allclose(exported.body_mass, two_models)


def test_mesh_of_an_attached_model_is_looked_for_beside_it(two_models):
    for name in "ab":
        Path(f"robots/{name}/meshes").rename(f"robots/{name}/assets")
    np.testing.assert_allclose(compiled(SCENE_OF_TWO.format(""), "robots/scene.xml").body_mass, two_models)


def test_mjcf_file_may_have_any_name():
    Path("robots/assets").mkdir(parents=True)
    Path("robots/assets/part.obj").write_text(OBJ)
    assert compiled(WITH_MESH, "robots/robot.mjcf").nmesh == 1


def test_attributes_of_older_versions_of_mujoco_are_left_out_also_in_included_files():
    Path("robots").mkdir()
    old = '<option apirate="100" timestep=".004"><flag sensornoise="enable" gravity="disable"/></option>'
    Path("robots/arm.xml").write_text('<mujoco><compiler convexhull="false" angle="radian"/><worldbody/></mujoco>')
    model = compiled(f'<mujoco><include file="arm.xml"/>{old}</mujoco>', "robots/robot.xml")
    assert model.opt.timestep == 0.004
    assert model.opt.disableflags == mujoco.mjtDisableBit.mjDSBL_GRAVITY


@pytest.mark.parametrize(("name", "old"), [("robot.mjcf", ""), ("robot.xml", '<option apirate="50"/>')])
def test_included_files_may_include_others_also_in_files_that_are_brought_up_to_date(name, old):
    Path("robots/parts").mkdir(parents=True)
    Path("robots/parts/mid.xml").write_text('<mujoco><include file="leaf.xml"/></mujoco>')
    Path("robots/parts/leaf.xml").write_text(f'<mujoco>{old}<worldbody><body name="leaf"/></worldbody></mujoco>')
    assert compiled('<mujoco><include file="parts/mid.xml"/></mujoco>', f"robots/{name}").nbody == 2


def zipped(files, name="robot.zip"):
    with zipfile.ZipFile(name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return Path(name)


SCENE = '<mujoco><include file="robot.xml"/></mujoco>'


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"a/dog.urdf": urdf.DOG, "a/package.xml": "<package/>"}, "a/dog.urdf"),
        ({"robot.xml": WITH_MESH, "scene.xml": SCENE, "assets/part.obj": OBJ}, "scene.xml"),
        ({"all.xml": SCENE_OF_TWO, "a/a.xml": ATTACHED, "b/b.xml": ATTACHED}, "all.xml"),
        ({"x/robot.xml": WITH_MESH, "x/other.xml": WITH_MESH}, "x/robot.xml"),
    ],
)
def test_robot_in_a_zip_file_is_found(files, found):
    assert unpacked(zipped(files), Path("folder")) == Path("folder", found)


def test_zip_file_without_one_robot_is_refused():
    refusals = [
        (
            {"one.xml": WITH_MESH, "two.xml": WITH_MESH},
            r"has several robots. It was .* folder0: give one of folder0/one",
        ),
        ({"readme.md": "text"}, "has no MJCF file and no URDF. It was unpacked into folder1.$"),
    ]
    for i, (files, message) in enumerate(refusals):
        with pytest.raises(ksim.ConfigError, match=message):
            unpacked(zipped(files), Path(f"folder{i}"))
    with pytest.raises(ksim.ConfigError, match=r"folder0 already exists, into which robot\.zip would be unpacked"):
        unpacked(Path("robot.zip"), Path("folder0"))
    Path("text.zip").write_text("no zip file")
    with pytest.raises(ksim.ConfigError, match=r"text\.zip cannot be unpacked: File is not a zip file"):
        unpacked(Path("text.zip"), Path("folder2"))


def test_mesh_that_is_no_collada_is_refused():
    Path("robots").mkdir()
    for text in ("text", "<COLLADA/>", COLLADA.replace('source="#p"', 'source="#q"')):
        Path("robots/part.dae").write_text(text)
        with pytest.raises(ksim.ConfigError, match=r"part\.dae is not COLLADA with vertices"):
            compiled(urdf.robot(urdf.link("world", mesh("part.dae"))), "robots/robot.urdf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (urdf.robot(urdf.link("world", mesh("part.stl"))), "the mesh 'part.stl' of link 'world' was not found. Put it"),
        ('<robot xmlns:xacro="http://ros.org/wiki/xacro"><xacro:leg/></robot>', "has macros. Expand them first: xacro"),
        ("<robot><link></robot>", "is not XML: mismatched tag"),
    ],
)
def test_urdf_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(ksim.ConfigError, match=message):
        compiled(text)
