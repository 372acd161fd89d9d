// The quick ways into a launch: calls with checked arrays (`DirectCall`, base of superkernel.Kernel) and calls on bound
// buffers (`BoundCall`, base of superkernel.BoundKernel; also as a C function, see superkernel_call.h).
//
// Model: all that a call needs is prepared once. A DirectCall compares each argument with its row (exact type, dtype,
// shape, flags), makes the outputs and launches; whatever does not fit goes to the Python method `_call_checked`, which
// converts or raises: this file never says what is wrong with an argument. A BoundCall only launches.
//
// The types are written against the C API, because a bound method of pybind11 costs as much as a small launch.
//
// Invariants:
//  - A launch's memory is referenced while it runs: arguments by the caller, outputs by the call, states and bound
//    buffers by the object.
//  - What a C caller may read from another thread (`Bound`) changes only under `closed`, and lives as long as its
//  object.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>
#include <superkernel_call.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bindings_gil.h"
#include "bindings_parts.h"
#include "runtime/kernel.h"

namespace py = pybind11;

namespace {

using py::detail::npy_api;
constexpr int kReadable = npy_api::NPY_ARRAY_C_CONTIGUOUS_ | npy_api::NPY_ARRAY_ALIGNED_;

// Leaves the error to Python, in the words of `explain(error)`.
void set_error(py::error_already_set& error, PyObject* explain) {
  error.restore();
  if (explain == nullptr) return;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  PyObject* said = PyObject_CallOneArg(explain, value);
  if (said != nullptr) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(said)), said);
    Py_DECREF(said);
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

// Runs `work`, which may throw what the runtime raises. False with Python's error set.
template <typename Work>
bool guarded(PyObject* explain, const Work& work) {
  try {
    work();
    return true;
  } catch (py::error_already_set& error) {
    set_error(error, explain);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  return false;
}

// ---- DirectCall
// ------------------------------------------------------------------------------------------------------

struct ArrayType {
  py::dtype dtype;
  std::vector<py::ssize_t> shape;
  std::size_t nbytes = 0;

  ArrayType(const py::dtype& type, std::vector<py::ssize_t> dims) : dtype(type), shape(std::move(dims)) {
    nbytes = static_cast<std::size_t>(dtype.itemsize());
    for (py::ssize_t size : shape) nbytes *= static_cast<std::size_t>(size);
  }

  bool fits(const npy_api& api, PyObject* argument) const {
    if (Py_TYPE(argument) != api.PyArray_Type_) return false;
    const auto* array = py::detail::array_proxy(argument);
    return (array->descr == dtype.ptr() || api.PyArray_EquivTypes_(array->descr, dtype.ptr())) &&
           static_cast<std::size_t>(array->nd) == shape.size() &&
           std::equal(shape.begin(), shape.end(), array->dimensions) && (array->flags & kReadable) == kReadable;
  }

  // A new array with undefined contents; null with Python's error set.
  PyObject* make(const npy_api& api) const {
    return api.PyArray_NewFromDescr_(api.PyArray_Type_, py::object(dtype).release().ptr(),
                                     static_cast<int>(shape.size()), shape.data(), nullptr, nullptr, 0, nullptr);
  }
};

struct Extent {
  std::uint8_t* begin;
  std::uint8_t* end;

  bool meets(const std::uint8_t* data, std::size_t nbytes) const { return data < end && begin < data + nbytes; }
};

std::uint8_t* data_of(PyObject* array) { return reinterpret_cast<std::uint8_t*>(py::detail::array_proxy(array)->data); }

// Everything a call needs, as it was prepared.
class Prepared {
 public:
  Prepared(const py::object& kernel, std::vector<ArrayType> inputs, std::vector<ArrayType> outputs,
           const std::vector<py::array>& states, std::int64_t watchdog_ns, const py::object& explain)
      : kernel_(kernel),
        explain_(explain),
        launcher_(kernel_object(kernel)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        watchdog_ns_(watchdog_ns) {
    for (const py::array& state : states) {
      std::uint8_t* begin = data_of(state.ptr());
      states_.push_back({begin, begin + state.nbytes()});
      state_arrays_.push_back(state);
    }
  }

  // The result of a call, null with Python's error set where the launch fails. Nothing: the arguments or the outputs
  // need the general way.
  std::optional<PyObject*> call(PyObject* arguments) const {
    if (static_cast<std::size_t>(PyTuple_GET_SIZE(arguments)) != inputs_.size()) return std::nullopt;
    const std::size_t count = inputs_.size() + outputs_.size() + states_.size();
    std::array<std::uint8_t*, kInline> few;
    const std::unique_ptr<std::uint8_t*[]> many(count > kInline ? new std::uint8_t*[count] : nullptr);
    std::uint8_t** io = many ? many.get() : few.data();
    std::uint8_t** next = io;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      PyObject* argument = PyTuple_GET_ITEM(arguments, static_cast<py::ssize_t>(i));
      if (!inputs_[i].fits(api_, argument)) return std::nullopt;
      *next++ = data_of(argument);
      if (in_a_state(*(next - 1), inputs_[i].nbytes)) return std::nullopt;
    }
    py::object result = make_outputs(next);
    if (!result) return std::nullopt;
    next += outputs_.size();
    for (const Extent& state : states_) *next++ = state.begin;
    const bool ran = guarded(explain_.ptr(), [&] { launch(launcher_, {io, count}, watchdog_ns_); });
    return ran ? result.release().ptr() : nullptr;
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(kernel_.ptr());
    Py_VISIT(explain_.ptr());
    return 0;
  }

 private:
  static constexpr std::size_t kInline = 64;

  bool in_a_state(const std::uint8_t* data, std::size_t nbytes) const {
    return std::any_of(states_.begin(), states_.end(), [&](const Extent& s) { return s.meets(data, nbytes); });
  }

  // One array, or a tuple of them; their addresses to `data`. Null, without an error, where NumPy refuses.
  py::object make_outputs(std::uint8_t** data) const {
    if (outputs_.size() == 1) {
      auto array = py::reinterpret_steal<py::object>(outputs_[0].make(api_));
      if (array) {
        data[0] = data_of(array.ptr());
      } else {
        PyErr_Clear();
      }
      return array;
    }
    auto arrays = py::reinterpret_steal<py::object>(PyTuple_New(static_cast<py::ssize_t>(outputs_.size())));
    for (std::size_t i = 0; arrays && i < outputs_.size(); ++i) {
      PyObject* array = outputs_[i].make(api_);
      if (array == nullptr) {
        arrays = py::object();
      } else {
        PyTuple_SET_ITEM(arrays.ptr(), static_cast<py::ssize_t>(i), array);
        data[i] = data_of(array);
      }
    }
    if (!arrays) PyErr_Clear();
    return arrays;
  }

  const npy_api& api_ = npy_api::get();
  py::object kernel_;
  py::object explain_;
  KernelObject& launcher_;
  std::vector<ArrayType> inputs_;
  std::vector<ArrayType> outputs_;
  std::vector<Extent> states_;
  std::vector<py::object> state_arrays_;
  std::int64_t watchdog_ns_;
};

struct DirectCall {
  PyObject ob_base;
  Prepared* prepared;  // null: every call goes the general way
  PyObject* bound;     // what `run_bound` runs: a BoundCall or null
};

PyTypeObject* direct_call_type = nullptr;
PyTypeObject* bound_call_type = nullptr;
PyObject* general_name = nullptr;

PyObject* direct_call(PyObject* self, PyObject* arguments, PyObject* named) {
  const auto* object = reinterpret_cast<DirectCall*>(self);
  if (object->prepared != nullptr && (named == nullptr || PyDict_GET_SIZE(named) == 0)) {
    if (const auto result = object->prepared->call(arguments)) return *result;
  }
  PyObject* general = PyObject_GetAttr(self, general_name);
  if (general == nullptr) return nullptr;
  PyObject* result = PyObject_Call(general, arguments, named);
  Py_DECREF(general);
  return result;
}

// ---- BoundCall
// -------------------------------------------------------------------------------------------------------

struct BoundCall;

// What a C caller's `self` points to.
struct Bound {
  BoundCall* object;
  KernelObject* launcher;
  sk::Kernel* kernel;
  std::vector<std::uint8_t*> io;
  std::int64_t watchdog_ns;
  sk::Atomic<bool> closed{false};
  bool in_python;  // the launch needs the object's `runner`
};

struct BoundCall {
  PyObject ob_base;
  Bound* bound;
  PyObject* owners;   // of all that a launch uses: kernel, arrays
  PyObject* runner;   // launches by way of Python, for kernels with host calls
  PyObject* explain;  // see set_error
  PyObject* error;    // of the last call of the C function that returned SK_CALL_PYTHON_ERROR
};

// Runs the object's `runner`. False with Python's error set.
bool run_in_python(BoundCall& object) {
  return guarded(nullptr, [&] {
    if (object.bound->closed.load(std::memory_order_acquire)) {
      raise("InputError", {"the bound kernel is closed", "", "", "", "bind the kernel again"});
    }
    const auto runner = py::reinterpret_borrow<py::object>(object.runner);
    runner();
  });
}

PyObject* bound_run(PyObject* self, PyObject*) {
  auto& object = *reinterpret_cast<BoundCall*>(self);
  Bound* bound = object.bound;
  if (bound == nullptr) {
    PyErr_SetString(PyExc_TypeError, "a bound kernel is made by Kernel.bind");
    return nullptr;
  }
  const bool ran = bound->in_python ? run_in_python(object) : guarded(object.explain, [&] {
    launch(*bound->launcher, bound->io, bound->watchdog_ns, &bound->closed);
  });
  if (!ran) return nullptr;
  Py_RETURN_NONE;
}

bool holds_gil() {
  if (Py_IsInitialized() == 0) return false;
  PyThreadState* mine = PyGILState_GetThisThreadState();
#if PY_VERSION_HEX >= 0x030d0000
  return mine != nullptr && mine == PyThreadState_GetUnchecked();
#else
  return mine != nullptr && mine == _PyThreadState_UncheckedGet();
#endif
}

std::int32_t call_code(sk::AbortReason reason) {
  switch (reason) {
    case sk::AbortReason::kNone:
      return SK_CALL_OK;
    case sk::AbortReason::kDeadlock:
    case sk::AbortReason::kWatchdog:
      return SK_CALL_WATCHDOG;
    case sk::AbortReason::kClosed:
      return SK_CALL_CLOSED;
    case sk::AbortReason::kNested:
      return SK_CALL_NESTED;
    case sk::AbortReason::kNoThread:
      return SK_CALL_NO_THREAD;
    default:
      return SK_CALL_ABORTED;
  }
}

std::int32_t call_in_python(Bound& bound) {
  if (Py_IsInitialized() == 0 || shutting_down()) return SK_CALL_ABORTED;
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::int32_t code = SK_CALL_OK;
  if (bound.closed.load(std::memory_order_acquire)) {
    code = SK_CALL_CLOSED;
  } else if (!run_in_python(*bound.object)) {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != nullptr) PyException_SetTraceback(value, trace);
    PyObject* errors = PyImport_ImportModule("superkernel.core.errors");
    PyObject* watchdog = errors == nullptr ? nullptr : PyObject_GetAttrString(errors, "WatchdogError");
    const bool hung = watchdog != nullptr && PyObject_IsInstance(value, watchdog) == 1;
    PyErr_Clear();
    Py_XDECREF(watchdog);
    Py_XDECREF(errors);
    code = hung ? SK_CALL_WATCHDOG : SK_CALL_PYTHON_ERROR;
    Py_XSETREF(bound.object->error, value);
    Py_XDECREF(type);
    Py_XDECREF(trace);
  }
  PyGILState_Release(gil);
  return code;
}

// The C function. Tries first, because a thread that holds the GIL must not wait: who has the kernel may want the GIL.
std::int32_t call_bound(void* self) noexcept {
  Bound& bound = *static_cast<Bound*>(self);
  if (bound.in_python) return stay_at_exit([&] { return call_in_python(bound); });
  sk::RunOptions options{.watchdog_ns = bound.watchdog_ns, .hooks = {}, .patient = false, .closed = &bound.closed};
  sk::AbortReason reason = bound.kernel->run(bound.io, options);
  if (reason == sk::AbortReason::kBusy) [[unlikely]] {
    options.patient = true;
    PyThreadState* state = holds_gil() ? PyEval_SaveThread() : nullptr;
    reason = bound.kernel->run(bound.io, options);
    if (state != nullptr) take_gil(state);
  }
  return call_code(reason);
}

// Refuses runs from now on, waits for the present one and lets go of the buffers. Inside a run of this very thread (a
// signal handler) nothing can be waited for: the buffers then stay as long as the object.
PyObject* bound_close(PyObject* self, PyObject*) {
  auto& object = *reinterpret_cast<BoundCall*>(self);
  if (Bound* bound = object.bound; bound != nullptr) {
    bound->closed.store(true, std::memory_order_release);
    if (!bound->kernel->running_here()) {
      {
        const GilReleased released;
        static_cast<void>(bound->kernel->last_abort());
      }
      Py_CLEAR(object.runner);
      Py_CLEAR(object.owners);
    }
  }
  Py_RETURN_NONE;
}

PyObject* bound_closed(PyObject* self, void*) {
  const Bound* bound = reinterpret_cast<BoundCall*>(self)->bound;
  return PyBool_FromLong(bound == nullptr || bound->closed.load(std::memory_order_acquire));
}

PyObject* function_address(PyObject*, void*) { return PyLong_FromVoidPtr(reinterpret_cast<void*>(&call_bound)); }

PyObject* self_address(PyObject* self, void*) { return PyLong_FromVoidPtr(reinterpret_cast<BoundCall*>(self)->bound); }

PyObject* direct_run_bound(PyObject* self, PyObject*) {
  PyObject* bound = reinterpret_cast<DirectCall*>(self)->bound;
  if (bound == nullptr || PyObject_TypeCheck(bound, bound_call_type) == 0) {
    guarded(nullptr, [] { raise("InputError", {"no buffers are bound", "", "", "", "call Kernel.bind first"}); });
    return nullptr;
  }
  Py_INCREF(bound);  // another thread may bind anew meanwhile
  PyObject* result = bound_run(bound, nullptr);
  Py_DECREF(bound);
  return result;
}

// ---- the two types
// ---------------------------------------------------------------------------------------------------

int direct_traverse(PyObject* self, visitproc visit, void* arg) {
  const auto* object = reinterpret_cast<DirectCall*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(object->bound);
  return object->prepared != nullptr ? object->prepared->traverse(visit, arg) : 0;
}

int direct_clear(PyObject* self) {
  auto* object = reinterpret_cast<DirectCall*>(self);
  delete std::exchange(object->prepared, nullptr);
  Py_CLEAR(object->bound);
  return 0;
}

int bound_traverse(PyObject* self, visitproc visit, void* arg) {
  const auto* object = reinterpret_cast<BoundCall*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(object->owners);
  Py_VISIT(object->runner);
  Py_VISIT(object->explain);
  Py_VISIT(object->error);
  return 0;
}

// `bound` goes last: what it points to belongs to `owners`, and a finalizer may still call.
int bound_clear(PyObject* self) {
  auto* object = reinterpret_cast<BoundCall*>(self);
  if (object->bound != nullptr) object->bound->closed.store(true, std::memory_order_release);
  Py_CLEAR(object->owners);
  Py_CLEAR(object->runner);
  Py_CLEAR(object->explain);
  Py_CLEAR(object->error);
  return 0;
}

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

void direct_free(PyObject* self) {
  PyObject_GC_UnTrack(self);
  direct_clear(self);
  free_object(self);
}

void bound_free(PyObject* self) {
  PyObject_GC_UnTrack(self);
  bound_clear(self);
  delete std::exchange(reinterpret_cast<BoundCall*>(self)->bound, nullptr);
  free_object(self);
}

PyMethodDef direct_methods[] = {
    {"run_bound", direct_run_bound, METH_NOARGS, "One launch on the buffers of the last `bind`."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef direct_members[] = {
    {"_bound", T_OBJECT, offsetof(DirectCall, bound), 0, "What `run_bound` runs."},
    {nullptr, 0, 0, 0, nullptr},
};
PyMethodDef bound_methods[] = {
    {"run", bound_run, METH_NOARGS, "One launch on the bound buffers."},
    {"close", bound_close, METH_NOARGS, "Refuse further launches and let go of the buffers."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef bound_members[] = {
    {"error", T_OBJECT, offsetof(BoundCall, error), READONLY, "What NumPy's part raised in the C function."},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef bound_getters[] = {
    {"closed", bound_closed, nullptr, "True after `close`.", nullptr},
    {"function_address", function_address, nullptr, "Of an SkCallFunction (superkernel_call.h).", nullptr},
    {"self_address", self_address, nullptr, "The argument to give it.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject* make_type(const py::module_& m, const char* name, std::size_t bytes, PyType_Slot* slots) {
  PyType_Spec spec{.name = name,
                   .basicsize = static_cast<int>(bytes),
                   .itemsize = 0,
                   .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                   .slots = slots};
  PyObject* type = PyType_FromModuleAndSpec(m.ptr(), &spec, nullptr);
  if (type == nullptr) throw py::error_already_set();
  m.attr(std::string(name).substr(std::string("superkernel._core.").size()).c_str()) = py::handle(type);
  return reinterpret_cast<PyTypeObject*>(type);  // for the life of the process
}

template <typename Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

void make_types(py::module_& m) {
  PyType_Slot direct[] = {{Py_tp_call, slot(direct_call)},      {Py_tp_traverse, slot(direct_traverse)},
                          {Py_tp_clear, slot(direct_clear)},    {Py_tp_dealloc, slot(direct_free)},
                          {Py_tp_methods, direct_methods},      {Py_tp_members, direct_members},
                          {Py_tp_new, slot(PyType_GenericNew)}, {0, nullptr}};
  PyType_Slot bound[] = {{Py_tp_traverse, slot(bound_traverse)}, {Py_tp_clear, slot(bound_clear)},
                         {Py_tp_dealloc, slot(bound_free)},      {Py_tp_methods, bound_methods},
                         {Py_tp_members, bound_members},         {Py_tp_getset, bound_getters},
                         {Py_tp_new, slot(PyType_GenericNew)},   {0, nullptr}};
  direct_call_type = make_type(m, "superkernel._core.DirectCall", sizeof(DirectCall), direct);
  bound_call_type = make_type(m, "superkernel._core.BoundCall", sizeof(BoundCall), bound);
}

// ---- preparing
// -------------------------------------------------------------------------------------------------------

template <typename Object>
Object& checked(const py::handle& self, PyTypeObject* type) {
  if (PyObject_TypeCheck(self.ptr(), type) == 0) throw py::type_error(std::string("not a ") + type->tp_name);
  return *reinterpret_cast<Object*>(self.ptr());
}

using Row = std::pair<py::dtype, std::vector<py::ssize_t>>;

std::vector<ArrayType> types_of(const std::vector<Row>& rows) {
  std::vector<ArrayType> types;
  for (const auto& [dtype, shape] : rows) types.emplace_back(dtype, shape);
  return types;
}

void check_io(const sk::Kernel& kernel, std::size_t count) {
  if (count == kernel.config().io_count) return;
  raise("InputError",
        {"wrong number of arrays", "", std::to_string(kernel.config().io_count), std::to_string(count), ""});
}

void prepare_direct(const py::handle& self, const py::object& kernel, const std::vector<Row>& inputs,
                    const std::vector<Row>& outputs, const std::vector<py::array>& states, std::int64_t watchdog_ns,
                    const py::object& explain) {
  auto& object = checked<DirectCall>(self, direct_call_type);
  check_io(runtime_kernel(kernel_object(kernel)), inputs.size() + outputs.size() + states.size());
  if (object.prepared != nullptr) throw py::type_error("prepared already");  // calls may be under way
  object.prepared = new Prepared(kernel, types_of(inputs), types_of(outputs), states, watchdog_ns, explain);
}

void prepare_bound(const py::handle& self, const py::object& kernel, const std::vector<py::array>& io,
                   std::int64_t watchdog_ns, const py::object& explain, const py::object& runner) {
  auto& object = checked<BoundCall>(self, bound_call_type);
  KernelObject& launcher = kernel_object(kernel);
  check_io(runtime_kernel(launcher), io.size());
  if (object.bound != nullptr) throw py::type_error("bound already");
  std::vector<std::uint8_t*> pointers;
  py::list owners;
  owners.append(kernel);
  for (const py::array& array : io) {
    pointers.push_back(data_of(array.ptr()));
    owners.append(array);
  }
  auto bound = std::unique_ptr<Bound>(new Bound{.object = &object,
                                                .launcher = &launcher,
                                                .kernel = &runtime_kernel(launcher),
                                                .io = std::move(pointers),
                                                .watchdog_ns = watchdog_ns,
                                                .in_python = !runner.is_none()});
  object.owners = owners.release().ptr();
  object.explain = py::object(explain).release().ptr();
  if (!runner.is_none()) object.runner = py::object(runner).release().ptr();
  object.bound = bound.release();
}

}  // namespace

void register_calls(py::module_& m) {
  using namespace py::literals;
  general_name = PyUnicode_InternFromString("_call_checked");
  make_types(m);
  m.def("prepare_direct", prepare_direct, py::arg("call"), py::arg("kernel"), py::arg("inputs"), py::arg("outputs"),
        py::arg("states"), py::arg("watchdog_ns"), py::arg("explain"));
  m.def("prepare_bound", prepare_bound, py::arg("call"), py::arg("kernel"), py::arg("io"), py::arg("watchdog_ns"),
        py::arg("explain"), py::arg("runner") = py::none());
  m.attr("CALL_CODES") =
      py::dict("ok"_a = int{SK_CALL_OK}, "watchdog"_a = int{SK_CALL_WATCHDOG}, "aborted"_a = int{SK_CALL_ABORTED},
               "python_error"_a = int{SK_CALL_PYTHON_ERROR}, "closed"_a = int{SK_CALL_CLOSED},
               "nested"_a = int{SK_CALL_NESTED}, "no_thread"_a = int{SK_CALL_NO_THREAD});
}
