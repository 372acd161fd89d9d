// What the files of bindings share: each part registers its own classes, and some arguments mean the same in all.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/kernel.h"
#include "sim/engines/target.h"

void register_kernel(pybind11::module_& m);
void register_crash(pybind11::module_& m);
void register_calls(pybind11::module_& m);
void register_machine(pybind11::module_& m);
void register_engines(pybind11::module_& m);
void register_device(pybind11::module_& m);
void register_recorder(pybind11::module_& m);
void register_program(pybind11::module_& m);
void register_probe(pybind11::module_& m);
void register_sync(pybind11::module_& m);
void register_scheduler(pybind11::module_& m);
void register_entries(pybind11::module_& m);

// Warns where the module is older than its sources.
void register_sources(pybind11::module_& m);

// The target of a flat dict {"section.field": value}; KeyError and TypeError as Python would raise them.
sk::sim::Target target_from(const pybind11::dict& fields);

// The fields of an error of superkernel.core.errors.
struct ErrorText {
  std::string message;
  std::string location;
  std::string expected;
  std::string found;
  std::string hint;
};

// Raises the error class of that name.
[[noreturn]] void raise(const char* kind, const ErrorText& text, const pybind11::object& details = pybind11::none());

[[noreturn]] void raise_no_memory(std::size_t bytes);

// True where the interpreter goes down: a thread that then waits for the GIL is ended or hangs.
bool shutting_down();

// What `_core.Kernel` is made of. Casting costs more than a small launch: callers keep the reference, and the object.
class KernelObject;
KernelObject& kernel_object(const pybind11::handle& kernel);
sk::Kernel& runtime_kernel(KernelObject& kernel);

// One launch on `io_count` pointers, with the GIL held on entry and return. Whether the GIL is given up meanwhile is
// decided by measuring. `closed`: see sk::RunOptions. Throws pybind11::error_already_set.
void launch(KernelObject& kernel, std::span<std::uint8_t* const> io, std::int64_t watchdog_ns,
            const std::atomic<bool>* closed = nullptr);
