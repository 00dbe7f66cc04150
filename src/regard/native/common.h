// What all kernels share: what compilers differ in, and when a thread is worth its price.
// Kernels are plain C++ behind a C interface. No header of torch or Python is used. The same sources are compiled once
// for each set of instructions (VARIANTS in setup.py), and `regard_level` in checks.cpp says which a processor can run.
#pragma once

#include <algorithm>
#include <cstdint>

// A function that Python calls, with a line in the table of _signatures.py. Nothing else leaves the library.
#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Loops that have no order: SIMD() or SIMD(reduction(+ : sum)) before a loop, and PARALLEL(num_threads(parts)).
#define PRAGMA(text) _Pragma(#text)
#define PARALLEL(...) PRAGMA(omp parallel for __VA_ARGS__)
#if defined(_MSC_VER) && !defined(__clang__)
#define INLINE static __forceinline
#define UNROLL
#define SIMD(...)  // OpenMP 2.0 knows no such loops
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL PRAGMA(GCC unroll 8)  // a loop whose results stay in registers only if nothing of it is left
#define SIMD(...) PRAGMA(omp simd __VA_ARGS__)
#endif

namespace {

// One thread for so many numbers at least: starting one has its price.
INLINE int threads_for(int64_t numbers, int threads) {
    return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, numbers / 16384)));
}

}  // namespace
