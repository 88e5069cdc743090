"""Comparison of a run in eager mode with a compiled one: fused kernels count at the layers that both runs have."""

from __future__ import annotations

from comparisons import compare, regressions
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import Rows

from annot.analyze.comparison.fused import fused_layers
from annot.attribution.attribute import Attribution, attribute

US = 1000
BLOCK = ("ln", "fc", "act")


def _run(kernels: list[tuple[str, int]], *, compiled: bool, steps: int = 2) -> Attribution:
    """Steps of a model of blocks `h.0`, `h.1`, ... whose kernels are in ranges with these texts."""
    rows, clock = Rows(), 0
    for step in range(steps):
        begin = clock
        clock += 3
        for text, length in kernels:
            block = text[:3]
            if not compiled and "+" not in text:
                rows.range(f"{block} Block |fwd", clock, clock + 9)
            rows.range(f"{text} |fwd", clock + 2, clock + 8)
            rows.kernel(clock + 3, (10**7 + US * clock, 10**7 + US * clock + length))
            clock += 10
        rows.range("Forward Net |fwd", begin + 1, clock + 8)
        if compiled:
            rows.range("Forward CompiledGraph#0 |fwd", begin + 2, clock + 7)
        rows.range(f"Batch {step} |step", begin, clock + 9)
        clock += 10
    return attribute(rows.build())


def _eager(blocks: int, length: int) -> Attribution:
    return _run([(f"h.{n}.{name} {name.upper()}", length) for n in range(blocks) for name in BLOCK], compiled=False)


def test_a_compiled_run_is_compared_at_its_blocks() -> None:
    """The rows of fused layers are left out, and the block has their change: no row is in one run only."""
    fused = [(f"h.{n}.ln+h.{n}.fc+h.{n}.act LN+FC+ACT inside=2,Block", 1500) for n in range(2)]
    eager, compiled = _eager(2, 1000), _run(fused, compiled=True)
    assert compare(compiled, eager).comparability.comparable
    comparison = compare(eager, compiled)
    shown = comparison.rows.filter(~comparison.rows["explained"])
    assert {(row["layer"], row["a_ns"], row["b_ns"], row["only_in"]) for row in shown.to_dicts()} == {
        ("h.0", 3000, 1500, None), ("h.1", 3000, 1500, None),
    }  # fmt: skip
    assert comparison.rows["own_difference_ns"].sum() == comparison.whole["difference_ns"] == -3000
    assert comparison.comparability.comparable
    assert comparison.rows.filter("fused").height == 8


def test_a_kernel_across_blocks_counts_in_the_model() -> None:
    """`h.0.act+h.1.ln` is in neither block: it counts to what is around both, here to the step, and is no row."""
    kernels = [("h.0.ln+h.0.fc LN+FC inside=2,Block", 1000), ("h.0.act+h.1.ln ACT+LN", 700)]
    kernels.append(("h.1.fc+h.1.act FC+ACT inside=2,Block", 1000))
    comparison = compare(_eager(2, 1000), _run(kernels, compiled=True))
    own = comparison.rows.drop_nulls("own_difference_ns").select("layer", "own_difference_ns", "explained")
    assert set(own.rows()) >= {("(batch)", 700, True), ("h.0", -2000, False), ("h.1", -2000, False)}


def test_a_layer_that_one_run_lacks_stays_a_row() -> None:
    """Only layers that are in fused kernels of the other run are compared elsewhere."""
    kernels = [("h.0.ln+h.0.fc LN+FC inside=2,Block", 1000), ("h.9.extra Extra", 5000)]
    comparison = compare(_eager(1, 1000), _run(kernels, compiled=True))
    alone = comparison.rows.filter(~comparison.rows["fused"]).drop_nulls("only_in")
    assert {(row["layer"], row["module"], row["only_in"]) for row in alone.to_dicts()} == {
        ("h.0.act", "ACT", "a"), ("h.9.extra", "Extra", "b"),
    }  # fmt: skip


def test_a_slow_fused_kernel_is_a_regression_of_its_block() -> None:
    """The fused kernel is no new row, and just below the threshold there is no regression."""
    for length, slower in ((3200, ["h.0"]), (3100, [])):
        fused = [
            (f"h.{n}.ln+h.{n}.fc+h.{n}.act LN+FC+ACT inside=2,Block", time) for n, time in enumerate((length, 3000))
        ]
        assert regressions(compare(_eager(2, 1000), _run(fused, compiled=True)), 1.05)["layer"].to_list() == slower


layers = st.sets(st.sampled_from([f"h.{n}.{name}" for n in range(2) for name in BLOCK]), min_size=1, max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(layers, st.integers(1, 5000)), min_size=1, max_size=6), st.booleans())
def test_differences_add_up_for_any_fusion(kernels: list[tuple[set[str], int]], swap: bool) -> None:
    """Each nanosecond of the difference counts to one row, and fused kernels of known layers are never shown."""
    texts = []
    for members, length in kernels:
        names = sorted(members)
        blocks = {name[:3] for name in names}
        inside = " inside=2,Block" if len(blocks) == 1 else ""
        classes = "+".join(dict.fromkeys(name[4:].upper() for name in names))
        texts.append((f"{'+'.join(names)} {classes}{inside}", length))
    sides = [_eager(2, 1000), _run(texts, compiled=True)]
    comparison = compare(*(sides[::-1] if swap else sides))
    rows = comparison.rows
    assert abs(rows["own_difference_ns"].sum() - comparison.whole["difference_ns"]) < 0.01
    assert not any("+" in layer for layer in rows.filter(~rows["explained"])["layer"])


def test_two_compiled_runs_with_other_kernels() -> None:
    """Kernels that both runs have are compared as they are, others at the layer around."""
    a = [("h", "forward"), ("h.ln+h.fc", "forward"), ("h.act+h.drop", "forward")]
    b = [("h", "forward"), ("h.ln+h.fc", "forward"), ("h.act", "forward"), ("h.drop", "backward")]
    assert fused_layers(a, b) == ({("h.act+h.drop", "forward")}, {("h.act", "forward")})
    assert fused_layers(b, b) == (set(), set())


def test_a_block_whose_own_kernels_are_fused_is_in_both_runs() -> None:
    """In eager mode the block launches kernels itself; compiled, all of its time is in fused kernels inside."""
    eager = _run([("h.0 Block", 5000), ("h.0.ln LN", 1000)], compiled=False)
    comparison = compare(eager, _run([("h.0+h.0.ln Block+LN inside=2,Block", 4000)], compiled=True))
    assert comparison.comparability.comparable
    shown = comparison.rows.filter(~comparison.rows["explained"])
    assert shown.select("layer", "a_ns", "b_ns").rows() == [("h.0", 6000, 4000)]


def test_a_layer_with_a_part_of_its_time_in_a_fused_kernel() -> None:
    """Its kernels that are not fused would make it look faster than it is. A layer with others inside remains."""
    eager = {(path, "backward") for path in ("h", "h.ln", "h.fc")}
    compiled = {(path, "backward") for path in ("h", "h.fc", "h.ln+h.fc", "h.fc+h")}
    assert fused_layers(eager, compiled) == (
        {("h.ln", "backward"), ("h.fc", "backward")},
        {("h.fc", "backward"), ("h.ln+h.fc", "backward"), ("h.fc+h", "backward")},
    )
