"""Robots as URDF."""

from collections.abc import Iterator

BOX = '<geometry><box size=".3 .2 .1"/></geometry>'
SPHERE = '<geometry><sphere radius=".02"/></geometry>'
ROD = '<origin xyz="0 0 -.1"/><geometry><cylinder radius=".01" length=".16"/></geometry>'


def link(name: str, shape: str | None, mass: float = 0.1, inertia: float = 1e-3) -> str:
    """A link with a shape that collides; without inertia for a mass of 0."""
    moments = "".join(f' i{axis}{axis}="{inertia}"' for axis in "xyz") + ' ixy="0" ixz="0" iyz="0"'
    inertial = f'<inertial><mass value="{mass}"/><inertia{moments}/></inertial>' if mass else ""
    collision = f"<collision>{shape}</collision>" if shape else ""
    return f'<link name="{name}">{inertial}{collision}</link>'


def joint(name: str, parent: str, child: str, xyz: str, axis: str = "0 1 0") -> str:
    """A hinge with a limit of effort of 8 N m."""
    return f"""<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>
      <origin xyz="{xyz}"/><axis xyz="{axis}"/>
      <limit lower="-1.5" upper="1.5" effort="8" velocity="10"/></joint>"""


def fixed(parent: str, child: str, xyz: str) -> str:
    """A joint that does not move."""
    return f"""<joint name="{child}_fixed" type="fixed"><parent link="{parent}"/><child link="{child}"/>
      <origin xyz="{xyz}"/></joint>"""


def robot(*parts: str) -> str:
    """A whole document."""
    return f'<robot name="robot">{"".join(parts)}</robot>'


def dog_legs() -> Iterator[str]:
    """Four legs of three joints on a link `trunk`, with feet that are fixed to their shins."""
    for name, x, y in (("FL", 0.15, 0.1), ("FR", 0.15, -0.1), ("RL", -0.15, 0.1), ("RR", -0.15, -0.1)):
        yield link(f"{name}_hip", None) + link(f"{name}_thigh", ROD) + link(f"{name}_shin", ROD)
        yield link(f"{name}_foot", SPHERE, mass=0.01, inertia=1e-5)
        yield joint(f"{name}_roll", "trunk", f"{name}_hip", f"{x} {y} 0", axis="1 0 0")
        yield joint(f"{name}_pitch", f"{name}_hip", f"{name}_thigh", "0 0 0")
        yield joint(f"{name}_knee", f"{name}_thigh", f"{name}_shin", "0 0 -.2")
        yield fixed(f"{name}_shin", f"{name}_foot", "0 0 -.2")


DOG = robot(link("trunk", BOX, mass=4.0, inertia=0.05), *dog_legs())
ARM = robot(
    link("stand", BOX, mass=2.0),
    link("upper", ROD),
    link("lower", ROD),
    joint("shoulder", "stand", "upper", "0 0 0"),
    joint("elbow", "upper", "lower", "0 0 -.2"),
)
