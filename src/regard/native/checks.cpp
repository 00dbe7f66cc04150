// What is asked before any work: which release this is, and whether numbers are finite.

#include <cstring>

#include "common.h"

static bool finite_part(const float* x, int64_t n) {
    int32_t bad = 0;
    SIMD(reduction(| : bad))
    for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof(bits));
        bad |= (bits & 0x7f800000) == 0x7f800000;  // the exponent of NaN and of the infinities
    }
    return bad == 0;
}

// Whether n numbers are finite: one pass that only reads.
EXPORT int regard_finite_f32(const float* x, int64_t n, int threads) {
    const int parts = threads_for(n / 16, threads);
    int bad = 0;
    PARALLEL(num_threads(parts) reduction(| : bad))
    for (int part = 0; part < parts; ++part) {
        const int64_t a = n * part / parts, b = n * (part + 1) / parts;
        bad |= !finite_part(x + a, b - a);
    }
    return !bad;
}

EXPORT int regard_version() { return 6; }

#if defined(_M_X64) && !defined(__clang__)
#include <intrin.h>

static bool bit(int registers, int place) { return registers >> place & 1; }
#endif

// Which of the variants in setup.py this processor and its system can run: 0 baseline, 1 avx2, 2 avx512.
EXPORT int regard_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool two = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                     __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    const bool four = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
    return two + (two && four);
#elif defined(_M_X64)
    int basic[4], more[4];  // eax, ebx, ecx, edx
    __cpuid(basic, 0);
    if (basic[0] < 7) return 0;
    __cpuid(basic, 1);
    __cpuidex(more, 7, 0);
    if (!bit(basic[2], 27)) return 0;                               // the system keeps no wide registers
    const int kept = static_cast<int>(_xgetbv(0)), b = more[1];     // which of them it keeps
    const bool two = (kept & 0x6) == 0x6 && bit(basic[2], 28) && bit(basic[2], 12) && bit(basic[2], 23) && bit(b, 5) &&
                     bit(b, 3) && bit(b, 8);                        // avx, fma, popcnt, avx2, bmi, bmi2
    const bool four = (kept & 0xe6) == 0xe6 && bit(b, 16) && bit(b, 17) && bit(b, 28) && bit(b, 30) && bit(b, 31);
    return two + (two && four);                                     // avx512: f, dq, cd, bw, vl
#else
    return 0;
#endif
}
