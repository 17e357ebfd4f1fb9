"""Whether this machine can train, evaluate, film and show robots, and what to do about what it lacks.

python -m ksim.doctor

Checks versions, JAX's devices, a collective over several devices, NVIDIA's driver and packages, MuJoCo, OpenGL, ffmpeg,
the viewers, cores, memory and disk. Exits with 1 if something that training needs is missing.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import mujoco
from packaging.requirements import Requirement

from ksim.evaluate.video import find_gl
from ksim.host.machine import DISTRIBUTION, install_command, num_cores
from ksim.host.terminal import console

GIB = 2**30
LEAST_FREE_BYTES, LEAST_MEMORY_BYTES = 2 * GIB, 4 * GIB
_TIMEOUT_S = 180
_LEAST_DRIVER = {"13": 580, "12": 525}
"""The oldest driver by version of CUDA, from JAX's page on its installation."""
_BALL = '<mujoco><worldbody><body><freejoint/><geom size="0.1"/></body></worldbody></mujoco>'
_COLLECTIVE = """
import json, ksim, jax
from ksim.parallel.layout import PmapDevices
devices = jax.local_devices()
layout = PmapDevices(devices, "device")
mean = layout.map(lambda x: jax.lax.pmean(x * jax.lax.axis_index("device"), "device"))(layout.replicate(1.0))
print(json.dumps({"kinds": [f"{d.platform} ({d.device_kind})" for d in devices], "mean": float(layout.first(mean))}))
"""


@dataclass(frozen=True)
class Finding:
    """The result of a check. `fix` says what to do; None if all is well. `is_needed`: training needs it."""

    name: str
    words: str
    fix: str | None = None
    is_needed: bool = False

    @property
    def mark(self) -> str:
        """`ok`, `missing`, or `note` if only some uses need it."""
        return "ok" if self.fix is None else "missing" if self.is_needed else "note"


def check_versions() -> list[Finding]:
    """Python, and every package that ksim requires, against its range."""
    found = [Finding("Python", ".".join(map(str, sys.version_info[:3])))]
    wrong = []
    try:
        requirements = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or ()]
    except importlib.metadata.PackageNotFoundError:  # imported from a folder
        words = f"{DISTRIBUTION} is not installed, so that their versions cannot be checked"
        return [*found, Finding("packages", words, "Run pip install -e . in ksim's clone.")]
    needed = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    for requirement in needed:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        if version == "not installed" or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} (needs {requirement.specifier})")
    fix = f"Run pip install {' '.join(repr(str(r)) for r in needed if any(w.startswith(f'{r.name} ') for w in wrong))}."
    words = "; ".join(wrong) or f"all {len(needed)} in range, JAX {jax.__version__}, MuJoCo {mujoco.__version__}"
    return [*found, Finding("packages", words, fix if wrong else None, is_needed=True)]


def check_collective() -> list[Finding]:
    """JAX's devices, and an average over all of them; over two host devices on a CPU."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        flags = f"{flags} --xla_force_host_platform_device_count=2".strip()
    name, fix = "devices", "Look at the last line of the error; JAX_PLATFORMS=cpu trains on the CPU."
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _COLLECTIVE],
            env=os.environ | {"XLA_FLAGS": flags},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return [Finding(name, f"an average over devices did not end within {_TIMEOUT_S} s", fix, is_needed=True)]
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        return [Finding(name, f"JAX failed: {last}", fix, is_needed=True)]
    result = json.loads(done.stdout.splitlines()[-1])
    kinds, expected = result["kinds"], (len(result["kinds"]) - 1) / 2
    if result["mean"] != expected:
        return [Finding(name, f"an average over {len(kinds)} devices was {result['mean']}", fix, is_needed=True)]
    found = [Finding(name, f"averaged over {len(kinds)} x {kinds[0]}")]
    if shutil.which("nvidia-smi") is not None and kinds[0].startswith("cpu"):
        found.append(Finding("GPU", "nvidia-smi is there, but JAX sees no GPU", f"Run {install_command('cuda')}."))
    return found


def check_nvidia() -> list[Finding]:
    """On a machine with NVIDIA GPUs: its driver, JAX's packages for CUDA, NCCL and MuJoCo Warp."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        gpus = [line.rpartition(",") for line in done.stdout.splitlines() if line.strip()]
        name, driver = gpus[0][0].strip(), gpus[0][2].strip()
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return [Finding("driver", f"nvidia-smi failed: {error}", "Install NVIDIA's driver anew, or start it.")]
    cuda = next((n for n in _LEAST_DRIVER if _version(f"jax-cuda{n}-plugin")), None)
    if cuda is None:
        words = f"{driver}, {len(gpus)} x {name}; JAX's packages for CUDA are not installed"
        return [Finding("driver", words, f"Run {install_command('cuda')}.")]
    least = _LEAST_DRIVER[cuda]
    fix = f"CUDA {cuda} needs {least} or newer: update it." if int(driver.split(".")[0]) < least else None
    found = [Finding("driver", f"{driver}, {len(gpus)} x {name}", fix, is_needed=True)]
    found.append(Finding("CUDA", f"{cuda}, JAX's plugin {_version(f'jax-cuda{cuda}-plugin')}"))
    nccl = _version(f"nvidia-nccl-cu{cuda}")
    fix = f"Several GPUs need it: {install_command('cuda')}." if nccl is None and len(gpus) > 1 else None
    found.append(Finding("NCCL", nccl or "not installed", fix, is_needed=True))
    warp = _version("warp-lang")
    fix = None if warp else f"The fastest physics on NVIDIA GPUs: {install_command('warp')}."
    return [*found, Finding("Warp", warp or "not installed", fix)]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_physics() -> list[Finding]:
    """Native MuJoCo steps."""
    model = mujoco.MjModel.from_xml_string(_BALL)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data)
    fix = None if data.qvel[2] < 0 else "Reinstall it: pip install --force-reinstall mujoco."
    return [Finding("MuJoCo", "steps", fix, is_needed=True)]


def check_pictures() -> list[Finding]:
    """OpenGL and ffmpeg, for videos."""
    gl = find_gl()
    how = {"": "the system's default"}.get(gl or "", gl or "none works")
    fix = "Install EGL or OSMesa (on Debian: apt install libegl1 libosmesa6), or set video=false."
    found = [Finding("OpenGL", "none works" if gl is None else how, fix if gl is None else None)]
    try:
        import imageio_ffmpeg  # noqa: PLC0415 - only asked for here

        path = imageio_ffmpeg.get_ffmpeg_exe()
        subprocess.run([path, "-version"], capture_output=True, timeout=_TIMEOUT_S, check=True)
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        return [*found, Finding("ffmpeg", f"{error}", "Run pip install --force-reinstall imageio-ffmpeg.")]
    return [*found, Finding("ffmpeg", Path(path).name)]


def check_viewers() -> list[Finding]:
    """The packages that run_mode=view and run_mode=export need."""
    found = []
    for extra, package, use in (
        ("viewer", "viser", "run_mode=view in a browser"),
        ("export", "onnx", "run_mode=export"),
    ):
        is_there = importlib.util.find_spec(package) is not None
        words = use if is_there else f"{package} is not installed, for {use}"
        found.append(Finding(extra, words, None if is_there else f"Run {install_command(extra)}."))
    try:
        words, fix = webbrowser.get().__class__.__name__, None
    except webbrowser.Error:
        words = "none on this machine"
        fix = "View from another: viewer_host=0.0.0.0, and open the address that run_mode=view prints there."
    return [*found, Finding("browser", words, fix)]


def check_machine() -> list[Finding]:
    """Cores, memory and disk."""
    cores, free = num_cores(), shutil.disk_usage(Path.cwd()).free
    few = "Native MuJoCo steps one environment per core at a time: expect half an hour where the docs say ten minutes."
    found = [Finding("cores", str(cores), few if cores < 2 else None)]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        fix = None if memory >= LEAST_MEMORY_BYTES else "Train fewer environments: num_envs=64."
        found.append(Finding("memory", f"{memory / GIB:.1f} GiB", fix))
    fix = None if free >= LEAST_FREE_BYTES else "Checkpoints, videos and compiled programs need some: make room."
    return [*found, Finding("disk", f"{free / GIB:.1f} GiB free here", fix)]


CHECKS: Sequence[Callable[[], list[Finding]]] = (
    check_versions,
    check_collective,
    check_nvidia,
    check_physics,
    check_pictures,
    check_viewers,
    check_machine,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the findings of each check; returns 1 if something that training needs is missing."""
    argparse.ArgumentParser(prog="python -m ksim.doctor", description=(__doc__ or "").splitlines()[0]).parse_args(argv)
    can_train = True
    for check in CHECKS:
        for finding in check():
            console.print(f"{finding.mark:<8} {finding.name:<10} {finding.words}", markup=False)
            if finding.fix is not None:
                console.print(f"{'':<19} {finding.fix}", markup=False)
            can_train = can_train and finding.mark != "missing"
    return 0 if can_train else 1


if __name__ == "__main__":
    sys.exit(main())
