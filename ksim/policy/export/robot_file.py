"""The robot of a task as one MJCF file with its meshes, for programs without ksim."""

from collections.abc import Iterator
from pathlib import Path

import mujoco

from ksim.errors import ConfigError

ROBOT_FILE = "robot.xml"


def robot_files(spec: mujoco.MjSpec) -> dict[str, bytes]:
    """The contents of `robot.xml` and of the meshes, textures and other files that it names, by their names.

    Args:
        spec: The model with everything that the task added. It is left as it is.

    Raises:
        ConfigError: A file that the model names is not there, or MuJoCo cannot write the model.
    """
    spec, files = spec.copy(), {}
    own = Path(spec.modelfiledir)
    folders = [own / spec.meshdir, own / spec.texturedir, own]
    for part, file in _named_files(spec):
        content = _content(spec, file, folders)
        name = _free_name(files, file, content)
        files[name] = content
        if isinstance(part, mujoco.MjsTexture) and file != part.file:
            part.cubefiles = [name if x == file else x for x in part.cubefiles]
        else:
            part.file = name
    spec.meshdir = spec.texturedir = ""
    spec.assets = files
    try:
        spec.compile()
        return {**files, ROBOT_FILE: spec.to_xml().encode()}
    except Exception as error:
        raise ConfigError(f"The robot cannot be written as {ROBOT_FILE}: {' '.join(str(error).split())}.") from error


def _named_files(spec: mujoco.MjSpec) -> Iterator[tuple[mujoco.MjsMesh | mujoco.MjsTexture, str]]:
    """The parts of a model that are read from files, with the names of these."""
    for part in (*spec.meshes, *spec.hfields, *spec.skins, *spec.textures):
        if part.file:
            yield part, part.file
    for texture in spec.textures:
        yield from ((texture, file) for file in dict.fromkeys(texture.cubefiles) if file)


def _content(spec: mujoco.MjSpec, file: str, folders: list[Path]) -> bytes:
    if file in spec.assets:
        content = spec.assets[file]
        return content.encode() if isinstance(content, str) else content
    for name in (file, Path(file).name):  # without folders, as with strippath
        for folder in folders:
            if (folder / name).is_file():
                return (folder / name).read_bytes()
    raise ConfigError(f"The robot cannot be written as {ROBOT_FILE}: its file {file} is in none of {folders}.")


def _free_name(files: dict[str, bytes], file: str, content: bytes) -> str:
    """The file's own name, with a number before it if another file has that name."""
    name, number = Path(file).name, 1
    while files.get(name, content) != content:
        name, number = f"{number}_{Path(file).name}", number + 1
    return name
