// What the module was built from, held against the sources beside it, where there are any. CMakeLists.txt defines the
// digest for this file alone, which is compiled again whenever a source changes.
#include <pybind11/pybind11.h>

#include "bindings_parts.h"

void register_sources(pybind11::module_& m) {
  m.attr("SOURCES_DIGEST") = SK_SOURCES_DIGEST;
  const pybind11::module_ version = pybind11::module_::import("superkernel.core.version");
  version.attr("check_core")(m.attr("__spec__").attr("origin"), SK_SOURCES_DIGEST);
}
