// What the header of every exported library begins with (docs/libraries.md): status codes, and how a library describes
// its models. A program may use several libraries: they share these declarations and nothing else.
#ifndef SUPERKERNEL_LIBRARY_H
#define SUPERKERNEL_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

// Of the functions and structs of a library: raised where programs compiled for an older one would not work.
#define SK_LIBRARY_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

// What every function that can fail returns. The library's `message` then says more, in the words of this one call.
typedef int32_t SkStatus;
enum {
  SK_OK = 0,
  SK_ERROR_MODEL = 1,      // the library has no model of that name
  SK_ERROR_INTERFACE = 2,  // the header is of another export: names, types or shapes differ
  SK_ERROR_CPU = 3,        // this CPU lacks what the code was compiled for
  SK_ERROR_THREADS = 4,    // no plan for so few threads, or the system refuses them
  SK_ERROR_MEMORY = 5,
  SK_ERROR_ARGUMENT = 6,  // an address that is null or not aligned, an output that overlaps something, threads < 0
  SK_ERROR_DATA = 7,      // values of the inputs are out of the range that an operator demands
  SK_ERROR_WATCHDOG = 8,  // no core could go on, or one waited for longer than option `watchdog_ms`
  SK_ERROR_NESTED = 9,    // this very thread is inside a run
  SK_ERROR_ABORTED = 10   // the run failed otherwise: a fault of SuperKernel, or the process was forked inside it
};

// A dense, row-major tensor of fixed shape.
typedef struct {
  const char* name;
  const char* dtype;  // f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool
  const int64_t* shape;
  size_t rank;
  size_t bytes;
  size_t alignment;  // of its address
} SkTensor;

typedef struct {
  const char* name;
  const SkTensor* inputs;
  size_t input_count;
  const SkTensor* outputs;
  size_t output_count;
  const SkTensor* states;
  size_t state_count;
  const int32_t* threads;  // the numbers of threads that it has plans for, ascending
  size_t thread_count;
} SkModelInfo;

// An instance of a model: its working memory and its states.
typedef struct SkModel SkModel;

#ifdef __cplusplus
}
#endif
#endif  // SUPERKERNEL_LIBRARY_H
