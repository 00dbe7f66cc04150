// What all kernels share: how they are compiled for several machines, and when a thread is worth its price.
// Kernels are plain C++ behind a C interface. No header of torch or Python is used.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define VERSIONS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VERSIONS
#endif
#define INLINE static inline __attribute__((always_inline))
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // how vectors are returned does not matter where all is inlined
#endif

namespace {

// One thread for so many numbers at least: starting one has its price.
INLINE int threads_for(int64_t numbers, int threads) {
    return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, numbers / 16384)));
}

}  // namespace
