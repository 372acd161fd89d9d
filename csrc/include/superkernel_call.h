// How other languages run a kernel that was bound to fixed buffers in Python (`Kernel.bind`).
//
// A BoundKernel gives two addresses: `function_address`, a function of type SkCallFunction, and `self_address`, the
// argument to give it. One call is one launch on the bound buffers; it returns when all outputs and states are written.
//
// Any thread may call, with or without Python's GIL; launches of one kernel take turns. Nothing is allocated or
// checked. The function touches Python only where the kernel has sub-operators that NumPy computes
// (`summary()["fallbacks"]`): it then takes the GIL, and the interpreter must be running.
//
// Lifetime: both addresses hold from `bind` until the BoundKernel object is freed, which must not happen while a call
// is under way. Whoever keeps the addresses keeps the object. After `close()` calls return SK_CALL_CLOSED.
#ifndef SUPERKERNEL_CALL_H
#define SUPERKERNEL_CALL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t (*SkCallFunction)(void* self);

// What a call returns. After anything but SK_CALL_OK outputs and states are undefined; the kernel may run again.
enum {
  SK_CALL_OK = 0,
  SK_CALL_WATCHDOG = 1,      // no core can go on, or option `watchdog_ms`: a core waited for longer
  SK_CALL_ABORTED = 2,       // the launch failed otherwise: a fault of SuperKernel, or the process was forked inside it
  SK_CALL_PYTHON_ERROR = 3,  // NumPy's part raised: the exception is BoundKernel.error
  SK_CALL_CLOSED = 4,        // BoundKernel.close() was called: nothing was run
  SK_CALL_NESTED = 5,        // this very thread is inside a launch: nothing was run
  SK_CALL_NO_THREAD = 6      // the system refuses the threads that the kernel needs: nothing was run
};

#ifdef __cplusplus
}
#endif
#endif  // SUPERKERNEL_CALL_H
