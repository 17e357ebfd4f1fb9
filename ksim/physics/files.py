"""Robot files on disk: MJCF, URDF and zip files of them, with the meshes that they name."""

import html
import itertools
import os
import re
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics.mjcf import check_mjcf

READABLE = (".stl", ".obj", ".msh")
"""Formats of meshes that MuJoCo reads. Of others the convex hull is taken: see `_points`."""
_FOLDERS_UP = 4
"""Folders above a robot file in which a path that it names is looked for."""
_LEAST_MASS, _LEAST_INERTIA = 1e-6, 1e-11
"""Least mass and moment of inertia of a link, in kg and kg m^2."""
_FILE = re.compile(r"(<(include|model)\b[^<>]*?\bfile\s*=\s*)[\"']([^\"']*)[\"']")
"""A file that another one includes or attaches."""
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"<(model|attach)\b([^<>]*)>")
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*[\"']([^\"']*)[\"']")
_OUTDATED = {
    "option": "apirate|mpr_tolerance|mpr_iterations",
    "compiler": "convexhull|exactmeshinertia",
    "flag": "sensornoise",
}
"""By element: attributes of older versions of MuJoCo, as a pattern."""
_LARGEST_BYTES = 2**31
_MOST_FILES = 20_000
"""Files beside a robot file among which a file is looked for by its name."""


def read_spec(path: Path) -> mujoco.MjSpec:
    """The model of an MJCF or URDF file. Meshes that are not where the file says are looked for in the folders around.

    Raises:
        ConfigError: The file cannot be used, or a mesh of it is missing or of an unknown format.
    """
    if kind_of(path) == "robot":
        return _read_urdf(path)
    check_mjcf(path)
    texts: dict[Path, str] = {}
    path = path.absolute()
    _gather(path, path.parent, texts)
    current = {file: _up_to_date(text) for file, text in texts.items()}
    if path.suffix == ".xml" and current == texts:
        spec = mujoco.MjSpec.from_file(str(path))
    else:  # from_file reads no other suffix
        contents = {str(file): text.encode() for file, text in current.items() if file != path}
        spec = mujoco.MjSpec.from_string(current[path], include=contents or None)
        spec.modelfiledir = str(path.parent)
    attached = _attached_files(path, texts)
    for folder, part in _parts_with_files(spec):
        key = (type(part), part.name)
        if key in attached:
            part.file = attached[key]
        elif not (path.parent / folder / part.file).is_file():
            part.file = str(find_file(part.file, path.parent) or part.file)
    return spec


def _parts_with_files(spec: mujoco.MjSpec) -> Iterator[tuple[str, Any]]:
    """The parts of a model that name a file, each with the folder in which it should be."""
    for folder, parts in ((spec.meshdir, (*spec.meshes, *spec.skins, *spec.hfields)), (spec.texturedir, spec.textures)):
        yield from ((folder, part) for part in parts if part.file)


def _gather(path: Path, root: Path, texts: dict[Path, str]) -> None:
    """Adds the text of a file to `texts`, and of all files that it includes or attaches, which it names by full paths.

    Paths are relative to `root`, the folder of the main file, or to the file that names them.
    """
    texts[path] = ""

    def with_full_path(found: re.Match[str]) -> str:
        beginning, kind, name = found.groups()
        places = [Path(os.path.normpath(folder / html.unescape(name))) for folder in (root, path.parent)]
        target = next((place for place in places if place.is_file()), None)
        if target is None:
            return found[0]
        if target not in texts:
            _gather(target, root if kind == "include" else target.parent, texts)
        return f'{beginning}"{html.escape(str(target))}"'

    texts[path] = _FILE.sub(with_full_path, _COMMENT.sub("", path.read_text(errors="replace")))


def _attached_files(path: Path, texts: Mapping[Path, str]) -> dict[tuple[type[Any], str], str]:
    """The files of the parts that a model gets from those that it attaches, by kind and name of the part."""
    tags = [
        (tag, {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(rest)})
        for text in _with_includes(path, texts)
        for tag, rest in _TAG.findall(text)
    ]
    models = {}
    for file, given in ((Path(given["file"]), given) for tag, given in tags if tag == "model" and "file" in given):
        if file in texts:
            spec = read_spec(file)
            places = [(part, file.parent / folder / part.file) for folder, part in _parts_with_files(spec)]
            models[given.get("name", spec.modelname)] = [(part, place) for part, place in places if place.is_file()]
    return {
        (type(part), given.get("prefix", "") + part.name): str(place)
        for tag, given in tags
        if tag == "attach"
        for part, place in models.get(given.get("model", ""), [])
    }


def _with_includes(path: Path, texts: Mapping[Path, str]) -> Iterator[str]:
    """The text of a file, and those of all files that it includes."""
    yield texts[path]
    for _, kind, name in _FILE.findall(texts[path]):
        if kind == "include" and (file := Path(html.unescape(name))) in texts:
            yield from _with_includes(file, texts)


def _up_to_date(text: str) -> str:
    """MJCF without the attributes of older versions of MuJoCo that this one refuses, and that change little."""
    for element, attributes in _OUTDATED.items():
        attribute = rf"(<{element}\b[^<>]*?)\s(?:{attributes})\s*=\s*(?:\"[^\"]*\"|'[^']*')"
        while (changed := re.sub(attribute, r"\1", text)) != text:
            text = changed
    return text


def kind_of(path: Path) -> str:
    """The root element of an XML file: `mujoco` of MJCF files, `robot` of URDFs; empty if it is not XML."""
    try:
        return next(iter(ET.iterparse(path, events=("start",))))[1].tag
    except (ET.ParseError, StopIteration):
        return ""


def unpacked(path: Path, folder: Path) -> Path:
    """Unpacks a zip file with a robot into a folder, and returns the file of the robot in it.

    Raises:
        ConfigError: The zip file cannot be read, the folder exists, or it is not clear which of its files is the robot.
    """
    if folder.exists():
        raise ConfigError(f"{folder} already exists, into which {path} would be unpacked. Give the robot's file in it.")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > _LARGEST_BYTES:
                raise ConfigError(f"{path} has more than {_LARGEST_BYTES // 2**30} GiB of files. Unpack it by hand.")
            archive.extractall(folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} cannot be unpacked: {error}.") from error
    files = [file for file in _files(folder) if file.suffix in (".xml", ".mjcf", ".urdf")]
    robots = [file for file in files if kind_of(file) in ("mujoco", "robot")]
    parts = [name for file in robots for _, _, name in _FILE.findall(file.read_text(errors="replace"))]
    whole = [file for file in robots if not any(str(file).endswith(part) for part in parts)]
    named = [file for file in whole if file.stem == path.stem]
    found = named if len(named) == 1 else whole
    if len(found) != 1:
        names = ", ".join(str(file) for file in found)
        raise ConfigError(
            f"{path} has {'several robots' if found else 'no MJCF file and no URDF'}. It was unpacked into {folder}"
            f"{f': give one of {names}' if found else ''}."
        )
    return found[0]


def find_file(name: str, folder: Path) -> Path | None:
    """The file that a robot file in `folder` means by a name; None if there is none.

    The name may be a path, or one of ROS such as `package://my_robot/meshes/hip.stl`. A file that is not at its place
    is found by its name, below the folder that holds `folder`: the one that shares most of the path's last parts, and
    then the nearest.

    Raises:
        ConfigError: Several files with different contents are as good.
    """
    scheme, _, rest = name.rpartition("://")
    rest = Path(rest.lstrip("/") if scheme == "package" else rest.replace("\\", "/"))
    if rest.is_absolute():
        return rest if rest.is_file() else None
    folder = folder.absolute()
    for above in (folder, *list(folder.parents)[:_FOLDERS_UP]):
        for path in (rest, Path(*rest.parts[1:])):  # with and without the name of its package
            if path.name and (above / path).is_file():
                return above / path
    places = [path for path in _files(folder.parent) if path.name == rest.name]
    ranks = [(_shared(path.parts[::-1], rest.parts[::-1]), _shared(path.parts, folder.parts)) for path in places]
    best = [path for path, rank in zip(places, ranks, strict=True) if rank == max(ranks)]
    if len({path.read_bytes() for path in best}) > 1:
        raise ConfigError(
            f"The file {name!r} may be any of {', '.join(str(path) for path in best)}. Put it where the robot file in "
            f"{folder} says."
        )
    return best[0] if best else None


def _shared(parts: Sequence[str], others: Sequence[str]) -> int:
    """The number of parts with which both begin."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(parts, others, strict=False)))


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, at most `_MOST_FILES`."""
    seen = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        seen += len(names)
        if seen > _MOST_FILES:
            return
        yield from (Path(root, name) for name in sorted(names))


def _read_urdf(path: Path) -> mujoco.MjSpec:
    """The model of a URDF. Shapes that are only seen are left out if MuJoCo cannot read their mesh.

    Limits of effort, damping and friction of joints are those of the file; it has no actuators and, unless the first
    link is called `world`, no joint between the first link and the world.
    """
    try:
        tree = ET.parse(path).getroot()
    except ET.ParseError as error:
        raise ConfigError(f"Robot file {path} is not XML: {error}.") from error
    if any("xacro" in element.tag for element in tree.iter()):
        raise ConfigError(f"Robot file {path} has macros. Expand them first: xacro {path.name} > expanded.urdf")
    joints = [joint for joint in tree.iter("joint") if joint.get("type") != "fixed"]
    moving = {child.get("link") for joint in joints for child in joint.iter("child")}
    for link in tree.iter("link"):
        for visual in link.findall("visual"):
            mesh = visual.find("geometry/mesh")
            if mesh is not None and not _set_mesh(mesh, path, READABLE):
                link.remove(visual)
            for material in visual.findall("material")[1:]:
                visual.remove(material)
        for mesh in link.iterfind("collision/geometry/mesh"):
            if not _set_mesh(mesh, path, (*READABLE, ".dae")):
                raise ConfigError(
                    f"Robot file {path}: the mesh {mesh.get('filename')!r} of link {link.get('name')!r} was not found. "
                    "Put it beside the file, or replace it by a box, a cylinder or a sphere."
                )
        _mend_inertia(link, link.get("name") in moving)
    extension = tree.find("mujoco")
    extension = ET.SubElement(tree, "mujoco") if extension is None else extension
    compiler = extension.find("compiler")
    compiler = ET.SubElement(extension, "compiler") if compiler is None else compiler
    own = {"discardvisual": "false", "strippath": "false"}
    for name, value in {"balanceinertia": "true", "fusestatic": "true", **compiler.attrib, **own}.items():
        compiler.set(name, value)
    compiler.attrib.pop("meshdir", None)
    spec = mujoco.MjSpec.from_string(ET.tostring(tree, encoding="unicode"))
    for geom in (geom for body in spec.bodies if not body.explicitinertial and not body.joints for geom in body.geoms):
        geom.density = 0.0
    for mesh in spec.meshes:
        points = _points(Path(mesh.file))
        if points is not None:
            mesh.file, mesh.uservert = "", points.ravel()
    return spec


def _set_mesh(mesh: ET.Element, path: Path, formats: Sequence[str]) -> bool:
    """Replaces a mesh's path by that of its file in one of these formats, its own first; False if there is none."""
    name = Path(mesh.get("filename", ""))
    for suffix in dict.fromkeys((name.suffix, *formats, ".STL", ".OBJ")):
        named = mesh.get("filename", "").removesuffix(name.suffix) + suffix
        found = find_file(named, path.parent) if suffix.lower() in formats else None
        if found is not None:
            mesh.set("filename", str(found))
            return True
    return False


def _mend_inertia(link: ET.Element, moves: bool) -> None:
    """Gives a link whose inertia no body can have that of a ball of water of its mass, of 1 g if it has no mass.

    Frames of sensors and tools are often such links. A link that does not move needs no inertia.
    """
    inertial = link.find("inertial")
    if inertial is None:
        if not moves or link.find("collision") is not None:
            return
        inertial = ET.SubElement(link, "inertial")
    number = lambda element, name: float(element.get(name, "0")) if element is not None else 0.0
    mass, inertia = number(inertial.find("mass"), "value"), inertial.find("inertia")
    xx, yy, zz, xy, xz, yz = (number(inertia, f"i{axes}") for axes in ("xx", "yy", "zz", "xy", "xz", "yz"))
    if mass > _LEAST_MASS and np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])[0] > _LEAST_INERTIA:
        return
    if mass <= _LEAST_MASS and not moves:
        link.remove(inertial)
        return
    mass = mass if mass > _LEAST_MASS else 0.001
    ball = 0.4 * mass * (3 * mass / (4 * np.pi * 1000.0)) ** (2 / 3)
    for element in (x for name in ("mass", "inertia") for x in inertial.findall(name)):
        inertial.remove(element)
    ET.SubElement(inertial, "mass", value=f"{mass:g}")
    ET.SubElement(
        inertial,
        "inertia",
        {f"i{axis}{axis}": f"{ball:g}" for axis in "xyz"} | dict.fromkeys(("ixy", "ixz", "iyz"), "0"),
    )


def _points(path: Path) -> np.ndarray | None:
    """The vertices, in m, of a mesh that MuJoCo does not read, of which it makes the convex hull: COLLADA, STL as text.

    None if MuJoCo reads it.

    Raises:
        ConfigError: A COLLADA file cannot be read.
    """
    if path.suffix.lower() == ".dae":
        try:
            return _collada_points(ET.parse(path).getroot())
        except (ET.ParseError, KeyError, IndexError, StopIteration, ValueError) as error:
            raise ConfigError(f"Mesh {path} is not COLLADA with vertices. Give it as .stl or .obj.") from error
    if path.suffix.lower() == ".stl" and path.read_bytes()[:80].lstrip().startswith(b"solid"):
        found = re.findall(r"vertex\s+(\S+)\s+(\S+)\s+(\S+)", path.read_text(errors="replace"))
        return np.array(found, float) if found else None
    return None


def _collada_points(tree: ET.Element) -> np.ndarray:
    """The vertices of all geometries of a COLLADA document, where its nodes place them, in m."""
    name = lambda element: element.tag.rpartition("}")[2]
    below = lambda element, kind: [x for x in element.iter() if name(x) == kind]
    unit = next((float(x.get("meter", "1")) for x in below(tree, "unit")), 1.0)
    by_id = {x.get("id"): x for x in tree.iter() if x.get("id")}
    found = []

    def visit(node: ET.Element, place_44: np.ndarray) -> None:
        for child in node:
            if name(child) == "matrix":
                place_44 = place_44 @ np.array((child.text or "").split(), float).reshape(4, 4)
            elif name(child) == "node":
                visit(child, place_44)
            elif name(child) == "instance_geometry":
                mesh = by_id[child.get("url", "")[1:]]
                for vertices in below(mesh, "vertices"):
                    source = next(x.get("source", "")[1:] for x in vertices if x.get("semantic") == "POSITION")
                    points = np.array((below(by_id[source], "float_array")[0].text or "").split(), float).reshape(-1, 3)
                    found.append(points @ place_44[:3, :3].T + place_44[:3, 3])

    for scene in below(tree, "visual_scene"):
        visit(scene, np.eye(4))
    return unit * np.concatenate(found)
