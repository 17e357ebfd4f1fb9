"""Programs of a policy that somebody has made to do more than compute."""

import dataclasses
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

import ksim
from ksim.checkpoint.format import write_checkpoint
from ksim.errors import ConfigError
from ksim.nn import ActorCriticOutput, Gaussian, MlpActorCritic
from ksim.policy import program_safety
from ksim.policy.load import PROGRAM, START
from ksim.policy.program import load_program, policy_programs
from ksim.policy.program_safety import PLATFORMS, RefusedError, check_apart, read_programs
from tests.policy.test_program import SIZES, normalized
from tests.support.checkpoints import DOCUMENT
from tests.support.still import Memoryless

# Of one row: one of an unknown number would not compile with what is put in here, and do no harm.
OBS = {"actor": jax.ShapeDtypeStruct((1, 2), jnp.float32)}
CALLBACK = "xla_ffi_python_cpu_callback"


def exported(function, *shapes, **options):
    return jax.export.export(jax.jit(function), platforms=PLATFORMS, **options)(*shapes)


def negate(arrays, obs, memory):
    return -obs["actor"], memory


STEP = exported(negate, {}, OBS, {})
START_PROGRAM = bytes(exported(lambda arrays: {}, {}).serialize())


def changed(**changes):
    """The program of a policy, with other contents."""
    return bytes(dataclasses.replace(STEP, **changes).serialize())


def with_operation(line):
    """The program with another operation in the place of the negation."""
    (before,) = [x.strip() for x in STEP.mlir_module().splitlines() if "stablehlo.negate" in x]
    result, argument = before.split()[0], before.split()[3]
    line = re.sub(r"\bT\b", "tensor<1x2xf32>", line)
    after = f"{result} = {line.replace('%x', argument)}"
    with ir.Context() as context, ir.Location.unknown():
        stablehlo.register_dialect(context)
        stablehlo.deserialize_portable_artifact(context, STEP.mlir_module_serialized)  # loads the dialect of functions
        module = ir.Module.parse(STEP.mlir_module().replace(before, after))
        return changed(mlir_module_serialized=stablehlo.serialize_portable_artifact(module, "1.9.0"))


def test_program_as_ksim_exports_it_passes():
    read_programs(changed(), START_PROGRAM)
    read_programs(with_operation("stablehlo.abs %x : T"), START_PROGRAM)


OPERATIONS = {
    f"custom call '{CALLBACK}'": (
        f"stablehlo.custom_call @{CALLBACK}(%x) {{mhlo.backend_config = {{index = 0 : ui64}}}} : (T) -> T"
    ),
    "custom call 'lapack_spotrf_ffi'": "stablehlo.custom_call @lapack_spotrf_ffi(%x) : (T) -> T",
    "custom call 'shape_assertion'": 'stablehlo.custom_call @shape_assertion(%x) {backend_config = "x"} : (T) -> T',
    "custom call 'mhlo.erf'": "stablehlo.custom_call @mhlo.erf(%x) : (T) -> T",
    "'stablehlo.all_reduce'": '"stablehlo.all_reduce"(%x) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): '
    "stablehlo.return %a : tensor<f32> }) {replica_groups = dense<0> : tensor<1x1xi64>} : (T) -> T",
    "'stablehlo.partition_id'": "stablehlo.abs %x : T\n%id = stablehlo.partition_id : tensor<ui32>",
    "the composite 'somebody.else'": (
        'stablehlo.composite "somebody.else" %arg0, %x {decomposition = @main} : (tensor<i32>, T) -> T'
    ),
    "'stablehlo.abs' with 'mhlo.frontend_attributes'": (
        'stablehlo.abs %x {mhlo.frontend_attributes = {_xla_compute_type = "host"}} : T'
    ),
}


def program_of(function, rows=1):
    """The program of a step that has a function for its action."""
    step = exported(lambda arrays, obs, memory: (function(obs["actor"]), memory), {}, {"actor": row_of(rows)}, {})
    return bytes(step.serialize())


def row_of(rows):
    return jax.ShapeDtypeStruct((rows, 2), jnp.float32)


def turned(num_times, function):
    return lambda x: jax.lax.fori_loop(0, num_times, lambda _, y: function(y), x)


ENDLESS = {
    "handles .* numbers for one row": turned(10**9, jnp.sin),
    "handles .* numbers for": turned(100, turned(100, turned(100, turned(10, turned(100, jnp.sin))))),
    "handles .* for one row": turned(10_000, lambda x: x + jnp.sum(jnp.ones((1000, 1000)) * x[0, 0])),
    "an array of 8589934592 numbers": lambda x: jnp.sort(jnp.broadcast_to(x, (2**32, 2)), axis=0)[:1],
    "it handles .* numbers": lambda x: (jnp.ones((2**13, 2**13)) @ jnp.full((2**13, 2**13), x[0, 0]))[:1, :2],
}


def test_loops_and_sizes_of_policies_pass():
    def step(x):
        weights = jnp.ones((512, 512))
        y = jax.lax.scan(lambda y, _: (jnp.tanh(y @ weights), None), jnp.ones((x.shape[0], 512)), None, length=100)[0]
        return turned(3, jnp.sin)(jnp.sort(x, axis=-1)) + y[:, :2] + jax.random.normal(jax.random.key(0), (2,))

    (rows,) = jax.export.symbolic_shape("b")
    for num in (1, rows):
        read_programs(program_of(step, num), START_PROGRAM)


LOOP = """stablehlo.abs %x : T
%start = stablehlo.constant dense<FIRST> : tensor<i32>
%one = stablehlo.constant dense<STEP> : tensor<i32>
%end = stablehlo.constant dense<MOST> : tensor<i32>
%loop:2 = "stablehlo.while"(%start, %end) ({
^bb0(%i: tensor<i32>, %e: tensor<i32>):
  %c = stablehlo.compare LT, %i, BOUND, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%j: tensor<i32>, %f: tensor<i32>):
  %n = stablehlo.add %j, %one : tensor<i32>
  stablehlo.return NEXT, %f : tensor<i32>, tensor<i32>
}) : (tensor<i32>, tensor<i32>) -> (tensor<i32>, tensor<i32>)"""
COUNTED = {"FIRST": "0", "STEP": "1", "MOST": "2000000000", "BOUND": "%end", "NEXT": "%n"}


def looped(**changes):
    text = LOOP
    for name, value in (COUNTED | changes).items():
        text = text.replace(name, value)
    return with_operation(text)


@pytest.mark.parametrize("changes", [{"MOST": "9"}, {"MOST": "9", "BOUND": "%e"}, {"FIRST": "5", "MOST": "2"}], ids=str)
def test_loop_that_counts_to_a_small_number_passes(changes):
    read_programs(looped(**changes), START_PROGRAM)


def counting(step, end):
    """A loop that counts by a step, and beyond the largest number begins anew."""
    return lambda x: jax.lax.while_loop(lambda y: y[0] < end, lambda y: (y[0] + step, jnp.sin(y[1]) + 1), (0, x))[1]


def until(x):
    """Never ends for the zeros that it is tried with."""
    return jax.lax.while_loop(lambda y: (y < 10).all(), lambda y: y + x, x)


@pytest.mark.parametrize("function", [counting(2**30, 2**31 - 1), until], ids=["anew", "until"])
def test_loop_that_never_ends_is_refused_by_the_process_that_tries_it(function, monkeypatch):
    monkeypatch.setattr(program_safety, "_TIMEOUT_S", 5.0)
    program = program_of(function)
    read_programs(program, START_PROGRAM)
    with pytest.raises(RefusedError, match="could not be compiled and run within 5 s"):
        check_apart(program, START_PROGRAM)


def test_loop_that_counts_in_floats_passes():
    halves = lambda x: jax.lax.while_loop(lambda y: y[0] < 1.0, lambda y: (y[0] + 0.5, jnp.sin(y[1])), (0.0, x))[1]
    read_programs(program_of(halves), START_PROGRAM)


def test_program_that_takes_too_much_memory_for_its_rows_is_refused_before_it_does(monkeypatch):
    (rows,) = jax.export.symbolic_shape("b")
    large = lambda x: x + jnp.sort(jnp.broadcast_to(x[:, :1], (x.shape[0], 1000)), axis=1)[:, -2:]
    program = load_program(program_of(large, rows), START_PROGRAM)
    monkeypatch.setattr(program_safety, "MAX_BYTES", 10**6)
    assert program({}, {"actor": np.ones((1, 2), np.float32)})[0].shape == (1, 2)
    with pytest.raises(RefusedError, match=r"it takes .* GiB of memory, and may take"):
        program({}, {"actor": np.ones((500, 2), np.float32)})


HEADERS = {
    "exported by an older JAX .calling convention 8; this one, .*, runs 9 to": {"calling_convention_version": 8},
    "exported by a newer JAX .calling convention 99": {"calling_convention_version": 99},
    "more than one device": {"nr_devices": 2},
    "safety checks switched off": {"disabled_safety_checks": (jax.export.DisabledSafetyCheck.platform(),)},
    "for the platforms": {"platforms": ("tpu",)},
    "cannot be read": {"mlir_module_serialized": STEP.mlir_module_serialized[:-300]},
}


ANOTHER = exported(lambda arrays, obs, memory: (obs["actor"][0], memory), {}, OBS, {})
LONG = [{}, {"BOUND": "%e"}, {"FIRST": "-2000000000", "MOST": "0"}, {"STEP": "2"}]
REFUSED = {
    **{words: (with_operation, line, words) for words, line in OPERATIONS.items()},
    **{words: (program_of, function, words) for words, function in ENDLESS.items()},
    **{f"a long loop {changes}": (looped, changes, "numbers for one row") for changes in LONG},
    **{words: (changed, changes, words) for words, changes in HEADERS.items()},
    "itself": (with_operation, "func.call @main(%arg0, %x) : (tensor<i32>, T) -> T", "calls itself|cannot be read"),
    "another function": (lambda step: bytes(step.serialize()), ANOTHER, "inputs and outputs are not those"),
}


@pytest.mark.parametrize(("make", "argument", "words"), REFUSED.values(), ids=REFUSED)
def test_program_is_refused_before_it_compiles(make, argument, words):
    program = make(**argument) if isinstance(argument, dict) else make(argument)
    with pytest.raises(RefusedError, match=words):
        read_programs(program, START_PROGRAM)


def test_crash_of_the_process_that_tries_a_program_is_an_error_here(tmp_path, monkeypatch):
    (tmp_path / "dies.py").write_text("import os, sys; print('what it was', file=sys.stderr, flush=True); os.abort()")
    monkeypatch.setattr(program_safety, "__file__", str(tmp_path / "dies.py"))
    with pytest.raises(RefusedError, match=r"has crashed over it \(exit code -6, 'what it was'\)"):
        check_apart(b"no", b"program")


def crafted_checkpoint(path, step):
    """A checkpoint whose program is another, with digests that are right."""
    arrays = {PROGRAM: np.frombuffer(step, np.uint8), START: np.frombuffer(START_PROGRAM, np.uint8)}
    write_checkpoint(path / "checkpoints" / "1", arrays, {**DOCUMENT, "versions": {"jax": "0.4.1"}})
    return path


# Those of an older JAX are said with both versions.
CRAFTED = {
    "calls into the process": (with_operation(OPERATIONS[f"custom call '{CALLBACK}'"]),
        rf"program of the policy in checkpoint .*1 is not run: it holds the custom call '{CALLBACK}'.*task=\.\.\."),
    "another jax": (changed(calling_convention_version=8),
        rf"older JAX .* JAX 0\.4\.1, and this is {jax.__version__}.*task="),
}  # fmt: skip


@pytest.mark.parametrize(("program", "words"), CRAFTED.values(), ids=CRAFTED)
def test_checkpoint_with_another_program_is_an_error_and_no_crash(program, words, tmp_path):
    path = crafted_checkpoint(tmp_path, program)
    with pytest.raises(ConfigError, match=words):
        ksim.load_policy(path)


class Applies(Memoryless):
    """A policy of one function."""

    function: object

    def __call__(self, obs, carry):
        mean = self.function(obs["actor"])
        return ActorCriticOutput(Gaussian(mean, jnp.ones(mean.shape)), jnp.zeros(())), carry


COMPUTE = {
    "exact GELU": lambda x: jax.nn.gelu(x, approximate=False),
    "sorting": lambda x: jax.lax.top_k(jnp.sort(x)[jnp.argsort(x)], 3)[0],
    "special functions": lambda x: jnp.arcsin(jnp.tanh(x)) + jnp.sinh(x) + jax.scipy.special.erfinv(jnp.tanh(x)),
    "loops and branches": lambda x: jax.lax.while_loop(
        lambda y: jnp.sum(y**2) > 1, lambda y: y / 2, jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)
    ),
    "random numbers": lambda x: x + jax.random.normal(jax.random.key(0), (5,)),
    "attention": lambda x: jax.nn.dot_product_attention(*[jnp.outer(x, x)[None, :, None]] * 3)[0, 0, 0],
    "convolution": lambda x: jnp.convolve(x, x, mode="same"),
    "complex numbers": lambda x: jnp.abs(x + 1j * x),
    "small floats": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
}


@pytest.mark.parametrize("function", COMPUTE.values(), ids=COMPUTE)
def test_programs_of_usual_networks_pass(function):
    policy_programs(normalized(Applies(function)), SIZES)


@pytest.mark.parametrize("std", ["state_independent", "learned"])
def test_program_of_ksims_own_network_is_compiled_apart(std):
    check_apart(*policy_programs(normalized(MlpActorCritic(SIZES, 3, std=std, key=jax.random.key(0))), SIZES))


def test_policy_that_needs_a_library_is_refused_when_it_is_exported():
    solve = lambda x: jnp.linalg.solve(jnp.eye(5) + jnp.outer(x, x), x)
    with pytest.raises(ConfigError, match=r"would not be loaded: it holds the custom call .*load_policy\(path, ta"):
        policy_programs(normalized(Applies(solve)), SIZES)
