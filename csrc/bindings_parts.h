// What the files of bindings share: each part registers its own classes, and some arguments mean the same in all.
#pragma once

#include <pybind11/pybind11.h>

#include "sim/engines/target.h"

void register_engines(pybind11::module_& m);
void register_device(pybind11::module_& m);

// The target of a flat dict {"section.field": value}; KeyError and TypeError as Python would raise them.
sk::sim::Target target_from(const pybind11::dict& fields);
