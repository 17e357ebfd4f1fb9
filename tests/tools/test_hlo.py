from ksim.preflight.devices import result_bytes
from ksim.tools.hlo import Program, loop_of

# A loop of 24 passes with a branch in it and an inner loop of 4, an all-reduce in a loop of 16 whose length stands in
# its condition, and a loop of unknown length.
TEXT = """
HloModule jit_step, is_scheduled=true

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %add = f32[8]{0} add(%p, %p)
}

%inner_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %f = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %f)
}

%limited (s: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(16)
  ROOT %lt = pred[]{:T(512)} parameter(0)
}

%unlimited (s: (s32[], f32[8])) -> pred[] {
  ROOT %any = pred[] parameter(0)
}

%small (b: f32[8]) -> f32[8] {
  ROOT %copy = f32[8]{0} copy(%b)
}

%large (b: f32[8]) -> f32[8] {
  %sort = f32[8]{0:T(8,128)} sort(%b), dimensions={0}, to_apply=%fused
  ROOT %call = f32[8]{0} custom-call(%sort), custom_call_target="solve"
}

%rollout_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %loop = (s32[], f32[8]{0}) while(%s), condition=%unlimited, body=%inner_body, \
backend_config={"known_trip_count":{"n":"4"}}
  ROOT %branch = f32[8]{0} conditional(%p, %x, %y), branch_computations={%small, %large}
}

%update_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %start = ((f32[100]{0}), f32[100]{0}) all-reduce-start(%g), to_apply=%fused
  ROOT %done = f32[100]{0} all-reduce-done(%start)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %rollout = (s32[], f32[8]{0}) while(%x), condition=%unlimited, body=%rollout_body, \
backend_config={"known_trip_count":{"n":"24"},"init":0}
  %update = (s32[], f32[8]{0}) while(%rollout), condition=%limited, body=%update_body
  %search = (s32[], f32[8]{0}) while(%update), condition=%unlimited, body=%inner_body
  ROOT %gather = bf16[2,3]{1,0} all-gather(%search), dimensions={0}
}
"""


def test_kernels_of_loops_and_of_the_largest_branch_are_counted():
    # 24 * (4 of the inner loop + 2 of the larger branch) + 16 * 1 + 1 + 1.
    program = Program(TEXT)
    assert program.kernels("rollout_body") == 6
    assert program.kernels() == 24 * 6 + 16 + 2
    loops = {(loop.trip_count, loop.around): loop.kernels for loop in program.loops()}
    assert loops == {(24, ()): 6, (4, (24,)): 1, (16, ()): 1, (None, ()): 1}


def test_collectives_are_counted_with_their_bytes_and_passes():
    # 100 numbers of 4 bytes in 16 passes, without the operand that the start returns as well; 6 of 2 bytes.
    assert Program(TEXT).collectives() == {"all-reduce": (16, 16 * 400), "all-gather": (1, 12)}


def test_loop_with_the_most_kernels_is_the_one_that_is_meant():
    loops = Program(TEXT).loops()
    rollout = loop_of(loops, lambda loop: loop.trip_count in (4, 24))
    assert rollout is not None
    assert rollout.trip_count == 24
    assert loop_of(loops, lambda loop: loop.trip_count == 7) is None


def test_bytes_of_types():
    assert result_bytes("(f32[8,2]{1,0}, s32[], pred[3]{0}, bf16[4]{0}, f8e4m3fn[5])") == 64 + 4 + 3 + 8 + 5
    assert result_bytes("c64[2]{0}") == 16
