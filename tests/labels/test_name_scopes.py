"""Names of operations: which scope, which operation, which phase."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot.labels import tag
from annot.labels.name_scopes import Scopes, is_operation, operation


@pytest.mark.parametrize(
    ("name", "scope", "what", "phase"),
    [
        ("model/dense/MatMul:MatMul", "model/dense", "MatMul", "forward"),
        ("model/dense/BiasAdd/ReadVariableOp:ReadVariableOp", "model/dense", "ReadVariableOp", "forward"),
        ("StatefulPartitionedCall/model/dense/Relu:Relu#shape=(f32[1])#", "model/dense", "Relu", "forward"),
        ("StatefulPartitionedCall_1/gradient_tape/net/fc/ReluGrad:ReluGrad", "net/fc", "ReluGrad", "backward"),
        ("gradient_tape/replica_3/model/truediv/RealDiv:RealDiv", "model/truediv", "RealDiv", "backward"),
        ("replica_1/model/dense/MatMul:MatMul", "model/dense", "MatMul", "forward"),
        ("gradients/model/dense/MatMul_grad/MatMul_1:MatMul", "model/dense/MatMul", "MatMul", "backward"),
        ("training/SGD/gradients/gradients/conv/Conv2D_grad/Relu_3", "conv/Conv2D", "Relu", "backward"),
        ("Adam/Adam/update_5/ResourceApplyAdam", "Adam/Adam/update_5", "ResourceApplyAdam", "optimizer"),
        ("adam/Sqrt_2:Sqrt", "adam", "Sqrt", "optimizer"),
        ("w/update/Op_1:ResourceSparseApplyFtrl", "w/update", "ResourceSparseApplyFtrl", "optimizer"),
        ("cond_17/then/_256/cond_17/AdamWeightDecay/Cast:Cast", "cond_17/AdamWeightDecay", "Cast", "optimizer"),
        ("cond/then/_25/cond/cond_1/else/_3/net/fc/Cast:Cast", "net/fc", "Cast", "forward"),
        ("n/_3:_HostRecv#from=RemoteCall,to=Identity_1#::#edge_name=a#", "n", "_HostRecv", "forward"),
        ("MakeTensorFromProto", "", "MakeTensorFromProto", "forward"),
        ("Cast_4", "", "Cast", "forward"),
        ("jit(step)/jit(main)/jvp(MLP)/Dense_0/dot_general", "MLP/Dense_0", "dot_general", "forward"),
        ("jit(step)/transpose(jvp(MLP))/Dense_0/dot_general", "MLP/Dense_0", "dot_general", "backward"),
        ("jit(step)/jvp(MLP)/jit(relu)/max", "MLP", "max", "forward"),
        ("jit(step)/jvp()/reduce_sum;jit(step)/jvp(MLP)/mul", "", "reduce_sum", "forward"),
        ("pmap(step)/vmap(jvp(enc))/while/body/closed_call/layer_3/add", "enc/layer_3", "add", "forward"),
        ("jit(f)/cond/branch_1_fun/block/mul", "block", "mul", "forward"),
        ("jit(f)/transpose(jvp(net))/checkpoint/rematted_computation/block/mul", "net/block", "mul", "backward"),
        ("jit(train_step)/optimizer/sub", "optimizer", "sub", "optimizer"),
        ("", "", "", "forward"),
        ("////", "", "", "forward"),
    ],
)  # fmt: skip
def test_names(name: str, scope: str, what: str, phase: str) -> None:
    """Functions, replicas and control flow go; gradients and optimizers are phases."""
    said = operation(name)
    assert ("/".join(said.scope), said.name, said.phase) == (scope, what, phase)


@pytest.mark.parametrize(
    "event",
    [
        "ExecutorState::Process",
        "EagerLocalExecute: MatMul",
        "train",
        "void gemm<float>(int)",
        "$train.py:12 main",
        "a b:C",
        ":C",
    ],
)
def test_events_that_are_no_operations(event: str) -> None:
    """Names of functions, Python frames and kernels are not taken for operations."""
    assert not is_operation(event)


def test_gradient_of_a_named_operation() -> None:
    """A gradient belongs to the layer of its operation, if the file shows that its scope ends with an operation."""
    scopes = Scopes()
    for name in ("model/dense/MatMul:MatMul", "model/norm/mul:Mul"):
        scopes.add(name)
    assert scopes.levels("gradient_tape/model/dense/MatMul/MatMul_1:MatMul")[-1] == "model/dense |bwd"
    assert scopes.levels("gradient_tape/model/dense/MatMul:MatMul")[-1] == "model/dense |bwd"
    scopes.add("dense/MatMul:MatMul")
    assert scopes.levels("gradient_tape/dense/MatMul/MatMul_1:MatMul")[-1] == "dense |bwd"
    assert scopes.levels("gradient_tape/model/unseen/add/Neg:Neg")[-1] == "model/unseen/add |bwd"
    assert scopes.levels("jit(f)/transpose(jvp(model))/other/mul")[-1] == "model/other |bwd"


@settings(max_examples=examples(100), deadline=None, database=None, derandomize=True)
@given(st.text(st.sampled_from('ab/_()0:;# "jit') | st.characters(), max_size=60))
def test_levels_of_any_name(name: str) -> None:
    """Whatever the name, its levels are texts that the grammar reads back, each inside the one before."""
    scopes = Scopes()
    scopes.add(name)
    said = [tag.parse(text) for text in scopes.levels(name)]
    paths = [part.layer for part in said if part is not None]
    assert len(paths) == len(said)
    assert all(inner.startswith(f"{outer}/") for outer, inner in pairwise(paths))


def test_deep_names_are_bounded() -> None:
    """Neither very long nor very deep names have very many levels."""
    assert len(operation("a/" * 10_000 + "b:C").scope) <= 32
    assert len(operation("jit(f)/" + "transpose(" * 3000 + ")" * 3000 + "/a/b").scope) <= 32


def test_the_prefix_of_a_transfer_is_no_part_of_the_scope() -> None:
    """Only the prefix goes: a layer may have such a name itself."""
    assert operation("_send_my_recv_net/fc/Shape_0:_Send#from=,to=#").scope == ("my_recv_net", "fc")
    assert operation("_recv_net/fc/Shape_0:_Recv#from=,to=#").scope == ("net", "fc")


def test_names_are_read_up_to_4096_characters_and_32_levels() -> None:
    assert is_operation("a" * 4093 + ":Op")
    assert not is_operation("a" * 4094 + ":Op")
    assert operation("a/" * 33 + "b:C").scope == ("a",) * 32
