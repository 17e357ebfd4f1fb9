"""Stands in for a program that the docs name, so that their commands run as written, but short and on this machine.

python stand_in.py PROGRAM [ARGUMENT ...]

DOCS_TASK: `walking`, as the docs have it, or `point_mass`, which is trained instead. DOCS_OPTIONS: what makes training
short. DOCS_PORT: of this machine, for the addresses of the docs. DOCS_JOB: the number of a Slurm job.
"""

import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(arguments):
    """Python, whose runs take few iterations and write no reports."""
    if os.environ["DOCS_TASK"] == "point_mass":
        arguments = [a.replace("examples.walking_distributed", "examples.point_mass") for a in arguments]
    host = r"(10\.0\.0\.1|node0):\d+"
    arguments = [re.sub(host, "127.0.0.1:" + os.environ["DOCS_PORT"], a) for a in arguments]
    arguments = [a.replace("RUN_DIR", newest_run()) if "RUN_DIR" in a else a for a in arguments]
    if "pytest" in arguments:
        tests = ["--collect-only", "--quiet", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
        arguments += [*tests, str(ROOT / "tests/nn")]
    elif "ksim.tools.scaling" in arguments:
        arguments += ["--repeats", "1", "--iterations", "1"]
    elif "run_mode=view" in arguments:
        sys.exit(view([sys.executable, *with_last_values([*arguments, "viewer_port=" + os.environ["DOCS_PORT"]])]))
    elif "run_mode=eval" in arguments:
        arguments += ["eval_num_envs=2", "video=false", "plots=false"]
    elif takes_options(arguments) and not {"--help", "run_mode=export"} & {*arguments}:
        arguments += os.environ["DOCS_OPTIONS"].split()
        arguments += ["eval_at_end=false", "tensorboard=false", "video=false", "plots=false"]
    os.execv(sys.executable, [sys.executable, *with_last_values(arguments)])


def takes_options(arguments):
    """Whether a program is a task, and not a script of the docs that has its own arguments."""
    return arguments[0] == "-m" or ".launch(" in Path(arguments[0]).read_text()


def with_last_values(arguments):
    """Arguments in which what is short replaces the option of the docs, as no option may be given twice."""
    last = {argument.partition("=")[0]: argument for argument in arguments if "=" in argument}
    return [argument for argument in arguments if last.get(argument.partition("=")[0], argument) == argument]


def newest_run():
    """The directory that the run before wrote."""
    return str(max(Path("runs").glob("*/run_*"), key=lambda path: path.stat().st_mtime))


def view(command, **options):
    """Opens the page of a viewer in the browser, then stops the viewer; 0 if both worked."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        for line in process.stdout or ():
            print(line, end="")
            address = re.search(r"http://\S+:\d+", line)
            if address:
                with urllib.request.urlopen(address[0]) as page:
                    assert page.status == 200
                process.send_signal(signal.SIGINT)
    return process.returncode


def pip(arguments):
    """Installs nothing; the extras that are to be installed must exist."""
    install, *arguments = arguments
    extras = re.findall(r"^\.\[(.*)\]$", arguments[-1])
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert (install, arguments[0]) == ("install", "-e")
    assert extras
    assert set(extras[0].split(",")) <= set(known)


def job_variables(number):
    """The variables that Slurm sets for the script of a job of two processes."""
    return {"SLURM_JOB_ID": number, "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "node[1-2]"}


def sbatch(arguments):
    """Slurm's sbatch, running the script on this machine."""
    script = Path(arguments[-1]).read_text()
    assert "#SBATCH --nodes 2" in script
    assert "#SBATCH --ntasks-per-node 1" in script
    sys.exit(start(job_variables(os.environ["DOCS_JOB"]), ["bash", arguments[-1]]).wait())


def srun(arguments):
    """Slurm's: two processes with the variables that it sets."""
    # Slurm declares its argument as optional, and takes one after the equals sign alone.
    assert arguments[0] == "--kill-on-bad-exit=0"
    step = {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    step["SLURM_STEP_TASKS_PER_NODE"] = "2"
    place = lambda i: {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}
    sys.exit(max(p.wait() for p in [start(step | place(i), arguments[1:]) for i in range(2)]))


def mpirun(arguments):
    """Open MPI's: processes with the variables that it sets."""
    count = int(arguments[arguments.index("-np") + 1])
    shared = {"OMPI_COMM_WORLD_SIZE": str(count), "OMPI_COMM_WORLD_LOCAL_SIZE": str(count)}
    place = lambda i: {"OMPI_COMM_WORLD_RANK": str(i), "OMPI_COMM_WORLD_LOCAL_RANK": str(i)}
    program = arguments[arguments.index("python") :]
    sys.exit(max(p.wait() for p in [start(shared | place(i), program) for i in range(count)]))


def start(variables, program):
    """A process with more variables."""
    return subprocess.Popen(program, env={**os.environ, **variables})


PROGRAMS = {program.__name__: program for program in (python, pip, sbatch, srun, mpirun)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2:])
