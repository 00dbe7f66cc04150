// What is asked before any work: which release this is, what the processor can do, and how large numbers are.

#include <limits>

#include "common.h"

namespace {

// The largest absolute value of n numbers, as bits without the sign: those of NaN and of the infinities are above all
// others, so that whole numbers tell, and no rule about comparisons with NaN is needed.
template <typename Bits>
Bits largest_of(const Bits* x, int64_t n) {
    Bits top = 0;
    const Bits all_but_sign = std::numeric_limits<Bits>::max();
    SIMD(reduction(max : top))
    for (int64_t i = 0; i < n; ++i) {
        const Bits bits = x[i] & all_but_sign;
        top = bits > top ? bits : top;
    }
    return top;
}

// Rows of `width` numbers that lie `step` apart, three deep. Each thread takes some rows, or a part of the only one.
template <typename Bits>
int64_t largest_in(const Bits* x, const int64_t* count, const int64_t* step, int64_t width, int threads) {
    const int most = 64;
    const int64_t rows = count[0] * count[1] * count[2];
    const int parts = std::min(most, threads_for(rows * width / 16, threads));
    Bits tops[most] = {};  // OpenMP 2.0 knows no reduction to a maximum
    PARALLEL(num_threads(parts))
    for (int part = 0; part < parts; ++part) {
        const int64_t all = rows == 1 ? width : rows, a = all * part / parts, b = all * (part + 1) / parts;
        Bits top = rows == 1 ? largest_of(x + a, b - a) : 0;
        for (int64_t row = a; rows > 1 && row < b; ++row) {
            const int64_t i = row / (count[1] * count[2]), j = row / count[2] % count[1], l = row % count[2];
            top = std::max(top, largest_of(x + i * step[0] + j * step[1] + l * step[2], width));
        }
        tops[part] = top;
    }
    return *std::max_element(tops, tops + parts);
}

}  // namespace

// The bits of the largest absolute value in a tensor of `bytes` a number, as rows (count, step; in numbers) of `width`.
EXPORT int64_t regard_largest(const void* x, int bytes, const int64_t* count, const int64_t* step, int64_t width,
                              int threads) {
    if (bytes == 2) return largest_in(static_cast<const int16_t*>(x), count, step, width, threads);
    if (bytes == 4) return largest_in(static_cast<const int32_t*>(x), count, step, width, threads);
    return largest_in(static_cast<const int64_t*>(x), count, step, width, threads);
}

#ifndef REGARD_INTERFACE
#error "compile with -DREGARD_INTERFACE=N, the INTERFACE of _signatures.py"
#endif

EXPORT int regard_version() { return REGARD_INTERFACE; }

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
