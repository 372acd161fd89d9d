// The io table of a run: base pointers from arrays, buffers and integers, and references to what holds them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bindings_parts.h"

// The pointers of one run and references to the objects behind them. `release()` must be called with the GIL held;
// there is no destructor on purpose: a thread that ends without the GIL must not touch reference counts.
class IoPins {
 public:
  // Among the flags of an array.
  static constexpr int kContiguous = pybind11::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_;

  IoPins(const pybind11::handle& io, std::size_t expected) {
    const pybind11::object fast =
        pybind11::reinterpret_steal<pybind11::object>(PySequence_Fast(io.ptr(), "io must be a sequence"));
    if (!fast) throw pybind11::error_already_set();
    const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
    if (count != expected) {
      raise("InputError",
            {"wrong number of base pointers", "argument io", std::to_string(expected), std::to_string(count), ""});
    }
    if (count > kInline) {
      more_pointers_.resize(count);
      more_owners_.resize(count);
    }
    for (; size_ < count; ++size_) {
      try {
        pin(PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(size_)), count > kInline);
      } catch (...) {
        release();
        throw;
      }
    }
  }
  IoPins(const IoPins&) = delete;
  IoPins& operator=(const IoPins&) = delete;

  std::span<std::uint8_t* const> pointers() const {
    return {more_pointers_.empty() ? pointers_.data() : more_pointers_.data(), size_};
  }

  void release() {
    PyObject** owners = more_owners_.empty() ? owners_.data() : more_owners_.data();
    for (std::size_t i = 0; i < size_; ++i) Py_XDECREF(owners[i]);
    size_ = 0;
  }

 private:
  static constexpr std::size_t kInline = 32;

  void pin(PyObject* item, bool more) {
    PyObject*& owner = more ? more_owners_[size_] : owners_[size_];
    std::uint8_t*& pointer = more ? more_pointers_[size_] : pointers_[size_];
    owner = nullptr;
    if (pybind11::isinstance<pybind11::array>(item)) {
      const auto* array = pybind11::detail::array_proxy(item);
      if ((array->flags & kContiguous) == 0) raise_not_contiguous();
      owner = Py_NewRef(item);
      pointer = reinterpret_cast<std::uint8_t*>(array->data);
    } else if (PyLong_Check(item)) {
      pointer = static_cast<std::uint8_t*>(PyLong_AsVoidPtr(item));
      if (pointer == nullptr && PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
    } else {
      owner = PyMemoryView_FromObject(item);
      if (owner == nullptr) throw pybind11::error_already_set();
      if (PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(owner), 'C') == 0) {
        Py_CLEAR(owner);
        raise_not_contiguous();
      }
      pointer = static_cast<std::uint8_t*>(PyMemoryView_GET_BUFFER(owner)->buf);
    }
  }

  [[noreturn]] void raise_not_contiguous() const {
    raise("InputError", {"the array is not contiguous", "argument io, item " + std::to_string(size_),
                         "C order without gaps", "a strided view", "numpy.ascontiguousarray"});
  }

  std::size_t size_ = 0;
  std::array<std::uint8_t*, kInline> pointers_;
  std::array<PyObject*, kInline> owners_;
  std::vector<std::uint8_t*> more_pointers_;
  std::vector<PyObject*> more_owners_;
};
