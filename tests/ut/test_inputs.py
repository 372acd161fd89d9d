"""What a call accepts as inputs, what it refuses, and how it says so."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError
from superkernel.core.tensor import TensorType
from superkernel.runtime.inputs import as_dense, as_inputs, bind_arguments

F32 = TensorType(DType.F32, (2, 3))
I64 = TensorType(DType.I64, (3,))


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **named: Any) -> Any:
        return self._array.__dlpack__(**named)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class OnlyInterface:
    def __init__(self, array: Any) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize(
    "wrap", [OnlyDlpack, OnlyInterface, lambda a: a, lambda a: a.copy(order="F"), lambda a: a.tolist()]
)
def test_accepts_arrays_of_all_kinds(wrap: Any) -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    dense = as_dense(wrap(data), F32)
    assert dense.flags.c_contiguous
    assert dense.dtype == np.float32
    np.testing.assert_array_equal(dense, data)


def test_no_copy_of_what_fits() -> None:
    data = np.zeros((2, 3), np.float32)
    assert as_dense(data, F32) is data


def test_foreign_byte_order_is_converted() -> None:
    data = np.arange(6).reshape(2, 3).astype(">f4")
    np.testing.assert_array_equal(as_dense(data, F32), data.astype(np.float32))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((2, 3)), "element type"),
        (np.zeros((3, 2), np.float32), "wrong shape"),
        (np.zeros(6, np.float32), "wrong shape"),
        ("text", "not numbers"),
        ([[1, 2, 3], [4, 5]], "rectangular"),
        (None, "not numbers"),
        ([[True] * 3] * 2, "not numbers"),
    ],
)
def test_refuses(value: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        as_dense(value, F32)


def test_python_numbers_must_fit() -> None:
    np.testing.assert_array_equal(as_dense([1, 2, 3], I64), [1, 2, 3])
    with pytest.raises(InputError, match="not numbers"):
        as_dense([1.5, 2, 3], I64)
    with pytest.raises(InputError, match="does not fit"):
        as_dense([300], TensorType(DType.I8, (1,)))
    assert as_dense(array.array("q", [1, 2, 3]), I64).tolist() == [1, 2, 3]


def test_binding_like_a_call() -> None:
    types = {"a": F32, "b": I64}
    assert bind_arguments(types, (1,), {"b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(InputError) as caught:
        bind_arguments(types, (1, 2, 3), {"a": 1, "c": 4})
    text = str(caught.value)
    assert "too many inputs" in text
    assert "twice" in text
    assert "unknown input 'c'" in text
    with pytest.raises(InputError, match="input 'b': missing"):
        bind_arguments(types, (1,), {})


def test_all_problems_at_once() -> None:
    with pytest.raises(InputError) as caught:
        as_inputs({"a": F32, "b": I64}, {"a": np.zeros(1), "b": np.zeros(2)})
    assert len(caught.value.violations) == 2
    assert "input 'a'" in str(caught.value)
    assert "input 'b'" in str(caught.value)
