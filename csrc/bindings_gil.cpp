// The GIL around launches; see bindings_gil.h.
#include "bindings_gil.h"

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bindings_parts.h"
#include "runtime/pool.h"

bool shutting_down() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void await_exit() {
  for (;;) pause();
}

void take_gil(PyThreadState* state) {
  stay_at_exit([state] { PyEval_RestoreThread(state); });
}

bool on_main_thread() {
  struct Answer {
    std::uint32_t generation = ~std::uint32_t{0};
    bool is_main = false;
  };
  thread_local Answer answer;
  if (answer.generation != sk::fork_generation()) {
    answer = {sk::fork_generation(), syscall(SYS_gettid) == getpid()};
  }
  return answer.is_main;
}

std::int32_t call_host(void* user, std::int32_t subop) {
  Session& session = *static_cast<Session*>(user);
  if (session.host_call == nullptr) return 1;
  take_gil(session.state);
  PyObject* result =
      stay_at_exit([&] { return PyObject_CallFunction(session.host_call, "i", static_cast<int>(subop)); });
  if (result == nullptr) session.error.emplace();
  Py_XDECREF(result);
  session.state = PyEval_SaveThread();
  return session.error ? 1 : 0;
}

std::int32_t poll_signals(void* user) {
  Session& session = *static_cast<Session*>(user);
  take_gil(session.state);
  const bool interrupted = PyErr_CheckSignals() != 0;
  if (interrupted) session.error.emplace();
  session.state = PyEval_SaveThread();
  return interrupted ? 1 : 0;
}

std::int32_t poll_holding_gil(void* user) {
  Session& session = *static_cast<Session*>(user);
  if (session.state != nullptr) return on_main_thread() ? poll_signals(user) : 0;
  const bool interrupted = on_main_thread() && PyErr_CheckSignals() != 0;
  if (interrupted) session.error.emplace();
  session.state = PyEval_SaveThread();
  return interrupted ? 1 : 0;
}
