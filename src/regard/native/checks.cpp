// What is asked before any work: which release this is, and whether numbers are finite.

#include <cstring>

#include "common.h"

VERSIONS static bool finite_part(const float* x, int64_t n) {
    int32_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof(bits));
        bad |= (bits & 0x7f800000) == 0x7f800000;  // the exponent of NaN and of the infinities
    }
    return bad == 0;
}

// Whether n numbers are finite: one pass that only reads.
extern "C" int regard_finite_f32(const float* x, int64_t n, int threads) {
    const int parts = threads_for(n / 16, threads);
    int bad = 0;
#pragma omp parallel for num_threads(parts) reduction(| : bad)
    for (int part = 0; part < parts; ++part) {
        const int64_t a = n * part / parts, b = n * (part + 1) / parts;
        bad |= !finite_part(x + a, b - a);
    }
    return !bad;
}

extern "C" int regard_version() { return 5; }
